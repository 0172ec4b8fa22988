"""Flags and arguments that typer cannot read, told as every other error is."""

from __future__ import annotations

import re
from typing import Any

import typer

from cost_models.errors import InputError, did_you_mean

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for flags and arguments it cannot read; it has no public name of its own."""


def word_usage_error(error: Any) -> tuple[str, InputError]:
    """A line of usage (of no verb at all, the help), and what is wrong with the words of the command line."""
    if error.ctx is None:
        return "", InputError(_lowered(error.format_message()))
    if error.ctx.invoked_subcommand is None and error.ctx.parent is None and "\n" in error.format_message():
        return error.format_message(), InputError("a verb is missing")
    said = _refused_value(error) or _lowered(error.format_message())
    return error.ctx.get_usage(), InputError(said, hint=f"{error.ctx.command_path} --help lists its flags")


def _lowered(text: str) -> str:
    """ "Missing argument 'PLAN'." → "missing argument `PLAN`"."""
    return re.sub(r"'([^']*)'", r"`\1`", text[:1].lower() + text[1:].rstrip("."))


def _refused_value(error: Any) -> str:
    """ "--gpus: `1.5` is not a whole number", where typer had pydantic read a value; nothing where it had not."""
    from pydantic import BaseModel, ValidationError

    from cost_models.spec_problems import spec_problems

    if not isinstance(error.__cause__, ValidationError):
        return ""
    told, _ = spec_problems(error.__cause__, BaseModel, most=1)
    what = _lowered(next(iter(told.values())))
    given, _, known = what.partition(" is not one of ")
    return f"{error.param.opts[0]}: {what}{did_you_mean(given, re.findall('`(.+?)`', known))}"
