"""What `--gpus` says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from asking import ask

from cost_models.errors import InputError
from cost_models.question import Question
from planner.space.sizes import parse_sizes, plain_layouts


@pytest.fixture(scope="module")
def gpt3() -> Question:
    return ask("gpt3-175b", "dgx-a100-80gb", 1024, global_batch=1536, sequence_length=2048)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64", (64,)),
        ("128, 64,64", (64, 128)),
        ("64..512", (64, 128, 256, 512)),
        ("64..300,8", None),
        ("48..200", (48, 96, 192, 200)),
        ("64..96:8", (64, 72, 80, 88, 96)),
        ("4..16", (4, 8, 16)),
    ],
)
def test_sizes(gpt3: Question, text: str, sizes: tuple[int, ...] | None) -> None:
    if sizes is None:
        with pytest.raises(InputError, match="300 GPUs are no whole number of nodes"):
            parse_sizes(text, gpt3)
    else:
        assert parse_sizes(text, gpt3) == sizes


def test_even_ratios_are_whole_nodes_with_layouts(gpt3: Question) -> None:
    sizes = parse_sizes("64..16384x50", gpt3)
    assert 45 <= len(sizes) <= 50
    assert all(size % 8 == 0 and plain_layouts(gpt3, size)[1] for size in sizes)
    assert all(after / before < 1.35 for before, after in pairwise(sizes))
    assert sizes[0] == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "`` is not a number of GPUs"),
        ("8,x", "`x` is not a number of GPUs"),
        ("0", "`0` is not a number of GPUs"),
        ("64..8", "`64..8` runs from 64 down to 8"),
        ("8..64:0", "`8..64:0` takes steps of nothing"),
        ("8..9000000:8", "names 1,125,000 sizes; 1,000 are the most"),
        ("99999999999", "is more than there are; 10,000,000 are the most"),
    ],
)
def test_what_cannot_be_read(gpt3: Question, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sizes(text, gpt3)
    assert said in str(caught.value)
