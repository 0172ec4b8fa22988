"""Read the objective of an answer, the amount to train on, the cluster's operations, and the restrictions of a
plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast, get_args

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.files.catalog import load_operations
from cost_models.files.loading import read_duration, read_price, read_tokens
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.specs.cluster import OperationsSpec
from cost_models.units import format_count, grouped, parse_bandwidth, parse_bytes, parse_seconds
from meshwright.inputs.options import Amount, Goal, Limits, Operations
from meshwright.inputs.problems import Problems, read_flag
from planner.objectives import OBJECTIVES, PROOFS, Objective, Proof
from planner.space.restrictions import Restrictions, parse_restrictions

Pick = Literal["recommended", "fastest"]
"""Choice of the layout that a plan holds: the recommended one to run, or the fastest on paper."""
MOST_EPOCHS = 1e6
PICKS: tuple[Pick, ...] = get_args(Pick)
Word = TypeVar("Word", bound=str)


def proof_of(word: str | None) -> Proof:
    """Read `--solver`, the method that proves the answer; `search` if the flag is not given. Raises InputError for an
    unknown word."""
    return choice_of(PROOFS, word or "search", "--solver", "cannot tell what proves the answer")


def choice_of(words: Sequence[Word], word: str, flag: str, headline: str) -> Word:
    """Check that a flag's value is one of `words` and return it. Raises InputError naming all choices if it is
    not."""
    *others, last = (f"`{known}`" for known in words)
    return known_word(words, word, flag, headline, f"is not {', '.join(others)} or {last}")


def known_word(words: Sequence[Word], word: str, flag: str, headline: str, reason: str = "") -> Word:
    """Check that a flag's value is one of `words` and return it. Raises InputError with `reason` if it is not."""
    if word in words:
        return cast(Word, word)
    reason = reason or f"is not one of {', '.join(f'`{known}`' for known in words)}"
    text = f"`{printable(word)}` {reason}{did_you_mean(word, words)}"
    raise InputError(headline, problems=[Problem(flag, text)])


def objective_of(goal: Goal) -> tuple[Objective, float | None]:
    """Read the objective, and the number of tokens to train on (None if not given). Raises InputError listing every
    flag that cannot be read."""
    problems, unread = Problems(), "the objective cannot be read"
    price, tokens = _amounts(goal, problems, unread)
    word = goal.objective or ("cost" if goal.price is not None else "time")
    name = problems.read(known_word, OBJECTIVES, word, "--objective", unread)
    deadline = problems.read(read_flag, "--deadline", goal.deadline, read_duration, unread)
    operations = goal.operations
    if isinstance(operations, str):
        operations = problems.read(read_flag, "--operations", operations, load_operations, unread)
    problems.require(unread)
    return Objective(name=name, price=price, deadline=deadline, operations=operations), tokens


def _amounts(amounts: Amount, problems: Problems, unread: str) -> tuple[float | None, float | None]:
    """Read the flags `--price` (of a GPU-hour on one cluster) and `--tokens` (to train on); None for a flag that is
    not given."""
    prices = problems.read(read_flag, "--price", amounts.price, read_prices, unread) or ()
    if len(prices) > 1:
        several = Problem("--price", f"names {len(prices)} prices for one cluster")
        problems.errors.append(InputError(unread, problems=[several]))
    return next(iter(prices), None), problems.read(read_flag, "--tokens", amounts.tokens, read_tokens, unread)


def trained_at(amounts: Amount, question: Question) -> tuple[Question, Objective, tuple[str, ...]]:
    """Question with the number of tokens to train on, objective with the price of a GPU-hour, and sentences on how
    samples became tokens.

    Raises:
        InputError: an amount cannot be read, or there is a price of nothing.
    """
    problems, unread = Problems(), "what is trained on cannot be read"
    price, tokens = _amounts(amounts, problems, unread)
    problems.require(unread)
    question, assumptions = trained_on(amounts, tokens, question)
    if price is not None and question.training.tokens is None:
        hint = "add --tokens 1B, or --samples 50K --epochs 3"
        raise InputError("`--price` is that of training on so many tokens", hint=hint)
    return question, Objective(price=price), assumptions


def trained_on(goal: Amount, tokens: float | None, question: Question) -> tuple[Question, tuple[str, ...]]:
    """Question with the number of tokens to train on, from `tokens` or from samples (documents or sequences) and else
    its own, and words on how samples were read.

    Raises:
        InputError: samples cannot be read, or contradict what else is said.
    """
    if goal.samples is None:
        if goal.epochs is not None:
            hint = "--samples 50K --epochs 3, or --tokens for all of them"
            raise InputError("`--epochs` says how often samples are gone through", hint=hint)
        return (question if tokens is None else question.updated("training", tokens=tokens)), ()
    if tokens is not None:
        raise InputError("`--tokens` and `--samples` both say how much is trained on", hint="leave out one")
    epochs, training = 1.0 if goal.epochs is None else goal.epochs, question.training
    try:
        samples = read_tokens(goal.samples)
        if not 0 < epochs <= MOST_EPOCHS:
            raise ValueError(f"`{epochs:g}` is no number of epochs")
    except ValueError as error:
        raise InputError(f"--samples, --epochs: {error}") from None
    repeats = f"{epochs:g} epochs of " if epochs != 1 else ""
    unit = "a sequence of" if training.lengths is None else "a document of on average"
    unit = "an image of" if question.model.diffusion else unit
    unit = unit if not (training.reference or training.reward) else "a pair of sequences of together"
    sample = training.tokens_per_sample
    words = f"{repeats}{format_count(samples)} samples, each {unit} {grouped(round(sample))} tokens"
    return question.updated("training", tokens=samples * epochs * sample), (words,)


def read_prices(price: str | float | Sequence[float]) -> tuple[float, ...]:
    """Parse prices of a GPU-hour: `2.5`, `$2.50` or `2.5,3.5,5`. Raises ValueError."""
    words = price.split(",") if isinstance(price, str) else price
    return tuple(map(read_price, [words] if isinstance(words, (int, float)) else words))


DEFAULT_OPERATIONS = "llama3"
"""Name of the operations that are used if none are named."""


def operations_of(options: Operations) -> OperationsSpec:
    """Read the operations (failure rates and storage); flags override fields of the catalogue entry or file.

    Raises:
        InputError: everything that cannot be read, at once.
    """
    problems, unread, source = Problems(), "the operations cannot be read", options.operations
    base = source if isinstance(source, OperationsSpec) else load_operations(source or DEFAULT_OPERATIONS)
    mtbf = problems.read(read_flag, "--mtbf", options.mtbf, _duration, unread)
    restart = problems.read(read_flag, "--restart", options.restart, _duration, unread)
    storage = problems.read(read_flag, "--storage", options.storage, parse_bandwidth, unread)
    if options.spares is not None and options.spares < 0:
        reason = f"must not be below zero, and is {options.spares}"
        problems.errors.append(InputError(unread, problems=[Problem("--spares", reason)]))
    problems.require(unread)
    # as files have them, so that they are checked as a file's are
    amounts = {"mtbf": (mtbf, " s"), "restart": (restart, " s"), "storage_write": (storage, " B/s")}
    fields: dict[str, Any] = base.model_dump(mode="json")
    fields |= {name: f"{value}{unit}" for name, (value, unit) in amounts.items() if value is not None}
    fields |= {} if options.spares is None else {"spares": options.spares}
    return OperationsSpec.model_validate(fields | ({} if storage is None else {"storage_read": None}))


def _duration(text: str) -> float:
    """Parse a duration like `50000h`, or a spec's `50000 h`, into seconds."""
    try:
        return read_duration(text)
    except ValueError:
        return parse_seconds(text)


def restrictions_of(limits: Limits, trainer: str | None = None) -> Restrictions:
    """Read the restrictions of a plan: `--fix`, `--forbid`, `--allow`, `--max-memory`, and a trainer whose rules hold.

    Raises:
        InputError: a word that cannot be read; all of them at once.
    """
    problems = Problems()
    restrictions = problems.read(parse_restrictions, limits.fix, limits.forbid, allow=limits.opened)
    size = problems.read(read_flag, "--max-memory", limits.max_memory, parse_bytes)
    problems.require()
    return replace(restrictions, max_memory=size, trainer=trainer)


def confident(restrictions: Restrictions, question: Question) -> Restrictions:
    """Restrictions whose memory limit is lowered so that measured peaks stay below `--max-memory` with the question's
    probability; unchanged without a limit."""
    if restrictions.max_memory is None:
        return restrictions
    share = confident_share(question.confidence, question.memory_error)
    return replace(restrictions, max_memory=restrictions.max_memory * share)
