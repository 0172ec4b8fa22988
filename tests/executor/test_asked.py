"""What a run is asked for reaches the command line of its ranks whole."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from executor.checkpoints.saving import Saving
from executor.rate import Rate
from executor.run_options import Asked, add_arguments, read

PLAIN = Asked(steps=7)
EVERYTHING = Asked(
    steps=11,
    warm_up=3,
    seed=5,
    rate=Rate(peak=1 / 3, warm_up=4, decay=9),
    clip=0.1,
    data="some tokens",
    compile=True,
    saving=Saving(folder=Path("saved here"), every=4, keep=2, resume=True),
    timeout=12.5,
    measure_memory=False,
    trace=Path("a trace.json"),
)


@pytest.mark.parametrize("asked", [PLAIN, EVERYTHING])
def test_a_rank_reads_what_was_asked(asked: Asked) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert read(parser.parse_args(asked.arguments())) == asked


def test_everything_is_more_than_what_is_so_anyway() -> None:
    """A field that is left at its default above would prove nothing."""
    for field in fields(Asked):
        assert getattr(EVERYTHING, field.name) != getattr(PLAIN, field.name), field.name
