"""`forecast`: the day on which a training job ends, with failures, restarts and checkpoints."""

from __future__ import annotations

from dataclasses import KW_ONLY, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import as_keywords, flag, plan_file
from meshwright.inputs.options import Ending, Operations, tokens_flag
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from meshwright.verbs.forecast.forecasted import Forecasted
    from planner.plan import Plan


class ForecastOptions(Ending, Operations):
    """Options of `forecast`: plan, tokens, operations (or a run report with checkpoints), price, start and checkpoint
    interval."""

    plan: Plan | HasPlan | str | Path = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    tokens: str | float | None = tokens_flag()
    _: KW_ONLY
    every: int | None = flag("STEPS", minimum=1)
    """Steps between checkpoints; default: the best."""


@as_keywords(ForecastOptions)
def forecast(options: ForecastOptions) -> Forecasted:
    """Forecast when a plan's training job ends, with failures, restarts and checkpoints.

    `operations` are failure rates, restart times and storage: a catalogue name (default `llama3`), a file, a spec, or
    the report of a run with checkpoints; `mtbf`, `restart`, `storage` and `spares` replace parts of them. With the
    `price` of a GPU-hour the answer holds the job's cost, with a `start` date the day on which it ends.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
        InfeasibleError: the job never ends.
    """
    from meshwright.verbs.forecast.forecasted import ask

    answer = ask(options)
    _ = answer.outlook  # raises where the job never ends
    return answer


@command(ForecastOptions)
def forecast_command(options: ForecastOptions, output: Output) -> None:
    """Say when training ends with failures, and how often to save."""
    from meshwright.verbs.forecast.forecasted import ask
    from planner.plan import load_plan

    plan = load_plan(str(options.plan))
    output.remark(plan.notes)
    answer = ask(replace(options, plan=plan))
    output.assumed(answer.assumptions)
    output.show(answer)
