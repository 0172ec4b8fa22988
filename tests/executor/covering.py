"""Which layouts a usual run of the tests trains: not all, but every two switches together (all-pairs testing), and
every model with some of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import yaml
from effort import some_of

from cost_models.axes.layout import parse_layout

FEW_RANKS = 4
"""More than two cores run at once in reasonable time."""

Case = tuple[str, str]
"""Name of a model and a layout."""


def cases_of(tests: str) -> list[Case]:
    """What tests of that name choose from (`cases.yaml`)."""
    listed = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text("utf-8"))[tests]
    return [(model, layout) for one in listed for model, layouts in one.items() for layout in layouts]


def in_every_run(cases: Sequence[Case]) -> list[Case]:
    """Of some cases, those up to four ranks in which all pairs occur, and the first of more ranks.

    All of them in a thorough run. Those of one mesh follow one another, for which the ranks have something ready.
    """
    small = [case for case in cases if _ranks(case) <= FEW_RANKS]
    larger = [case for case in cases if _ranks(case) > FEW_RANKS]
    return sorted(some_of(cases, *all_pairs(small), *larger[:1]), key=_mesh)


def all_pairs(cases: Sequence[Case]) -> list[Case]:
    """Cases, in their order, in which every two switches stand together that do so in some case, and each model once.

    Chosen greedily: next comes the one that adds the most, of several the one with the fewest ranks.
    """
    missing = set().union(*map(_pairs, cases)) if cases else set()
    chosen: list[Case] = []
    while missing:
        best = max(cases, key=lambda case: (len(_pairs(case) & missing), -_ranks(case)))
        chosen.append(best)
        missing -= _pairs(best)
    return [case for case in cases if case in chosen]


_ALONE = ("recompute=", "overlap=", "order=", "layers=", "shard", "vpp", "etp")
"""Switches that are tried once, not with every other one."""


def _pairs(case: Case) -> set[tuple[str, ...]]:
    """The model, each switch, and every two of these; all degrees above one are the same, sizes are none."""
    model, layout = case
    words = {
        word if "=" in word or word.startswith("zero") else re.sub(r"\d+$", "", word)
        for word in layout.split()
    }
    switches = {word for word in words if word != "mbs" and not word.startswith("layers=")}
    together = {word for word in switches if not word.startswith(_ALONE)}
    return {(model,), *combinations(sorted(switches), 1), *combinations(sorted(together), 2)}


def _ranks(case: Case) -> int:
    return parse_layout(case[1]).num_gpus


def _mesh(case: Case) -> tuple[int | str, ...]:
    """What tells apart the groups of ranks of two layouts."""
    layout = parse_layout(case[1])
    return layout.num_gpus, layout.tp, layout.cp, layout.pp, layout.ep, layout.shard or 0, layout.order
