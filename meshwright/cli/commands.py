"""Commands made of options: each flagged field of a verb's options becomes a flag or an argument of typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from typing import Annotated, Any, get_origin

import typer
from typer.core import TyperCommand

from cost_models.families import load
from cost_models.flags import AS_FIELD, Flag, defaults_of, flags_of, sorted_flags
from meshwright.cli import completion
from meshwright.terminal.output import Output
from meshwright.verbs.contract import Command

_HEADINGS = {
    "subject": "Subject",
    "job": "Job",
    "machine": "Machine",
    "search": "Search",
    "objective": "Objective",
}
"""Headings of panels in the help, beside that of the verb's own flags and of the output's."""


class InPanels(TyperCommand):
    """A command whose help lists its flags under the headings of their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then a section for each heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            heading = getattr(one, "rich_help_panel", None) or "Output"
            if told := one.get_help_record(ctx):
                sections.setdefault(heading, []).append(told)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def typer_function(command: Command[Any], words: Sequence[str] | None = None) -> Callable[..., None]:
    """The function that typer reads: the options' flags, then those of `Output`, as its parameters.

    Flags that mean something only with another are listed in the help where the `words` given have that one.
    """
    own = {name: one for name, one in flags_of(command.options).items() if name not in command.hides}
    record = load(command.nested) if command.nested else None
    nested = {} if record is None else flags_of(record)
    shown = {name: one for name, one in flags_of(Output).items() if name in command.shows}
    if command.out:
        shown = {"out": replace(flags_of(Output)["out"], help=command.out), **shown}
    defaults = {**defaults_of(Output), **defaults_of(command.options)}
    if record is not None:
        defaults |= defaults_of(record)

    def call(**values: Any) -> None:
        given = {name: _value(values[name], defaults[name], one) for name, one in own.items()}
        if nested:
            given["config"] = {name: values[name] for name in nested}
        output = Output(**{name: values[name] for name in shown})
        if (
            not command.out and not {"out", "config"} & given.keys()
        ):  # other verbs check what they write together with the rest
            output.check_places()
        command.call(command.options(**given), output)

    written = sorted_flags({**nested, **own, **shown})
    parameters = [
        _parameter(
            name,
            defaults[name],
            one,
            heading=_HEADINGS.get(one.panel, command.rest if one.panel == "verb" else one.panel.capitalize()),
            hidden=bool(one.only_with) and words is not None and f"--{one.only_with}" not in words,
        )
        for name, one in written.items()
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__name__ = command.name
    call.__doc__ = command.help
    return call


def _value(said: Any, default: Any, flag: Flag) -> Any:
    """What the options hold: of a list that was not said, their default."""
    if get_origin(flag.kind) is list:
        return tuple(said) if said else () if default is MISSING else default
    return said


def _parameter(name: str, default: Any, flag: Flag, *, heading: str, hidden: bool) -> inspect.Parameter:
    """One parameter, as typer wants it annotated."""
    if flag.command_default is not AS_FIELD:
        default = flag.command_default
    if default is ...:
        default = MISSING
    if default == ():
        default = None
    kind = flag.kind if default is not None else flag.kind | None
    common: Mapping[str, Any] = {
        "metavar": flag.metavar or None,
        "help": flag.help,
        "min": flag.minimum,
        "max": flag.maximum,
        "show_default": default is not MISSING and default is not None and default != "",
        "autocompletion": getattr(completion, flag.completion) if flag.completion else None,
        "callback": flag.check,
        "rich_help_panel": "Arguments" if flag.panel == "argument" else heading,
        "hidden": hidden,
    }
    info: Any
    if flag.panel == "argument":
        info = typer.Argument(**common)
    else:
        info = typer.Option(*(flag.names or ("--" + name.replace("_", "-"),)), **common)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, info],
    )
