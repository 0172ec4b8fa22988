"""What makes a measured step longer or shorter than predicted: the parts that explain most, with likely causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.measured.traces.job import Job
from cost_models.measured.traces.kernels import LATE
from cost_models.units import format_seconds, grouped
from meshwright.records.runs import ComparedQuantity
from meshwright.render.measured import quantity_label
from meshwright.render.words import percent, sentence_list

MOST_CAUSES = 3
_LEAST = 0.002
"""Of the step: smaller differences explain nothing."""
_CAUSES = {
    "compute": "kernels are slower than the profile's: power limit, kernels not fused, another attention kernel",
    "host": "the GPU waits for launches of small kernels, Python or synchronisation; CUDA graphs shorten it",
    "tp_comm": "tensor-parallel collectives are not hidden as planned, or a group's ranks do not share a node",
    "cp_comm": "keys and values are exchanged beside nothing, or over slower links than planned",
    "ep_comm": "experts are loaded unevenly, or their exchange crosses slower links than planned",
    "dp_comm": "gradients or weights are exchanged after compute, not behind it, or the network is slower",
    "pp_comm": "what stages send is not hidden, or the links between them are slower than planned",
    "bubble": "stages wait for one another: they are uneven, or have fewer microbatches than planned",
    "jitter": "ranks come to their collectives at different times; `plot ranks` draws who waits for whom",
    "offload": "copies to and from host memory are not hidden, or the host's link is slower than planned",
    "optimizer": "the update is not fused, or not sharded as planned",
    "other": "work that no part of a plan has",
    "data": "steps wait for their batches: more loader workers, or faster storage",
}
"""Part of a step → why it may take longer than predicted."""
_SHORTER = "it takes less than the profile says; `calibrate --from-run` learns that"


def findings(job: Job) -> list[str]:
    """What the traces of several ranks tell when they are put together: late ranks, a slow stage."""
    step = max(one.seconds for one in job.traced)
    told = [
        f"Rank {late.rank} comes last to {percent(late.share)} of its collectives; its peers wait"
        f" {_of_the_step(late.seconds, step)} for it: its GPU, host or link is slow; meshwright doctor tests its node"
        for late in job.late[:MOST_CAUSES]
    ]
    if (slow := job.slow_stage) is not None and slow.seconds >= LATE * step:
        told.append(
            f"Stage {slow.place} computes {slow.times:.2f} x as long as planned beside the others,"
            f" {_of_the_step(slow.seconds, step)} more: they wait for it; move blocks away, or its GPUs are slow"
        )
    if job.unfollowed:
        ranks = sentence_list([grouped(rank) for rank in job.unfollowed[:MOST_CAUSES]])
        told.append(
            f"Sends and receives of rank {ranks} are not those of the plan's schedule: no passes are told apart"
        )
    return told


def _of_the_step(seconds: float, step: float) -> str:
    return f"{format_seconds(seconds)} a step ({percent(seconds / step)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One part of a step beside its prediction."""

    part: str
    predicted: float
    measured: float
    share: float
    """Of the measured step, that a step would be shorter, or longer, if this part were as predicted."""

    @property
    def why(self) -> str:
        """The likely cause."""
        return _CAUSES[self.part] if self.share > 0 else _SHORTER

    @property
    def words(self) -> str:
        """ "dp comm takes 310.0 ms longer, 5.2 % of the step: gradients ..." """
        much = format_seconds(abs(self.measured - self.predicted))
        more = "longer" if self.share > 0 else "less"
        label = quantity_label(f"{self.part}_seconds")
        return f"{label} takes {much} {more}, {percent(abs(self.share))} of the step: {self.why}"


def causes(parts: Sequence[ComparedQuantity], step_seconds: float) -> tuple[Cause, ...]:
    """The parts that explain most of the difference, the largest first; none where parts were not measured."""
    found = [
        Cause(
            part=one.quantity.removesuffix("_seconds"),
            predicted=one.predicted,
            measured=one.measured,
            share=(one.measured - one.predicted) / step_seconds,
        )
        for one in parts
    ]
    large = [one for one in found if abs(one.share) >= _LEAST]
    return tuple(sorted(large, key=lambda one: -abs(one.share))[:MOST_CAUSES])
