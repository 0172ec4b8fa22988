"""Function `run` of the Python API, whose keywords are the fields of `executor.run_config.RunConfig`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from cost_models.errors import InputError
from executor.run_config import RunConfig
from meshwright.inputs.options import AUTO
from meshwright.verbs.contract import verbs_of_plan

if TYPE_CHECKING:
    from cost_models.specs.cluster import OperationsSpec
    from executor.families import OnNote
    from executor.launch.launch import OnStep
    from meshwright.inputs.plans import HasPlan
    from meshwright.verbs.ran import AnyRan
    from planner.plan import AnyPlan


def run(
    plan: AnyPlan | HasPlan | str | Path,
    *,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
    name: str | None = None,
    operations: str | OperationsSpec | None = None,
    **flags: Any,
) -> AnyRan[Any]:
    """Train with a plan or a plan file on this machine, each rank in its own process.

    Further keywords are the flags of `meshwright run`, with the same names and defaults, except that without `out` no
    report is saved; `executor.run_config.RunConfig` describes each.

    The learning rate rises to `learning_rate` over `rate_warm_up` steps and, with `rate_decay`, falls to a tenth by
    that step. With the folder `checkpoint`, the state is saved `every` so many steps, and the newest `keep`
    checkpoints stay. `resume` continues from there, on this plan or another; lost ranks are restarted at most
    `restarts` times. `every="auto"` saves as often as `forecast` finds best under `operations`: a catalogue name, a
    file or a spec (default: those of the plan, else `llama3`). Each of several `nodes` calls `run`, and all meet at
    `rendezvous` (`host:port`).

    `on_step` is called with step, loss, gradient_norm, seconds and measured (False in the warm-up), `on_note` with
    notes for the user, such as a restart. Errors name the plan by `name`, or by its file's name.

    Raises:
        InputError: the plan cannot be trained, or not so, or the checkpoint is another run's.
        HostError: this machine has too few devices.
        RunError: a rank failed, was lost or ran out of memory.
        StoppedError: Ctrl-C or SIGTERM; the step was finished, and saved where there is somewhere to.
    """
    from cost_models.units import counted
    from executor.launch.launch import run_plan
    from meshwright.inputs.plans import any_plan_of

    name = name or (Path(plan).name if isinstance(plan, (str, Path)) else None)
    loaded = any_plan_of(plan)
    if flags.get("every") == AUTO:
        from meshwright.verbs.forecast.forecasted import steps_between_checkpoints

        steps, restarts = flags.get("steps", RunConfig().steps), flags.get("restarts")
        every, operations_name = steps_between_checkpoints(loaded, steps, operations, restarts=restarts)
        flags["every"] = every
        if on_note is not None:
            on_note(f"Saving every {counted(every, 'step')}, as is best with operations {operations_name}")
    elif operations is not None:
        raise InputError("--operations says how often to save only with --every auto")
    config = RunConfig(**flags)
    report = run_plan(loaded, config, on_step=on_step, on_note=on_note, name=name)
    return verbs_of_plan(loaded).ran(report, config.steps)


def _with_flags() -> inspect.Signature:
    """Signature of `run` for documentation, with every field of `RunConfig` in place of `flags`."""
    plain = inspect.signature(run)
    *parameters, _ = plain.parameters.values()
    types = get_type_hints(RunConfig)  # without their bounds
    RunConfig.model_rebuild()  # a spec has no signature before it is built
    fields = inspect.signature(RunConfig).parameters.values()
    typed = [field.replace(annotation=types[field.name]) for field in fields]
    return plain.replace(parameters=[*parameters, *typed])


run.__signature__ = _with_flags()  # type: ignore[attr-defined]
