"""Reads how long documents are: a distribution in words, or a file of lengths; and what sequences are made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.reading import read_text
from cost_models.specs.lengths import LengthsSpec, Packing, brought_down, share_cut
from cost_models.specs.training import TrainingSpec
from cost_models.units import grouped
from meshwright.inputs.goals import one_of
from meshwright.inputs.options import Job

_MOST_BYTES = 100_000_000
"""Of a file of lengths, some ten million documents."""
_HINT = "write --lengths 'lognormal(600,0.9)': mean in tokens, deviation of the logarithms; or name a file of lengths"
_LOGNORMAL = re.compile(r"\s*lognormal\s*\(\s*([^,()]+),([^,()]+)\)\s*")
_WORTH_SAYING = 0.001


def with_lengths(training: TrainingSpec, options: Job) -> TrainingSpec:
    """The job with documents of the lengths that the flags say; `--packing` alone says what is made of its file's.

    Raises:
        InputError: lengths that cannot be read, or are longer than a sequence.
    """
    words: tuple[Packing, ...] = get_args(Packing)
    lengths = training.lengths if options.lengths is None else _read(options.lengths)
    if options.packing is not None:
        packing = one_of(words, options.packing, "--packing", "cannot tell what is made of documents")
        if lengths is None:
            raise InputError("--packing: says what is made of documents, and there are none", hint=_HINT)
        lengths = lengths.model_copy(update={"packing": packing})
    longest, whole = max(lengths.documents, default=0) if lengths else 0, training.sequence_length
    if longest > whole:
        what = f"a document of {grouped(longest)} tokens is longer than a sequence of {grouped(whole)}"
        raise InputError(f"--lengths: {what}", hint=f"--sequence {longest}, or cut it in the file")
    return training.model_copy(update={"lengths": lengths})


def documents_told(training: TrainingSpec) -> Iterator[str]:
    """What was assumed of documents."""
    cut = share_cut(training.lengths, training.sequence_length) if training.lengths else 0.0
    if cut >= _WORTH_SAYING:
        yield f"{100 * cut:.1f} % of documents are longer than a sequence, and cut to it"


def _read(said: str | LengthsSpec) -> LengthsSpec:
    if isinstance(said, LengthsSpec):
        return said
    try:
        if match := _LOGNORMAL.fullmatch(said):
            return LengthsSpec(lognormal=(float(match[1]), float(match[2])))
        if "(" in said:
            raise ValueError
    except ValueError:
        raise InputError(
            f"--lengths: `{printable(said)}` is no distribution of lengths", hint=_HINT
        ) from None
    try:
        lines = read_text(said, most_bytes=_MOST_BYTES).splitlines()
    except InputError as error:
        raise InputError(f"--lengths: {error.headline}", hint=_HINT) from None
    return LengthsSpec(documents=brought_down(list(_of_lines(said, lines))))


def _of_lines(path: str, lines: list[str]) -> Iterator[int]:
    """The first column: whole numbers, under a heading or none."""
    words = [(number, line.split(",")[0].strip(' \t"')) for number, line in enumerate(lines, 1)]
    if words and words[0][1][:1].isalpha():
        del words[0]
    there = [(number, word) for number, word in words if word]
    problems = [
        Problem(f"{path}:{number}", f"`{printable(word[:40])}` is no number of tokens above zero")
        for number, word in there
        if not re.fullmatch(r"0*[1-9][0-9]{0,8}", word, re.ASCII)
    ]
    if problems or not there:
        what = "lengths cannot be read" if problems else f"--lengths: {path} holds no length"
        raise InputError(what, problems=problems, hint="write a number of tokens on each line")
    return (int(word) for _, word in there)
