"""What the tests of the verbs share: questions that are answered quickly, and what a call gives back."""

from __future__ import annotations

from dataclasses import dataclass

ASKED = ("gpt2-small", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "64", "--sequence", "1024")
BIG = ("gpt3-175b", "dgx-a100-80gb", "--gpus", "1024", "--global-batch", "1536", "--sequence", "2048")
QUICK = ("--time-limit", "20")


@dataclass(frozen=True)
class Answer:
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str
