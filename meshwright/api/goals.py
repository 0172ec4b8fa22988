"""From flags to an objective, and to the numbers of GPUs to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.files.amounts import read_duration, read_price, read_tokens
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.specs.pools import MixedCluster
from meshwright.api.problems import Together
from meshwright.api.questions import Asked, questions_of
from planner.objectives import OBJECTIVES, Objective
from planner.space.gpu_counts import SIZES_HINT, parse_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What `--objective`, `--tokens`, `--price` and `--deadline` say."""

    objective: str | None = None
    """None: the cost where there is a price, else time."""
    tokens: str | float | None = None
    price: str | float | Sequence[float] | None = None
    """Of one GPU-hour; of several clusters one for each, in their order."""
    deadline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aimed:
    """A question with what its answer should be best at."""

    question: Question
    objective: Objective
    sizes: tuple[int, ...]
    """Numbers of GPUs to choose from; empty: the question's own."""
    precisions: tuple[Precision, ...] = ()
    """Types of matrix products to choose from; empty: the question's own."""
    assumptions: tuple[str, ...] = ()


def objective_of(goal: Goal) -> tuple[Objective, float | None]:
    """The objective and the tokens to train on.

    Raises:
        InputError: everything that cannot be read, at once.
    """
    problems: list[Problem] = []
    prices: tuple[float, ...] = ()
    try:
        prices = read_prices(goal.price)
    except ValueError as error:
        problems.append(Problem("--price", str(error)))
    if len(prices) > 1:
        problems.append(Problem("--price", f"names {len(prices)} prices for one cluster"))
    asked = goal.objective or ("cost" if goal.price is not None else "time")
    name = next((known for known in OBJECTIVES if known == asked), None)
    if name is None:
        known = ", ".join(f"`{one}`" for one in OBJECTIVES)
        what = f"`{asked}` is not one of {known}{did_you_mean(asked, OBJECTIVES)}"
        problems.append(Problem("--objective", what))
    tokens = deadline = None
    try:
        tokens = None if goal.tokens is None else read_tokens(goal.tokens)
    except ValueError as error:
        problems.append(Problem("--tokens", str(error)))
    try:
        deadline = None if goal.deadline is None else read_duration(goal.deadline)
    except ValueError as error:
        problems.append(Problem("--deadline", str(error)))
    if problems or name is None:
        raise InputError("the objective cannot be read", problems=problems)
    return Objective(name=name, price=prices[0] if prices else None, deadline=deadline), tokens


def read_prices(price: str | float | Sequence[float] | None) -> tuple[float, ...]:
    """`2.5`, `$2.50` or `2.5,3.5,5` → numbers. Raises ValueError."""
    if price is None:
        return ()
    words = (
        price.split(",") if isinstance(price, str) else [price] if isinstance(price, (int, float)) else price
    )
    return tuple(map(read_price, words))


def aimed(asked: Asked, gpus: str | None, goal: Goal) -> Aimed:
    """The question, what its answer should be best at, and the numbers of GPUs to choose from.

    Raises:
        InputError: an argument is missing or wrong; everything that is, at once.
    """
    together = Together()
    aim = together.read(lambda: objective_of(goal))
    single = _single(gpus)
    found = together.read(lambda: questions_of(replace(asked, gpus=single)))
    sizes: tuple[int, ...] | None = ()
    if found is not None and gpus is not None and single is None:
        sizes = together.read(lambda: _sizes(asked, gpus, found[0][0]))
    if aim is not None and aim[0].name == "gpus" and found is not None and not sizes:
        sizes = together.read(lambda: _up_to(asked, single, found[0][0]))
    together.require()
    assert found is not None
    assert aim is not None
    assert sizes is not None
    questions, assumptions = found
    question, (objective, tokens) = questions[0], aim
    precisions = tuple(one.training.precision for one in questions) if len(questions) > 1 else ()
    if tokens is not None:
        training = question.training.model_copy(update={"tokens": tokens})
        question = replace(question, training=training)
    objective.require_complete(question)
    if sizes:  # nodes are whole in the question, whatever part of one is chosen
        question = replace(question, cluster=_whole_nodes(asked))
    return Aimed(
        question=question, objective=objective, sizes=sizes, precisions=precisions, assumptions=assumptions
    )


def _single(gpus: str | None) -> int | None:
    """The one number that `--gpus` says, or None."""
    word = (gpus or "").strip()
    return int(word) if word.removeprefix("-").isdecimal() and len(word) < 100 else None


def _sizes(asked: Asked, gpus: str, question: Question) -> tuple[int, ...]:
    _whole_nodes(asked)
    sizes = parse_sizes(gpus, question)
    resolve_cluster(asked.cluster, max(sizes))  # a cluster of a file ends where the file says
    return sizes


def _up_to(asked: Asked, most: int | None, question: Question) -> tuple[int, ...]:
    """Doublings from one node to the given number of GPUs."""
    whole = _whole_nodes(asked)
    if most is None:
        raise InputError(
            "`--objective gpus` cannot be answered",
            problems=[Problem("--gpus", "missing: which numbers of GPUs there are to choose from")],
            hint=SIZES_HINT,
        )
    return parse_sizes(f"{min(whole.gpus_per_node, most)}..{most}", replace(question, cluster=whole))


def _whole_nodes(asked: Asked) -> ClusterSpec:
    """The cluster, its nodes whole whatever part of one may be chosen."""
    cluster = resolve_cluster(asked.cluster)
    if isinstance(cluster, MixedCluster):
        raise InputError(
            f"the number of GPUs of `{cluster.name}` is no choice: it has several pools",
            hint="change the pools in its file",
        )
    return cluster
