"""Read the step that a user measured of the layout that runs today."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.files.reading import is_file
from cost_models.question import MeasuredStep, Question
from cost_models.units import format_seconds, parse_seconds

_MFU = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%(?: ?mfu)?", re.IGNORECASE)
_MOST_OFF = 10.0
"""Largest factor between measured and predicted step; beyond it the step is of another job."""
_HINT = "write the time of one optimizer step (21.4s), its MFU ('38% MFU'), or the file of the job's log"


def with_measured(question: Question, layout: str, step: str | float) -> Question:
    """Question that knows the step measured of a layout: seconds, text such as "21.4s" or "38% MFU", or a log's file.

    Raises:
        InputError: several pools of GPUs, a layout that cannot run, a text that is no step, or a step that is no job
            of this question.
    """
    from planner.explain.reasons import complete_layout

    if question.has_pools:
        raise InputError("--measured: a step measured on several pools of GPUs corrects no prediction")
    today = complete_layout(question, layout).estimate
    seconds = step if isinstance(step, (int, float)) else _step_seconds(question, today, step)
    ratio, words = seconds / today.step_seconds, f"--measured: a step of {format_seconds(seconds)}"
    if not 0 < ratio < math.inf:
        raise InputError(f"{words} is no time of a step", hint=_HINT)
    if (mfu := today.mfu / ratio) > 1:
        raise InputError(
            f"{words} is an MFU of {100 * mfu:.0f} %, more than the GPUs can compute", hint=_HINT
        )
    if ratio > _MOST_OFF:
        raise InputError(f"{words} is {ratio:.0f} times the predicted, so of another job", hint=_HINT)
    measured = MeasuredStep(question=question, layout=str(today.layout), seconds=seconds)
    return replace(question, measured=measured)


def _step_seconds(question: Question, today: Estimate, text: str) -> float:
    """Step seconds from a time, from a share of MFU, or from the typical steps of a log."""
    if match := _MFU.fullmatch(text.strip()):
        share = float(match[1]) / 100
        if not 0 < share <= 1:
            raise InputError(f"--measured: `{printable(text)}` is no MFU", hint=_HINT)
        return today.mfu * today.step_seconds / share
    if is_file(text):
        from cost_models.measured.logs import Work, read_logs, typical_steps

        job = question.training
        log = read_logs([Path(text)], Work(job.tokens_per_step, job.global_batch, today.layout.num_gpus))
        return statistics.median(line.seconds for line in typical_steps(log.steps.lines).lines)
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InputError(f"--measured: {error}", hint=_HINT) from None
