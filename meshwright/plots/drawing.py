"""Drawings (a figure with its data), requests for them, and the registry of picture kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cost_models.errors import InputError
from cost_models.flags import flag
from meshwright.inputs.options import Failures, tokens_flag

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from cost_models.estimate import Estimate
    from planner.plan import AnyPlan
    from planner.search.search import Budget


_SCREEN_DOTS_PER_INCH = 90
"""Resolution of pictures in notebooks."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Drawing:
    """Figure together with the data frame that it shows; notebooks display the figure."""

    frame: pd.DataFrame
    """Data of the figure, in base units."""
    figure: Figure
    table: str = ""
    """Text table of the data, if the title alone says too little."""

    @classmethod
    def of(cls, draw: Callable[..., Figure], frame: pd.DataFrame, *arguments: Any, **options: Any) -> Drawing:
        """Draw a frame: call `draw` with the frame and the other arguments, and join figure and frame."""
        return cls(frame=frame, figure=draw(frame, *arguments, **options))

    @property
    def title(self) -> str:
        """Title of the figure, which states its finding, on one line."""
        return " ".join(self.figure.get_suptitle().split())

    @property
    def points(self) -> list[dict[str, Any]]:
        """Rows of the figure's data, as dictionaries."""
        rows = self.frame.to_dict(orient="records")
        return [{str(name): value for name, value in row.items()} for row in rows]

    def save(self, path: str | Path) -> None:
        """Write the figure as PNG, SVG or PDF, by the path's suffix. Raises InputError for another suffix."""
        from meshwright.plots.style import save

        save(self.figure, Path(path))

    def __repr__(self) -> str:
        """Title of the figure."""
        return self.title

    def _repr_png_(self) -> bytes:
        """Figure as PNG, for notebooks."""
        from meshwright.plots.style import write

        picture = BytesIO()
        write(self.figure, picture, "png", _SCREEN_DOTS_PER_INCH)
        return picture.getvalue()


class PlotOptions(Failures, kw_only=True):
    """Options of pictures: sizes, objectives, points, tokens and price of the curves that are searched for."""

    gpus: str | None = flag("N,N,...")
    """Numbers of GPUs; also 64..1024, 64..16384x50.

    Numbers of GPUs, for `scaling` and `frontier`; one for `topology`.
    """
    between: str | None = flag("A,B")
    """frontier: two objectives, e.g. time,memory."""
    points: str | None = flag("N")
    """frontier: number of points, or all."""
    kind: str | None = flag("KIND")
    """scaling: strong, weak or stacked."""
    tokens: str | float | None = tokens_flag()
    price: str | None = flag("MONEY", panel="objective")
    """Price of one GPU-hour."""
    allow: tuple[str, ...] = flag("WORD", kind=list[str], default=())
    """ladder: parallel-block, window=N, batch=N.

    For `ladder`: what may change of the training.
    """
    time_limit: float | None = flag("SECONDS", minimum=0.001)
    """Time limit of all searches; default 120."""


P = TypeVar("P", bound="AnyPlan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRequest:
    """Request for a picture: files to draw, or plans with their ranked layouts, and options."""

    files: Sequence[Path] = ()
    plans: Sequence[AnyPlan] = ()
    estimates: Sequence[Estimate] = ()
    """Ranked layouts of an answer, best first; if empty, the plan is priced and rivals are searched for."""
    options: PlotOptions
    budget: Budget
    """Limits of the searches that the picture needs."""
    notes: list[str] = field(default_factory=list)
    """Notes on effects that the pictures leave out."""
    named: bool = True
    """Whether the picture's data are also read (`--csv`, `--json`), so that every layout needs its name."""

    def note(self, notes: Iterable[str]) -> None:
        """Add notes that the request does not have yet."""
        self.notes.extend(note for note in notes if note not in self.notes)

    def file(self, kind: str, subject: str) -> Path:
        """Only file of the request. Raises InputError if there are several."""
        if len(self.files) != 1:
            raise InputError(f"`{kind}` draws one {subject}, not {len(self.files)}")
        return self.files[0]

    def only(self, kind: str, plan_type: type[P]) -> P:
        """Only plan of the request. Raises InputError if there are several."""
        if len(self.plans) != 1:
            raise InputError(f"`{kind}` draws one plan, not {len(self.plans)}")
        return self.all(plan_type)[0]

    def all(self, plan_type: type[P]) -> list[P]:
        """Plans of the request, all of class `plan_type`. Raises InputError if one is of another class."""
        plans = [plan for plan in self.plans if isinstance(plan, plan_type)]
        if strangers := [plan for plan in self.plans if not isinstance(plan, plan_type)]:
            kinds = [f"`{plan.kind}` of {plan.model_name}" for plan in (plans[0], strangers[0])]
            raise InputError(f"plans of two kinds cannot be drawn together: {', '.join(kinds)}")
        return plans


Draw = Callable[[PictureRequest], Drawing]
PICTURES: dict[type, dict[str, Draw]] = defaultdict(dict)
"""Class of plans, or `Path` for files → kind of picture → function that draws it."""


def picture(kind: str, subject: type) -> Callable[[Draw], Draw]:
    """Decorator: register a function that draws a kind of picture for a class of plans, or for files (`Path`)."""

    def register(draw: Draw) -> Draw:
        """Register the function for the kind and subject, and return it."""
        PICTURES[subject][kind] = draw
        return draw

    return register
