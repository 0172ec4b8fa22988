"""The layouts of a usual run leave out no two switches that are tried together in a thorough one."""

from __future__ import annotations

from covering import all_pairs

CASES = [
    ("gpt", "tp2 mbs2"),
    ("gpt", "tp2 dp2 mbs2 zero1"),
    ("llama", "dp2 mbs1 zero1"),
    ("gpt", "dp2 mbs2 zero1"),
    ("gpt", "dp2 mbs2 zero3"),
]


def test_all_pairs_occur_and_no_case_is_idle() -> None:
    """`tp2` and `dp2 zero1` alone are parts of the second case; the other model and the other stage are not."""
    assert all_pairs(CASES) == [CASES[1], CASES[2], CASES[4]]


def test_of_equals_the_smaller_is_taken() -> None:
    assert all_pairs([("gpt", "dp4 zero1"), ("gpt", "dp2 zero1")]) == [("gpt", "dp2 zero1")]
