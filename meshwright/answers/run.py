"""Train with a plan from Python, and the answer: measured beside predicted."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from executor.launch.launch import run_plan
from executor.launch.torchrun import OnNote, OnStep
from executor.measure.report import RunReport
from executor.run_config import RunConfig
from meshwright.answers.estimated import Estimated
from meshwright.answers.planned import Planned
from meshwright.records.run_comparison import comparison
from meshwright.render.runs.run import comparison_rows, comparison_table
from planner.plan import Plan

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Ran:
    """What a run measured; notebooks show it beside what was predicted."""

    report: RunReport

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of every step, warm-up included."""
        return self.report.losses

    def to_frame(self) -> pd.DataFrame:
        """A row per quantity: `quantity`, `predicted`, `measured`, in base units, and `noise`, the share of `measured`
        that the middle half of the steps spans."""
        import pandas as pd

        return pd.DataFrame([asdict(line) for line in comparison(self.report)])

    def __repr__(self) -> str:
        return str(comparison_table(comparison(self.report)))

    def _repr_html_(self) -> str:
        html: str = self._in_words().to_html(index=False, border=0)
        return html

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright run`."""
        import pandas as pd

        rows = comparison_rows(comparison(self.report))
        return pd.DataFrame(rows, columns=["", "predicted", "measured", "error", "noise"])


def run(
    plan: Planned | Estimated | Plan | str | Path,
    *,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
    name: str | None = None,
    **flags: Any,
) -> Ran:
    """Train with a plan or a plan file on this machine, each rank in its own process.

    What can be asked for is what `meshwright run` has flags for, by the same names and with the same defaults, but for
    `out`, without which nothing is kept; `executor.run_config.RunConfig` says of each what it is.

    The learning rate rises to `learning_rate` over `rate_warm_up` steps and, with `rate_decay`, falls to a tenth by
    that step. With `checkpoint`, a folder, the state is saved `every` so many steps and the newest `keep` stay;
    `resume` goes on from there, on this plan or on another, and lost ranks are started again, at most `restarts` times.
    Several `nodes` meet at `rendezvous`, `host:port`, and each calls it.

    `on_step` is called with step, loss, gradient_norm, seconds and measured (False in the warm-up), `on_note` with what
    a person should know: a resume, a restart. Errors call the plan by `name`, or by its file's.

    Raises:
        InputError: the plan cannot be trained, or not so, or the checkpoint is another run's.
        HostError: this machine has too few devices.
        RunError: a rank failed, was lost or ran out of memory.
        StoppedError: Ctrl-C or SIGTERM; the step was finished, and saved where there is somewhere to.
    """
    report = run_plan(
        plan.plan if isinstance(plan, (Planned, Estimated)) else plan,
        RunConfig(**flags),
        on_step=on_step,
        on_note=on_note,
        name=name,
    )
    return Ran(report=report)


def _with_flags() -> inspect.Signature:
    """The signature of `run` as a person should see it: with every field of the record in the place of `flags`."""
    plain = inspect.signature(run)
    *own, _ = plain.parameters.values()
    types = get_type_hints(RunConfig)  # without their bounds
    fields = inspect.signature(RunConfig).parameters.values()
    return plain.replace(
        parameters=[*own, *(field.replace(annotation=types[field.name]) for field in fields)]
    )


run.__signature__ = _with_flags()  # type: ignore[attr-defined]
