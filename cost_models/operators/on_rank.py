"""Sums over the operators of a block on one rank, for many layouts at once.

What an operator costs is first a number for each token of a place (or for each parameter that ranks share in some way),
whatever the layout; these are added up, and only their few sums meet the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.record import Held, Place
from cost_models.question import Question

Key = TypeVar("Key", Place, Held)
Amount = Mapping[Place, float]
"""So much for each token of a place."""


def added(amounts: Iterable[tuple[float, Mapping[Key, float]]]) -> dict[Key, float]:
    """The sum of some amounts by place, or of parameters by how ranks share them, each so many times."""
    total: dict[Key, float] = {}
    for times, amount in amounts:
        for key, value in amount.items():
            total[key] = total.get(key, 0.0) + times * value
    return total


def on_rank(question: Question, columns: LayoutColumns, amount: Amount) -> Array:
    """(N,) what a rank has of an amount, for one microbatch."""
    total = np.zeros(len(columns))
    for place, value in amount.items():
        if value:
            total = total + value * tokens_on_rank(question, columns, place)
    return total


def tokens_on_rank(question: Question, columns: LayoutColumns, place: Place) -> Array:
    """(N,) tokens of a microbatch (or parts of tokens, or copies) that a rank has of a place."""
    tokens = columns.tokens(question.training.sequence_length)
    if place == "whole" or (place == "entrance" and question.stack.saves_gathered_activations):
        return tokens
    if place in ("stream", "entrance"):
        return tokens / np.where(columns.sp == 1, columns.tp, 1)
    if place == "split":
        return tokens / columns.tp
    sent = tokens * question.model.experts_per_token / columns.tp
    if place == "sent":
        return sent
    return sent * columns.etp if place == "copies" else sent * columns.etp / columns.etp


def handed_on(question: Question, columns: LayoutColumns) -> Array:
    """(N,) numbers that go from stage to stage, before tensor ranks split them: of tokens; of two stacks those of both;
    of a vision tower and its decoder those of which there are more; with what modulates an image, of diffusion."""
    model, training = question.model, question.training
    numbers = columns.tokens(training.sequence_length) * (1.0 + model.source_share) * model.hidden_size
    if model.diffusion is not None:
        numbers = numbers * (1.0 + 1.0 / model.diffusion.tokens)
    tower = None if question.whole is None else question.whole.tower
    if tower is None:
        return numbers
    of_images = columns.mbs * (training.images or 1) * tower.tokens * tower.hidden_size
    return np.maximum(numbers, of_images)


def held_on_rank(counts: Mapping[Held, float], tp: Ints, ep: Ints | int, etp: Ints) -> tuple[Array, Array]:
    """(N,) each: parameters of a rank, and those of its routed experts."""
    split, expert = counts.get("split", 0.0), counts.get("expert", 0.0)
    return (split / tp + counts.get("whole", 0.0), (expert / etp + counts.get("each expert", 0.0)) / ep)
