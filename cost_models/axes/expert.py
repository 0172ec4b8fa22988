"""Expert parallelism: the ranks that share the experts of a mixture, and those that split one expert."""

from __future__ import annotations

from cost_models.axes.axis import Axis
from cost_models.axes.words import Number

EP = Axis(word=Number())
ETP = Axis(
    word=Number(),
    settled=lambda layout: None if layout.etp == layout.tp else layout.etp,
    comes_to=lambda layout: layout.expert_tp,
    follows=lambda columns: columns.tp,
)
