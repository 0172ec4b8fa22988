"""What a picture is about, in words; and what is drawn for one kind of GPU."""

from __future__ import annotations

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.question import Question
from meshwright.render.goals import gpus_in_words


def require_one_kind(question: Question, kind: str) -> None:
    """Raises InputError for a question on several pools."""
    if question.has_pools:
        raise several_kinds(kind, question.cluster.name)


def several_kinds(kind: str, cluster: str) -> InputError:
    """What to say of a cluster of several pools."""
    return InputError(
        f"`{kind}` is drawn for one kind of GPU, and `{cluster}` has several pools",
        hint="time, memory and timeline are drawn for any plan",
    )


def subject_of(question: Question, estimate: Estimate | None = None, *, sized: bool = True) -> str:
    """What a picture is about."""
    training = question.training
    gpus = gpus_in_words(question) if sized else question.cluster.gpu.name
    words = (
        f"{question.model.name} on {gpus}, "
        f"global batch {training.global_batch}, sequence {training.sequence_length}"
    )
    return words if estimate is None else f"{words}: {estimate.layout.brief}"
