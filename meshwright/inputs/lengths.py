"""Reads how long documents are: a distribution in words, or a file of lengths; and what sequences are made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from cost_models.documents import printable
from cost_models.errors import MOST_PROBLEMS, InputError, Problem
from cost_models.files.reading import read_text
from cost_models.specs.training import LengthsSpec, Packing, TrainingSpec, grouped_lengths, truncated_share
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
    lengths, answers = training.lengths, training.answers
    if options.lengths is not None:
        lengths, found = _read(options.lengths, training.sequence_length)
        answers = found if answers is None else answers
    if options.packing is not None:
        packing = one_of(words, options.packing, "--packing", "cannot tell what is made of documents")
        if lengths is None:
            raise InputError("--packing: says what is made of documents, and there are none", hint=_HINT)
        lengths = lengths.model_copy(update={"packing": packing})
    longest, whole = max(lengths.documents, default=0) if lengths else 0, training.sequence_length
    if longest > whole:
        what = f"a document of {grouped(longest)} tokens is longer than a sequence of {grouped(whole)}"
        raise InputError(f"--lengths: {what}", hint=f"--sequence {longest}, or cut it in the file")
    return training.model_copy(update={"lengths": lengths, "answers": answers})


def documents_told(training: TrainingSpec) -> Iterator[str]:
    """What was assumed of documents."""
    cut = truncated_share(training.lengths, training.sequence_length) if training.lengths else 0.0
    if cut >= _WORTH_SAYING:
        yield f"{100 * cut:.1f} % of documents are longer than a sequence, and cut to it"


def _read(said: str | LengthsSpec, whole: int) -> tuple[LengthsSpec, float | None]:
    """Lengths, and the share of their tokens that are answers, where a file says it."""
    if isinstance(said, LengthsSpec):
        return said, None
    try:
        if match := _LOGNORMAL.fullmatch(said):
            return LengthsSpec(lognormal=(float(match[1]), float(match[2]))), None
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
    documents, answers = _of_lines(said, lines, whole)
    return LengthsSpec(documents=grouped_lengths(documents)), answers


def _of_lines(path: str, lines: list[str], whole: int) -> tuple[list[int], float | None]:
    """Tokens of each document, and the share of all that are answers, where a column is headed `answer`.

    The first column has tokens of documents, or headed `prompt` of what is before their answers.
    """
    rows = [
        (number, [word.strip(' \t"') for word in line.split(",")])
        for number, line in enumerate(lines, 1)
        if line.strip(' ,;\t"')
    ]
    heading = [word.lower() for word in rows.pop(0)[1]] if rows and rows[0][1][0][:1].isalpha() else []
    column = heading.index("answer") if "answer" in heading else None
    documents, answered, problems = list[int](), 0, list[Problem]()
    for number, words in rows:
        given = [words[0]] if column is None else [words[0], *(words[column : column + 1] or [""])]
        wrong = [word for word in given if not re.fullmatch(r"0*[0-9]{1,9}", word, re.ASCII)]
        counts = [0 if wrong else int(word) for word in given]
        total = sum(counts) if heading[:1] == ["prompt"] else counts[0]
        answer = sum(counts[1:])
        what = ""
        if wrong or not total:
            what = f"`{printable((wrong or given)[0][:40])}` is no number of tokens above zero"
        elif answer > total:
            what = f"an answer of {grouped(answer)} tokens in a document of {grouped(total)}"
        elif total > whole:
            what = f"a document of {grouped(total)} tokens is longer than a sequence of {grouped(whole)}"
        problems += [Problem(f"{path}:{number}", what)] if what else []
        documents.append(total)
        answered += answer
    if problems or not documents or (column is not None and not answered):
        lacks = "length" if not documents else "answer"
        what = "lengths cannot be read" if problems else f"--lengths: {path} holds no {lacks}"
        too_long = max(documents, default=0) > whole
        raise InputError(
            what,
            problems=problems[:MOST_PROBLEMS],
            more=max(0, len(problems) - MOST_PROBLEMS),
            hint=f"--sequence {max(documents)}, or cut what is longer"
            if too_long
            else "write a number of tokens on each line",
        )
    return documents, None if column is None else answered / sum(documents)
