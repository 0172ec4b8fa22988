"""`plan`: the best way to train a model on a cluster, with the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError
from cost_models.flags import argument, as_keywords, flag, given_flags, output_flag
from meshwright.inputs.options import Goal, Limits, Proving, Request
from meshwright.verbs.contract.answers import PlanAnswer
from meshwright.verbs.contract.command import command
from meshwright.verbs.contract.family import (
    PlanAsked,
    option_word,
    require_options,
    verbs_of_model,
    verbs_of_plan,
)
from meshwright.verbs.largest import LargestFlags, answer_largest
from meshwright.verbs.plan_cache import CacheFlags, answer_serving

if TYPE_CHECKING:
    from cost_models.documents import Document
    from cost_models.specs.cluster import ClusterSpec, MixedCluster
    from cost_models.specs.recommender.model import RecommenderSpec
    from cost_models.specs.recommender.training import RecommenderTraining
    from cost_models.specs.training import TrainingSpec
    from cost_models.specs.transformer import TransformerSpec
    from meshwright.terminal.output import Output


@dataclass(frozen=True)
class PlanOptions(Proving, Goal, Limits, Request):
    """What `plan` takes."""

    model: str | TransformerSpec | RecommenderSpec | Document = field(
        default="", metadata=argument("MODEL", "Catalogue name, config.json or YAML.", completion="models")
    )
    cluster: str | ClusterSpec | MixedCluster | Sequence[str | ClusterSpec] = field(
        default="",
        metadata=argument(
            "CLUSTER[,CLUSTER]", "Catalogue name or YAML file; of several the best.", completion="clusters"
        ),
    )
    training: str | Path | TrainingSpec | RecommenderTraining | None = flag(
        "FILE", "Training YAML; flags override it.", panel="job"
    )
    _: KW_ONLY
    gpus: int | str | Sequence[int] | None = flag(
        "N", "GPUs to use; a choice: 64,96 or 64..1024.", panel="machine"
    )
    precision: str | Sequence[str] | None = flag(
        "TYPE[,TYPE]", "bf16, fp16, fp32, tf32, fp8 or fp4; of several the fastest.", panel="job"
    )
    pick: str | None = flag("WHICH", "Plan to write: recommended (default) or fastest.", panel="objective")
    risk: str | None = flag("HOW", "Minimise the step on paper (none), neutral or averse.", panel="objective")
    top: int | None = flag(
        "N",
        "Also print the best N as a table.",
        kind=int,
        minimum=1,
        maximum=1000,
        panel="search",
        is_part_of_question=False,
    )

    @property
    def clusters(self) -> tuple[str | ClusterSpec, ...]:
        """The clusters to choose from, where there are several: a list, or names between commas."""
        from cost_models.files.reading import is_file

        if not isinstance(self.cluster, str):
            return tuple(self.cluster) if isinstance(self.cluster, (list, tuple)) else ()
        names = () if is_file(self.cluster) else tuple(name.strip() for name in self.cluster.split(","))
        return names if len(names) > 1 else ()

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that were said."""
        return (*(("clusters",) if self.clusters else ()), *given_flags(self))

    def question(self) -> PlanAsked:
        """Read the question. Raises InputError: everything that is wrong, at once."""
        from cost_models.files.loading import read_once

        options = replace(self, model=read_once(self.model))
        verbs = verbs_of_model(options.model)
        require_options(verbs, "plan", options.given)
        return verbs.ask(options)


@as_keywords(PlanOptions)
def plan(options: PlanOptions) -> PlanAnswer:
    """Find the best layouts of a model on a cluster, with the proof; of several clusters rank their best plans.

    Names and paths mean what they mean on the command line; `time_limit` is in seconds. The training job is a file,
    a `TrainingSpec`, or said by `global_batch`, `sequence`, `precision`, `dropout` and `optimizer`, which replace its
    fields.
    Several `gpus`, as a list or written like `64..1024`, are a choice, and so are several precisions (`bf16,fp8`);
    `objective`, `tokens`, `price`, `deadline` and `operations` (failures that count) say what the best is. A `trainer`
    is one whose rules the plan obeys (`--for`), `allow` opens what a search leaves alone (`offload`), and `confidence`
    is the least probability with which it must fit; `host_memory` replaces the cluster's. `pick` is which layout is
    saved as the plan: `recommended` (the default) or `fastest` on paper, and `risk` what of a step is minimised
    (`none`, `neutral`, `averse`: that on paper, its mean over the profile's scenarios, that of the slowest quarter of
    them); `solver` is what proves it (`search`, or `ilp`: one integer program over up to 20,000 layouts). Several
    clusters have a price each, in their order, and one plan on each number of GPUs.

    A transformer's answer is a `Planned` (of several clusters a `Ranked`), a recommender's a `ShardingPlanned`: `fix`,
    `forbid` and `together` are words of shardings then, and options that mean nothing to it are refused.

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
        InfeasibleError: nothing fits, or nothing meets the deadline.
    """
    return options.question().answer(options.top, options.spending)


@dataclass(frozen=True, kw_only=True)
class PlanFlags(CacheFlags, LargestFlags, PlanOptions):
    """What `meshwright plan` takes: also the largest size, a cache for serving, and the question of a plan file."""

    replay: Path | None = flag("PLAN", "Ask a plan file's question.", kind=Path, completion="plans")
    out: Path | None = output_flag("Write the plan to run.")


@command(PlanFlags, name="plan", rest="Other questions")
def plan_command(options: PlanFlags, output: Output) -> None:
    """Find the best layout and prove it."""
    from meshwright.inputs.problems import Problems
    from meshwright.terminal.progress import searching

    if options.largest or options.longest or options.by is not None:
        answer_largest(options, output)
        return
    if options.serve:
        answer_serving(options, output)
        return
    problems = Problems()
    problems.read(options.require_serving)
    if options.replay is not None:
        _require_nothing_else(options)
    question = problems.read(
        lambda: _asked_again(options.replay, output) if options.replay else options.question()
    )
    problems.read(lambda: output.check_places(options.out))
    problems.require()
    assert question is not None
    output.tell_of(question)
    with searching(output, options.time_limit) as budget:
        answer = question.answer(options.top, budget)
    output.show(answer, options.out)
    for remark in answer.remarks(interrupted=budget.interrupted):
        output.note(remark)
    more = [answer.more, "" if options.out else "`meshwright explain` of a plan file (-o) says why"]
    if not output.json and any(more):
        output.note(f"more: {', '.join(filter(None, more))}")
    output.wrote(options.out, answer.next_commands)
    if budget.interrupted:
        output.end_interrupted("this is the best so far, and not proved")


def _asked_again(replay: Path, output: Output) -> PlanAsked:
    """The question of a plan file. Raises InputError."""
    plan = output.load(replay)
    return verbs_of_plan(plan).ask_again(plan)


def _require_nothing_else(options: PlanOptions) -> None:
    """Raises InputError where something is asked beside `--replay`, which takes everything from the plan file."""
    from meshwright.render.words import sentence_list

    nouns = [name for name in ("model", "cluster") if getattr(options, name)]
    if words := list(dict.fromkeys(map(option_word, (*nouns, *options.given)))):
        raise InputError(
            "--replay takes its question from the plan", hint=f"leave out {sentence_list(words)}"
        )
