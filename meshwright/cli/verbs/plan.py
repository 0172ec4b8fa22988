"""`meshwright plan`: search, rank, prove, recommend, and write the plan to run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places

if TYPE_CHECKING:
    from meshwright.families.verbs import PlanAsked
    from meshwright.inputs.plan_inputs import PlanInputs


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Catalogue name, config.json or YAML.", autocompletion=completion.models
        ),
    ] = "",
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER[,CLUSTER]",
            help="Catalogue name or YAML file; of several the best.",
            autocompletion=completion.clusters,
        ),
    ] = "",
    gpus: o.GpuChoice = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
    precision: o.Precisions = None,
    dropout: o.Dropout = None,
    optimizer: o.Optimizer = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    fix: o.Fix = None,
    forbid: o.Forbid = None,
    allow: o.Allow = None,
    together: o.Together = None,
    max_memory: o.MaxMemory = None,
    confidence: o.Confidence = None,
    host_memory: o.HostMemory = None,
    trainer: o.For = None,
    objective: Annotated[
        str | None,
        o.optional(
            "--objective", "WHAT", "time, mfu, gpu-hours, cost, memory or gpus; default time, or cost."
        ),
    ] = None,
    tokens: o.Tokens = None,
    price: o.Prices = None,
    deadline: o.Deadline = None,
    operations: o.Operations = None,
    pick: Annotated[
        str | None, o.optional("--pick", "WHICH", "Plan to write: recommended (default) or fastest.")
    ] = None,
    risk: Annotated[
        str | None, o.optional("--risk", "HOW", "Minimise the step on paper (none), neutral or averse.")
    ] = None,
    top: Annotated[int | None, o.optional("--top", "N", "Plans to rank; default 5.", min=1, max=1000)] = None,
    time_limit: o.TimeLimit = o.TIME_LIMIT,
    largest: Annotated[
        bool, typer.Option("--largest", help="MODEL is a family: its largest size that fits.")
    ] = False,
    by: Annotated[str | None, o.optional("--by", "WHAT", "largest: depth (default) or width grows.")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="A recommender's cache on each GPU, not training.")
    ] = False,
    cache: Annotated[
        str | None, o.optional("--cache", "SIZE", "serve: of the cache; default what is left.")
    ] = None,
    hits: Annotated[
        str | None, o.optional("--hits", "SHARE", "serve: the smallest cache with it, e.g. 95%.")
    ] = None,
    batch: Annotated[str | None, o.optional("--batch", "N,N,...", "serve: samples answered at once.")] = None,
    policy: Annotated[
        str | None, o.optional("--policy", "WHICH", "serve: keep rows used hottest (default) or lru.")
    ] = None,
    zipf: Annotated[
        float | None, o.optional("--zipf", "S", "serve: of tables that do not say.", min=0, max=5)
    ] = None,
    drive_rate: Annotated[
        str | None, o.optional("--drive-rate", "RATE", "serve: of a node's drives, below its memory.")
    ] = None,
    replay: Annotated[
        Path | None, o.optional("--replay", "PLAN", "Ask a plan file's question.", offers=completion.plans)
    ] = None,
    out: Annotated[Path | None, o.out("Write the plan to run.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Find the best layout and prove it."""
    from dataclasses import asdict, replace

    from cost_models.files.models import read_once
    from meshwright.cli.largest import answer_largest
    from meshwright.cli.progress import searching
    from meshwright.cli.serving import ServingFlags, answer_serving
    from meshwright.families import verbs_of_model
    from meshwright.families.options import require_options
    from meshwright.inputs.goals import Goal
    from meshwright.inputs.limits import Limits
    from meshwright.inputs.plan_inputs import PlanInputs
    from meshwright.inputs.problems import Problems
    from meshwright.inputs.questions import Inputs

    output = Output(json=json, csv=csv, quiet=quiet)
    inputs = Inputs(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        dropout=dropout,
        optimizer=optimizer,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
        confidence=confidence,
        host_memory=host_memory,
    )
    limits = Limits(
        fix=tuple(fix or ()),
        forbid=tuple(forbid or ()),
        allow=tuple(allow or ()),
        together=tuple(together or ()),
        max_memory=max_memory,
    )
    goal = Goal(objective=objective, tokens=tokens, price=price, deadline=deadline, operations=operations)
    clusters = _clusters_in(cluster)
    asked = PlanInputs(
        inputs=inputs, clusters=clusters, gpus=gpus, goal=goal, limits=limits, pick=pick, risk=risk
    )
    if largest or by is not None:
        require_options(verbs_of_model(model), "plan", ("largest",))
        others: dict[str, object] = {
            "price": price,
            "tokens": tokens,
            "deadline": deadline,
            "operations": operations,
            "objective": objective,
            "pick": pick,
        }
        others |= {"risk": risk, "top": top, "replay": replay}
        answer_largest(largest, inputs, by, gpus, limits, others, time_limit, out, output)
        return
    serving = ServingFlags(
        cache=cache, hits=hits, batch=batch, policy=policy, zipf=zipf, drive_rate=drive_rate
    )
    if serve:
        others = {
            **asdict(replace(inputs, model="", cluster="", precision=None, host_memory=None)),
            **asdict(limits),
            **asdict(goal),
            "pick": pick,
            "risk": risk,
            "top": top,
            "replay": replay,
        }
        answer_serving(model, cluster, gpus, precision, host_memory, serving, others, out, output)
        return
    problems = Problems()
    problems.read(serving.require_meant)
    if replay is None:
        asked = replace(asked, inputs=replace(inputs, model=read_once(model)))
        verbs = verbs_of_model(asked.inputs.model)
        require_options(verbs, "plan", asked.given)
        question = problems.read(lambda: verbs.ask(asked))
    else:
        _require_nothing_else(asked)
        question = problems.read(lambda: _asked_again(replay))
    problems.read(lambda: check_places(("-o", out), ("--csv", csv)))
    problems.require()
    assert question is not None
    output.assumed(question.assumptions)
    output.remark(question.notes)
    with searching(output, time_limit) as budget:
        answer = question.answer(top, budget)
    output.show(answer, files=[] if out is None else [lambda: answer.save(out)])
    for remark in answer.remarks(interrupted=budget.interrupted):
        output.note(remark)
    if out is not None:
        output.note(f"Wrote {out}. Next: {answer.next_commands(out)}")
    if budget.interrupted:
        output.end_interrupted("this is the best so far, and not proved")


def _clusters_in(text: str) -> tuple[str, ...]:
    """The names between commas where there are several; the name of a file may have commas of its own."""
    from cost_models.files.reading import is_file

    names = () if is_file(text) else tuple(name.strip() for name in text.split(","))
    return names if len(names) > 1 else ()


def _asked_again(replay: Path) -> PlanAsked:
    """The question of a plan file. Raises InputError."""
    from meshwright.families import verbs_of_plan
    from planner.plan_files import load_any_plan

    plan = load_any_plan(replay)
    return verbs_of_plan(plan).ask_again(plan)


def _require_nothing_else(asked: PlanInputs) -> None:
    """Raises InputError where something is asked beside `--replay`, which takes everything from the plan file."""
    from cost_models.errors import InputError
    from meshwright.families.options import option_word
    from meshwright.render.words import sentence_list

    if asked.given:
        words = list(dict.fromkeys(map(option_word, asked.given)))
        raise InputError(
            "--replay takes its question from the plan", hint=f"leave out {sentence_list(words)}"
        )
