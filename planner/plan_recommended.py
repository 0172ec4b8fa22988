"""What a plan file says of its recommendation, and of the restrictions within which its layout was proved."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, SerializerFunctionWrapHandler, model_serializer

from cost_models.axes.layout import Layout, parse_layout
from cost_models.base import Spec
from cost_models.risk import EVEN, MOST_CONFIDENT, Risk
from cost_models.units import Bytes
from planner.space.layouts import Restrictions, parse_restrictions


def _read_layout(value: Any) -> Layout:
    return value if isinstance(value, Layout) else parse_layout(str(value))


LayoutText = Annotated[Layout, BeforeValidator(_read_layout), PlainSerializer(str, return_type=str)]
"""A layout, written in its notation."""
Confidence = Annotated[float, Field(ge=EVEN, le=MOST_CONFIDENT, allow_inf_nan=False)]


class PlanRestrictions(Spec):
    """Restrictions of the search, in the words of the command line."""

    fix: tuple[str, ...] = ()
    """`--fix`: "tp=8"."""
    forbid: tuple[str, ...] = ()
    """`--forbid`: "zero=3"."""
    allow: tuple[str, ...] = ()
    """`--allow`: "offload"."""
    max_memory: Bytes | None = None
    """`--max-memory`: bytes that a plan may fill of one device."""
    confidence: Confidence | None = None
    """Least probability of fitting that the layout was held to, where that is more than the plan's own `confidence`."""
    trainer: str | None = None
    """`--for`: the trainer whose rules the layout obeys."""

    @classmethod
    def of(cls, restrictions: Restrictions) -> PlanRestrictions:
        """The restrictions as a plan file holds them."""
        size = restrictions.max_memory
        return cls.model_validate(
            {
                "fix": restrictions.fix_words,
                "forbid": restrictions.forbid_words,
                "allow": tuple(sorted(restrictions.allowed)),
                "max_memory": None if size is None else f"{size!r} B",
                "confidence": restrictions.confidence,
                "trainer": restrictions.trainer,
            }
        )

    @property
    def read(self) -> Restrictions:
        """The restrictions as the search takes them; raises InputError where a word cannot be read."""
        read = parse_restrictions(
            self.fix, self.forbid, max_memory=self.max_memory, trainer=self.trainer, allow=self.allow
        )
        return replace(read, confidence=self.confidence)


class PlanChoice(Spec):
    """The choice of a layout in place of the fastest of its kind on paper, as the model cannot tell their steps
    apart."""

    first: LayoutText
    """The fastest of its kind on paper."""
    first_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Its step on paper."""
    share: float = Field(ge=0, allow_inf_nan=False)
    """How far above it the layouts may lie that were compared."""
    layouts: int = Field(ge=1)
    """How many were."""
    middle_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Mean step of the plan over the middle half of the scenarios: the least of them."""
    first_middle_seconds: float = Field(gt=0, allow_inf_nan=False)
    """The same of the fastest on paper."""


class PlanRecommendation(Spec):
    """Alternatives to a recommended layout when the plan was made; the plan's restrictions are those within which it is
    proved the fastest."""

    why: str
    """What layouts of its kind have in common; empty where it is the fastest of all."""
    asked: PlanRestrictions = PlanRestrictions()
    """Restrictions of the question, within which the fastest on paper was searched for."""
    top: int = Field(default=1, ge=1)
    """How many of the fastest were searched for."""
    fastest: LayoutText
    """The fastest on paper."""
    fastest_seconds: float = Field(gt=0, allow_inf_nan=False)
    fastest_weighed: float | None = None
    """What `risk` weighs of its step; None: the step on paper."""
    fastest_bytes: float = Field(gt=0, allow_inf_nan=False)
    chance: float = Field(ge=0, le=1)
    """Chance that it is faster than the plan."""
    risk: Risk = "none"
    """`--risk`: what layouts were compared by."""
    classical: LayoutText | None = None
    """What an expert would write down without a search."""
    classical_seconds: float | None = None
    choice: PlanChoice | None = None
    """Why it is not the fastest of its kind on paper; written only where it is not."""

    @model_serializer(mode="wrap")
    def _without_the_usual(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if self.choice is None:
            written.pop("choice", None)
        return written
