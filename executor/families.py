"""Training by model family: the functions that the launcher and every rank call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from cost_models.families import family_of_plan_kind, load
from executor.run_config import RunConfig
from planner.plan import AnyPlan

if TYPE_CHECKING:
    import torch

    from executor.measure.report import AnyReport
    from executor.steps import Stopped, Watcher


OnNote = Callable[[str], None]
"""Function that is called with a sentence for people."""
P = TypeVar("P", bound=AnyPlan, contravariant=True)


class Training(Protocol[P]):
    """Interface of training one family's plans; processes, devices, faults and records are common to all families."""

    trainer: ClassVar[str]
    """Import path `module:function` of the training function, which imports torch."""

    def require_trainable(self, plan: P, config: RunConfig, on_note: OnNote) -> RunConfig:
        """Check a plan and flags; returns the flags with which the plan is trained.

        Raises:
            InputError: the plan cannot be trained, or not with these flags or this data.
        """

    def require_devices(self, plan: P, name: str, *, on_gpu: bool) -> None:
        """Raise HostError where devices or software here cannot compute the plan, which is called `name`."""

    def train(
        self, plan: P, device: torch.device, config: RunConfig, watcher: Watcher, stop: Callable[[], bool]
    ) -> AnyReport | Stopped:
        """Train on this rank, inside an initialised process group; every rank gets the report.

        Raises:
            OutOfMemoryError: this rank's memory ran out; the error says which part held what.
            InputError: data or checkpoint do not go with the plan.
            RunError: the loss is no number, or a checkpoint could not be written.
        """
        result: AnyReport | Stopped = load(self.trainer)(plan, device, config, watcher, stop)
        return result

    def of_rank(self, plan: P, rank: int) -> dict[str, Any]:
        """Fields for the error of a rank without memory: its `place`, such as `stage 3`, and `predicted` bytes by
        part.
        """


def training_of(plan: AnyPlan) -> Training[Any]:
    """Training of a plan's model family."""
    training: Callable[[], Training[Any]] = load(family_of_plan_kind(plan.kind).training)
    return training()
