"""Reads what the answer should be best at: objective, tokens, prices and deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeVar, get_args

from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.files.catalog import load_operations
from cost_models.files.loading import read_duration, read_price, read_tokens
from cost_models.question import Question
from cost_models.risk import RISKS, Risk
from cost_models.units import format_count, grouped
from meshwright.inputs.options import Amount, Goal
from planner.objectives import OBJECTIVES, PROOFS, Objective, Proof

Pick = Literal["recommended", "fastest"]
"""Which layout a plan is: the one to run, or the fastest on paper."""
MOST_EPOCHS = 1e6
PICKS: tuple[Pick, ...] = get_args(Pick)
Word = TypeVar("Word", bound=str)


def pick_of(word: str | None) -> Pick:
    """Read `--pick`; recommended where it is not said. Raises InputError: it is neither."""
    return one_of(PICKS, word or "recommended", "--pick", "cannot tell which plan is wanted")


def risk_of(word: str | None) -> Risk:
    """Read `--risk`; none where it is not said. Raises InputError: it is no such word."""
    return one_of(RISKS, word or "none", "--risk", "cannot tell what layouts are compared by")


def proof_of(word: str | None) -> Proof:
    """Read `--solver`; the search where it is not said. Raises InputError: it is no such word."""
    return one_of(PROOFS, word or "search", "--solver", "cannot tell what proves the answer")


def one_of(words: Sequence[Word], said: str, flag: str, headline: str) -> Word:
    """What was said, as one of the words of a flag. Raises InputError: it is none."""
    found = next((known for known in words if known == said), None)
    if found is None:
        *others, last = (f"`{known}`" for known in words)
        what = f"`{said}` is not {', '.join(others)} or {last}{did_you_mean(said, words)}"
        raise InputError(headline, problems=[Problem(flag, what)])
    return found


def objective_of(goal: Goal) -> tuple[Objective, float | None]:
    """Read the objective and the tokens to train on. Raises InputError: everything that cannot be read, at once."""
    price, tokens, problems = _amounts(goal)
    asked = goal.objective or ("cost" if goal.price is not None else "time")
    name = next((known for known in OBJECTIVES if known == asked), None)
    if name is None:
        known = ", ".join(f"`{one}`" for one in OBJECTIVES)
        what = f"`{asked}` is not one of {known}{did_you_mean(asked, OBJECTIVES)}"
        problems.append(Problem("--objective", what))
    deadline = None
    try:
        deadline = None if goal.deadline is None else read_duration(goal.deadline)
    except ValueError as error:
        problems.append(Problem("--deadline", str(error)))
    operations = goal.operations
    try:
        operations = load_operations(operations) if isinstance(operations, str) else operations
    except InputError as error:
        problems.append(Problem("--operations", error.headline))
    if problems or name is None:
        raise InputError("the objective cannot be read", problems=problems)
    assert not isinstance(operations, str)
    return Objective(name=name, price=price, deadline=deadline, operations=operations), tokens


def _amounts(said: Amount) -> tuple[float | None, float | None, list[Problem]]:
    """The price of one cluster's GPUs, the tokens to train on, and what cannot be read."""
    problems: list[Problem] = []
    prices: tuple[float, ...] = ()
    tokens = None
    try:
        prices = read_prices(said.price)
    except ValueError as error:
        problems.append(Problem("--price", str(error)))
    if len(prices) > 1:
        problems.append(Problem("--price", f"names {len(prices)} prices for one cluster"))
    try:
        tokens = None if said.tokens is None else read_tokens(said.tokens)
    except ValueError as error:
        problems.append(Problem("--tokens", str(error)))
    return prices[0] if prices else None, tokens, problems


def trained_at(said: Amount, question: Question) -> tuple[Question, Objective, tuple[str, ...]]:
    """The question with the tokens to train on, what its GPUs cost, and what was assumed of samples.

    Raises:
        InputError: an amount cannot be read, or there is a price of nothing.
    """
    price, tokens, problems = _amounts(said)
    if problems:
        raise InputError("what is trained on cannot be read", problems=problems)
    tokens, told = tokens_of(said, tokens, question)
    if tokens is not None:
        question = replace(question, training=question.training.model_copy(update={"tokens": tokens}))
    if price is not None and question.training.tokens is None:
        hint = "add --tokens 1B, or --samples 50K --epochs 3"
        raise InputError("`--price` is that of training on so many tokens", hint=hint)
    return question, Objective(price=price), told


def tokens_of(goal: Amount, tokens: float | None, question: Question) -> tuple[float | None, tuple[str, ...]]:
    """Tokens to train on, as said or as samples, each a document or a whole sequence, and that in words.

    Raises:
        InputError: samples cannot be read, or contradict what else is said.
    """
    if goal.samples is None:
        if goal.epochs is not None:
            hint = "--samples 50K --epochs 3, or --tokens for all of them"
            raise InputError("`--epochs` says how often samples are gone through", hint=hint)
        return tokens, ()
    if tokens is not None:
        raise InputError("`--tokens` and `--samples` both say how much is trained on", hint="leave out one")
    epochs, training = 1.0 if goal.epochs is None else goal.epochs, question.training
    try:
        samples = read_tokens(goal.samples)
        if not 0 < epochs <= MOST_EPOCHS:
            raise ValueError(f"`{epochs:g}` is no number of epochs")
    except ValueError as error:
        raise InputError(f"--samples, --epochs: {error}") from None
    each = f"{epochs:g} epochs of " if epochs != 1 else ""
    what = "a sequence of" if training.lengths is None else "a document of on average"
    what = "an image of" if question.model.diffusion else what
    what = what if not (training.reference or training.reward) else "a pair of sequences of together"
    sample = training.tokens_per_sample
    words = f"{each}{format_count(samples)} samples, each {what} {grouped(round(sample))} tokens"
    return samples * epochs * sample, (words,)


def read_prices(price: str | float | Sequence[float] | None) -> tuple[float, ...]:
    """Read `2.5`, `$2.50` or `2.5,3.5,5` as numbers. Raises ValueError."""
    if price is None:
        return ()
    words = (
        price.split(",") if isinstance(price, str) else [price] if isinstance(price, (int, float)) else price
    )
    return tuple(map(read_price, words))
