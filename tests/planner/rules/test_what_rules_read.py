"""Rules are asked once for all layouts that are alike in what they read, so each must read no more than that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from small import every_axis, small_question

from cost_models.arrays import Ints
from cost_models.axes.columns import COLUMNS, LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.rule import Rule
from planner.formats.trainers import TRAINERS
from planner.rules.legality import RULES, SCHEDULE_RULE, SIZED_RULES
from planner.space.axes import columns_that_affect

STATES = {*columns_that_affect("states"), "pp", "zero", "shard"}
"""What decides the ZeRO stages and shard groups of a core; pp is what the other degrees leave of the GPUs."""
PIPELINE = {*columns_that_affect("pipeline"), "microbatches", "zero", "vpp", "schedule"}
"""What decides its chunks and schedules."""


class Read(LayoutColumns):
    """Columns that note which of them are read."""

    __slots__ = ("names",)

    names: set[str]

    def __getattribute__(self, name: str) -> object:
        if name in COLUMNS:
            object.__getattribute__(self, "names").add(name)
        return super().__getattribute__(name)

    def microbatches(self, global_batch: int) -> Ints:
        """Microbatches, which are a quantity of their own."""
        self.names.add("microbatches")
        return np.ones(len(self), dtype=np.int64)

    def __len__(self) -> int:
        return 64


def every_rule() -> Iterator[Rule]:
    """Of layouts, schedules and trainers."""
    yield from (*RULES, SCHEDULE_RULE)
    for trainer in TRAINERS.values():
        yield from trainer.rules


def columns_read_by(rule: Rule) -> set[str]:
    """Names of the columns that a rule reads of random layouts, in questions of several stacks and precisions."""
    rng, found = np.random.default_rng(0), set[str]()
    for stack, precision in (("meshwright", "bf16"), ("megatron-core", "fp8"), ("deepspeed", "bf16")):
        question = every_axis(small_question(stack=stack, precision=precision))
        simplest = LayoutColumns.of([Layout()] * 64)
        drawn = {name: getattr(simplest, name) + rng.integers(0, 3, 64) for name in COLUMNS}
        columns = Read(**drawn)
        object.__setattr__(columns, "names", set())
        rule.broken(question, columns)
        found |= columns.names
    return found


@pytest.mark.parametrize("rule", list(every_rule()), ids=lambda rule: rule.name)
def test_a_rule_reads_no_more_than_it_is_asked_of(rule: Rule) -> None:
    read = columns_read_by(rule)
    if read & {"vpp", "schedule"}:
        assert read <= PIPELINE
    elif read & {"zero", "shard"}:
        assert read <= STATES
    else:
        assert (rule in SIZED_RULES) == bool(read & {"mbs", "microbatches"})
