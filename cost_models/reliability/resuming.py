"""What the executor takes to read a checkpoint: verified, read and, where several ranks hold the same, sent.

Every file is read by one of n ranks, which forms its digest. Then each rank reads the pieces that it holds; or, where
links are faster than its share of the storage, one of the ranks that hold the same reads a piece and sends it to the
others (Jiang et al. 2024, "MegaScale", section 4.4). Of B bytes, from storage that all together read at S:

    verifying = B / S + digest · B / n
    reading   = min(Σ copies · B / S,  B / S + broadcast of what a rank holds)

The sums are over routed experts and everything else. Left out: what the hosts' page caches keep of the first reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.collectives import broadcast_seconds
from cost_models.communication.topology import Groups, axis_groups
from cost_models.files import read_errors
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The reading of a checkpoint by the ranks of a layout."""

    whole: float
    """Bytes of the checkpoint."""
    held: float
    """Bytes that all ranks hold together: more than the whole where several hold the same."""
    ranks: int
    sending: float
    """Seconds in which every rank gets what others of those that hold the same have read."""

    def reads_once(self, storage: float) -> bool:
        """Whether it is sooner that one of several ranks reads and sends, where all together read `storage` bytes/s."""
        return (self.held - self.whole) / storage > self.sending

    def seconds(self, storage: float) -> float:
        """Seconds until every rank has what it holds."""
        once = self.reads_once(storage)
        reading = self.whole / storage + self.sending if once else self.held / storage
        digest = float(read_errors("start")["digest"]) * self.whole / self.ranks
        return self.whole / storage + digest + reading


def resume_of(question: Question, layout: Layout, whole: float) -> Resume:
    """The reading of a checkpoint of `whole` bytes."""
    ranks, sending = layout.num_gpus, 0.0
    for share, same in _parts(question, layout):
        message = np.array([whole * share * float(same.size[0]) / ranks])
        sending += float(broadcast_seconds(message, same, question.hardware)[0])
    return Resume(whole=whole, held=whole * copies(question, layout), ranks=ranks, sending=sending)


def copies(question: Question, layout: Layout) -> float:
    """Ranks that hold, and update, the same parameter: the mean over all."""
    return sum(share * float(same.size[0]) for share, same in _parts(question, layout))


def _parts(question: Question, layout: Layout) -> Iterator[tuple[float, Groups]]:
    """(share of the model's parameters, groups of ranks with equal copies): without, then of routed experts."""
    model, groups = question.model, axis_groups(question.cluster, LayoutColumns.of([layout]))
    routed = model.num_layers * float(parameters(model, np.array([1])).experts[0]) / total_parameters(model)
    for share, same in ((1 - routed, groups.data), (routed, groups.experts)):
        yield share, same.every if layout.zero == 0 else same.copies
