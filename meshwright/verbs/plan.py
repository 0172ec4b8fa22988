"""`plan`: find the best layout with a proof, the largest model that fits, or a cache of embedding rows for
serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import Options, argument, as_keywords, flag, flags_of, given_flags, part_of, switch
from meshwright.inputs.options import (
    ClusterInput,
    Goal,
    Limits,
    ModelInput,
    Proving,
    Request,
    Searching,
    TrainingInput,
)
from meshwright.inputs.problems import refuse
from meshwright.verbs.contract import command, option_word, require_options, verbs_of_model, verbs_of_plan

if TYPE_CHECKING:
    from cost_models.specs.cluster import ClusterSpec
    from cost_models.specs.hardware import HardwareProfile
    from cost_models.specs.recommender.model import RecommenderSpec
    from meshwright.families.recommender.serving import ServedRecommender
    from meshwright.families.transformer.largest import Largest
    from meshwright.terminal.output import Output
    from meshwright.verbs.contract import PlanAnswer, PlanningQuestion


class LargestFlags(Options, kw_only=True):
    """Flags of `plan` that ask for the largest model of a family or the longest sequence."""

    largest: bool = switch()
    """Find the largest size of a model family that fits; see --largest --help."""
    longest: bool = switch()
    """Find the longest sequence of MODEL that fits."""
    by: str | None = flag("WHAT", only_with="largest")
    """Quantity that grows: depth (default), width or sequence."""


class LargestOptions(Searching, Limits, Request):
    """Options of `largest`: a question with a family as its model, and the quantity that grows."""

    training: TrainingInput = None
    _: KW_ONLY
    by: str | None = None


@as_keywords(LargestOptions)
def largest(options: LargestOptions) -> Largest:
    """Find the largest models of a family that fit: without offload, with each kind of offload, and with all kinds;
    prove that no larger size fits.

    A family is `llama` or `gpt`, and `by` is the quantity that grows: depth (number of blocks), width (with the depth
    of published sizes), or sequence (by 256 tokens at a time). By depth or sequence any model may take the place of
    the family. The rest of the question is given as for `plan`; without a training job a step has 8 sequences of
    2,048 tokens on each GPU.

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
    """
    from meshwright.families.transformer.largest import ask

    return ask(options).answer(options.spending)


def _answer_largest(options: PlanFlags, output: Output) -> None:
    """Answer `plan --largest` or `--longest`: read the question, search and print."""
    from meshwright.families.transformer.largest import ask
    from meshwright.terminal.progress import searching

    if options.longest:
        options = replace(options, largest=True, by=options.by or "sequence")
    require_options(verbs_of_model(options.model), "plan", ("largest",))

    def require_growth() -> None:
        """Raise InputError if flags of the largest size contradict each other."""
        if options.longest and options.by != "sequence":
            raise InputError("`--longest` is --by sequence", hint="leave --by out")
        if not options.largest:
            raise InputError("`--by` says what grows from size to size", hint="it goes with --largest")
        _refuse_others(options, LargestOptions, "--largest")

    question = output.read(lambda: ask(part_of(options, LargestOptions)), require_growth)
    output.print_notes(question)
    with searching(output, options.time_limit) as budget:
        answer = question.answer(budget)
    output = output if answer.fits else replace(output, out=None)
    output.finish(answer, interrupted="sizes that were not tried may fit" * budget.interrupted)


def _refuse_others(options: PlanFlags, question: type[Options], switch: str) -> None:
    """Raise InputError if flags are given that `plan` with the switch `switch` (`--largest` or `--serve`) does not
    take."""
    names = [*given_flags(options), *(name for name in ("top", "replay", "solver") if getattr(options, name))]
    known, reason = {one.name for one in fields(question)}, f"means nothing beside {switch}"
    problems = [Problem(option_word(name), reason) for name in names if name not in known]
    refuse(f"`{switch}` takes fewer flags", problems)


class Cache(Options, kw_only=True):
    """Options of the cache of embedding rows on each GPU that serves: its size, or the hit rate it must reach."""

    cache: str | float | None = flag("SIZE", only_with="serve")
    """Size of the cache; default: the memory that is left."""
    hits: str | float | None = flag("SHARE", only_with="serve")
    """Find the smallest cache with this hit rate, e.g. 95%."""
    batch: str | int | Sequence[int] | None = flag("N,N,...", only_with="serve")
    """Samples per request batch."""
    policy: str | None = flag("WHICH", only_with="serve")
    """Rows the cache keeps: hottest (default) or lru."""
    zipf: float | None = flag("S", minimum=0, maximum=5, only_with="serve")
    """Zipf exponent of tables that state none."""
    drive_rate: str | float | None = flag("RATE", only_with="serve")
    """Bandwidth of a node's drives, a tier below its memory."""


class CacheOptions(Cache):
    """Options of `plan_cache`: recommender, cluster, and the cache of embedding rows on each GPU."""

    model: str | Path | RecommenderSpec
    cluster: str | ClusterSpec
    _: KW_ONLY
    gpus: int | None = None
    precision: str | None = None
    profile: str | HardwareProfile | None = None
    host_memory: str | None = None


class CacheFlags(Cache, kw_only=True):
    """Flags of `plan` for serving a recommender: `--serve`, and those of the cache."""

    serve: bool = switch(listed_after="by")
    """Plan a recommender's cache on each GPU, not training; see --serve --help."""

    def require_serving(self) -> None:
        """Raise InputError if a flag of the cache is given without `--serve`."""
        names = [name for name in flags_of(Cache) if getattr(self, name) is not None and not self.serve]
        problems = [Problem(option_word(name), "goes with --serve") for name in names]
        refuse("flags of serving without `--serve`", problems)


@as_keywords(CacheOptions)
def plan_cache(options: CacheOptions) -> ServedRecommender:
    """Plan the cache of embedding rows on each GPU that serves a recommender: of a given size (`8GiB`; default: all
    memory left), or the smallest with a given hit rate (`95%`).

    `zipf` is the Zipf exponent of tables whose accesses the model does not describe, `precision` the type of cached
    vectors, `policy` is `hottest` or `lru`, `profile` holds measured rates (default: the nearest of the catalogue),
    and `drive_rate` is the read bandwidth of a node's drives, used if host memory does not hold all tables (default:
    the cluster's).

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
        InfeasibleError: the cache does not fit the GPU, or the tables the host.
    """
    from meshwright.families.recommender.serving import plan_cache

    return plan_cache(options)


def _answer_serving(options: PlanFlags, output: Output) -> None:
    """Answer `plan --serve`: plan the cache of embedding rows, and print."""
    from meshwright.families.recommender.serving import plan_cache
    from meshwright.inputs.problems import require_given
    from meshwright.inputs.questions import one_count

    hint = "meshwright plan recommender.yaml dgx-h100 --gpus 1 --serve --cache 8GiB"
    require_given({"MODEL": options.model, "CLUSTER": options.cluster}, "nothing to serve", hint)
    _refuse_others(options, CacheOptions, "--serve")
    output.check_places()
    count = one_count(options.gpus, "--serve asks about one")
    answer = plan_cache(replace(part_of(options, CacheOptions), gpus=count))
    output.assumed(answer.assumptions)
    output.finish(answer)


class PlanOptions(Proving, Goal, Limits, Request):
    """Options of `plan`: question, restrictions, objective, risk, solver and limits of the search."""

    model: ModelInput = field(default="", metadata=argument("MODEL", completion="models"))
    """Catalogue name, config.json or YAML."""
    cluster: ClusterInput = field(default="", metadata=argument("CLUSTER[,CLUSTER]", completion="clusters"))
    """Catalogue name or YAML file; several are ranked."""
    training: TrainingInput = flag("FILE", panel="job")
    """Training YAML; flags override it."""
    _: KW_ONLY
    gpus: int | str | Sequence[int] | None = flag("N", panel="machine")
    """GPUs to use; or a choice of sizes: 64,96 or 64..1024."""
    precision: str | Sequence[str] | None = flag("TYPE[,TYPE]", panel="job")
    """bf16, fp16, fp32, tf32, fp8 or fp4; of several, the fastest wins."""
    pick: str | None = flag("WHICH", panel="objective")
    """Plan to write: recommended (default) or fastest."""
    risk: str | None = flag("HOW", panel="objective")
    """Rank by the predicted step (none), its mean over scenarios (neutral) or their worst quarter (averse)."""
    today: str | None = flag("LAYOUT", panel="job")
    """Layout that you run today, with --measured."""
    measured: str | float | None = flag("STEP", panel="job")
    """Its step: 21.4s, '38% MFU' or the job's log; corrects expected steps."""
    top: int | None = flag("N", minimum=1, maximum=1000, panel="search", is_part_of_question=False)
    """Also print the N best layouts as a table."""

    @property
    def clusters(self) -> tuple[str | ClusterSpec, ...]:
        """Clusters to choose from, given as a list or names between commas; empty if only one is given."""
        from cost_models.files.reading import is_file

        if not isinstance(self.cluster, str):
            return tuple(self.cluster) if isinstance(self.cluster, (list, tuple)) else ()
        names = () if is_file(self.cluster) else tuple(name.strip() for name in self.cluster.split(","))
        return names if len(names) > 1 else ()

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of the options that were given."""
        return (*(("clusters",) if self.clusters else ()), *given_flags(self))

    def question(self) -> PlanningQuestion:
        """Read the question. Raises InputError listing all problems."""
        from cost_models.files.loading import read_once

        options = replace(self, model=read_once(self.model))
        verbs = verbs_of_model(options.model)
        require_options(verbs, "plan", options.option_names)
        return verbs.ask(options)


@as_keywords(PlanOptions)
def plan(options: PlanOptions) -> PlanAnswer:
    """Find the best layouts of a model on a cluster, with the proof; if several clusters are given, rank their best
    plans.

    Names and paths mean what they mean on the command line; `time_limit` is in seconds. The training job is a file or
    a `TrainingSpec`; `global_batch`, `sequence`, `precision`, `dropout` and `optimizer` replace its fields, or
    describe the job without one.

    Several `gpus` (a list, or text like `64..1024`) are sizes to choose from, several precisions (`bf16,fp8`)
    likewise. `objective`, `tokens`, `price`, `deadline` and `operations` (whose failures count) define the best plan.
    `trainer` names the trainer whose rules the plan obeys (`--for`), `allow` adds axes that a search leaves out (such
    as `offload`), `confidence` is the minimum probability of fitting in memory, and `host_memory` replaces the
    cluster's.

    `pick` chooses the layout that is saved as the plan: `recommended` (default) or `fastest` on paper. `risk` chooses
    the step time that is minimised: the predicted one (`none`), its mean over the profile's scenarios (`neutral`), or
    the mean of their slowest quarter (`averse`). `solver` is `search`, or `ilp` for one integer program over up to
    20,000 layouts. Several clusters have a price each, in their order, and get one plan for each number of GPUs.

    A transformer's answer is a `Planned` (a `Ranked` for several clusters), a recommender's a `ShardingPlanned`. For
    a recommender, `fix`, `forbid` and `together` restrict shardings; options that do not apply to it are errors.

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
        InfeasibleError: nothing fits, or nothing meets the deadline.
    """
    return options.question().answer(options.spending, options.top)


class PlanFlags(CacheFlags, LargestFlags, PlanOptions, kw_only=True):
    """Options of `meshwright plan`: those of `plan`, of the largest size, of a cache for serving, and `--replay`."""

    replay: Path | None = flag("PLAN", completion="plans")
    """Plan again the question of a plan file."""


@command(PlanFlags, head="Other questions", out="Write the plan to run.")
def plan_command(options: PlanFlags, output: Output) -> None:
    """Find the best layout and prove it."""
    from meshwright.render.words import sentence_list
    from meshwright.terminal.progress import searching

    if options.largest or options.longest or options.by is not None:
        _answer_largest(options, output)
        return
    if options.serve:
        _answer_serving(options, output)
        return
    if options.replay is not None:  # which takes everything from the plan file
        nouns = [name for name in ("model", "cluster") if getattr(options, name)]
        if words := list(dict.fromkeys(map(option_word, (*nouns, *options.option_names)))):
            hint = f"leave out {sentence_list(words)}"
            raise InputError("--replay takes its question from the plan", hint=hint)

    def read_question() -> PlanningQuestion:
        """Read the question from the options, or from the plan file of `--replay`."""
        if options.replay is None:
            return options.question()
        plan = output.load(options.replay)
        return verbs_of_plan(plan).ask_again(plan)

    question = output.read(read_question, options.require_serving)
    output.print_notes(question)
    with searching(output, options.time_limit) as budget:
        answer = question.answer(budget, options.top)
    extra_lines = [answer.more, "" if output.out else "`meshwright explain` of a plan file (-o) says why"]
    cut_short = "this is the best so far, and not proved" * budget.interrupted
    output.finish(answer, more=[*filter(None, extra_lines)], interrupted=cut_short)
