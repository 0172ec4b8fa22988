"""Reads how long documents are: a distribution in words, or a file of lengths; and what sequences are made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.specs.lengths import MOST_DOCUMENTS, LengthsSpec, Packing, share_cut
from cost_models.specs.training import TrainingSpec
from cost_models.units import grouped
from meshwright.inputs.options import Job

_HINT = "write --lengths 'lognormal(600,0.9)': mean in tokens, deviation of the logarithms; or name a file of lengths"
_LOGNORMAL = re.compile(r"\s*lognormal\s*\(\s*([^,()]+),([^,()]+)\)\s*")
_LONGEST = 10**9
_WORTH_SAYING = 0.001


def with_lengths(training: TrainingSpec, options: Job) -> TrainingSpec:
    """The job with documents of the lengths that the flags say; where its file has some, `--packing` alone replaces
    what is made of them.

    Raises:
        InputError: lengths that cannot be read, or are longer than a sequence.
    """
    words: tuple[Packing, ...] = get_args(Packing)
    packing = next((one for one in words if one == options.packing), None)
    if options.packing is not None and packing is None:
        what = f"`{printable(options.packing)}` is not one of {', '.join(words)}"
        raise InputError(f"--packing: {what}{did_you_mean(options.packing, words)}")
    lengths = training.lengths if options.lengths is None else _read(options.lengths)
    if lengths is None:
        if packing is not None:
            raise InputError("--packing: says what is made of documents, and there are none", hint=_HINT)
        return training
    if packing is not None:
        lengths = lengths.model_copy(update={"packing": packing})
    longest = max(lengths.documents, default=0)
    if longest > training.sequence_length:
        raise InputError(
            f"--lengths: a document of {grouped(longest)} tokens is longer than a sequence of "
            f"{grouped(training.sequence_length)}",
            hint=f"--sequence {longest}, or cut it in the file",
        )
    return training.model_copy(update={"lengths": lengths})


def documents_told(training: TrainingSpec) -> Iterator[str]:
    """What was assumed of documents."""
    lengths = training.lengths
    if lengths is None:
        return
    cut = share_cut(lengths, training.sequence_length)
    if cut >= _WORTH_SAYING:
        yield f"{100 * cut:.1f} % of documents are longer than a sequence, and cut to it"
    if lengths.packing == "pack":
        yield "documents are packed by best fit; none attends to another"


def _read(said: str | LengthsSpec) -> LengthsSpec:
    if isinstance(said, LengthsSpec):
        return said
    if "(" in said:
        return _distribution(said)
    path = Path(said)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"--lengths: cannot read {printable(said)}: {why}", hint=_HINT) from None
    return LengthsSpec(documents=_brought_down(list(_of_lines(path, lines))))


def _distribution(said: str) -> LengthsSpec:
    match = _LOGNORMAL.fullmatch(said)
    try:
        if match is None:
            raise ValueError
        return LengthsSpec(lognormal=(float(match[1]), float(match[2])))
    except (InputError, ValueError):
        raise InputError(
            f"--lengths: `{printable(said)}` is no distribution of lengths", hint=_HINT
        ) from None


def _of_lines(path: Path, lines: list[str]) -> Iterator[int]:
    """The first column: whole numbers, under a heading or none."""
    problems: list[Problem] = []
    some = False
    for number, line in enumerate(lines, 1):
        word = line.split(",")[0].strip().strip('"')
        if word.isascii() and word.isdigit() and 0 < int(word[:11]) <= _LONGEST:
            some = True
            yield int(word)
        elif word and not (number == 1 and word[0].isalpha()):
            problems.append(
                Problem(f"{path}:{number}", f"`{printable(word[:40])}` is no number of tokens above zero")
            )
    if problems or not some:
        what = "lengths cannot be read" if problems else f"--lengths: {path} holds no length"
        raise InputError(what, problems=problems, hint="write a number of tokens on each line")


def _brought_down(lengths: list[int]) -> tuple[int, ...]:
    """At most so many lengths as a job keeps, of the same mean."""
    if len(lengths) <= MOST_DOCUMENTS:
        return tuple(lengths)
    groups = np.array_split(np.sort(np.array(lengths)), MOST_DOCUMENTS)
    return tuple(max(1, round(float(one.mean()))) for one in groups)
