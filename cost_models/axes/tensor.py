"""Tensor parallelism: the degree, and the switch that splits what lies outside it along the sequence."""

from __future__ import annotations

from cost_models.axes.axis import Axis
from cost_models.axes.words import Number, Switch

TP = Axis(word=Number(), always_written=True, common=True)
SP = Axis(word=Switch(), common=True)
