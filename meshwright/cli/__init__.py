"""The command line: typer commands built from the options of verbs, and errors printed for the user."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import cache
from importlib import import_module
from typing import Annotated, Any, get_origin

import typer
from typer.core import TyperCommand

from cost_models.errors import InputError, MeshwrightError, StoppedError, did_you_mean
from cost_models.families import load
from cost_models.flags import AS_FIELD, Flag, defaults_of, flags_of, sorted_flags, with_help
from meshwright.cli import completion
from meshwright.terminal.output import Output, print_error, say_aside, word_os_error
from meshwright.verbs.contract import Command


class InPanels(TyperCommand):
    """Typer command whose help lists flags in groups, each under its heading."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of arguments and flags, a section for each heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = getattr(parameter, "rich_help_panel", None) or "Output"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(heading, []).append(record)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def typer_function(command: Command[Any], words: Sequence[str] | None = None) -> Callable[..., None]:
    """Make the function whose signature typer reads: it has a parameter for each flag of the verb, then for each flag
    of `Output`.

    Flags that apply only with another flag appear in the help only if the `words` given include that flag.
    """
    verb_flags = {name: one for name, one in flags_of(command.options).items() if name not in command.hides}
    record = load(command.nested) if command.nested else None
    nested = flags_of(record) if record else {}
    output_flags = {name: one for name, one in flags_of(Output).items() if name in command.shows}
    if command.out:
        output_flags = {"out": replace(flags_of(Output)["out"], help=command.out), **output_flags}
    defaults = defaults_of(Output) | defaults_of(command.options) | (defaults_of(record) if record else {})
    if words is None or {"-h", "--help"} & set(words):  # reading the texts takes time
        verb_flags, output_flags = with_help(verb_flags, command.options), with_help(output_flags, Output)
        nested = with_help(nested, record) if record else {}

    def value(name: str, given: Any) -> Any:
        """Value to pass to an option: the value given, with lists as tuples; for an empty list the option's
        default."""
        if get_origin(verb_flags[name].kind) is not list:
            return given
        return tuple(given) if given else () if defaults[name] is MISSING else defaults[name]

    def call(**values: Any) -> None:
        """Run the verb with the flags' values."""
        options = {name: value(name, values[name]) for name in verb_flags}
        if nested:
            options["config"] = {name: values[name] for name in nested}
        output = Output(**{name: values[name] for name in output_flags})
        # other verbs check what they write together with the rest
        if not command.out and not {"out", "config"} & options.keys():
            output.check_places()
        try:
            command.call(command.options(**options), output)
        except KeyboardInterrupt as stop:  # told as any other error, with an exit code of its own
            raise StoppedError(f"interrupted: {stop}" if str(stop) else "interrupted") from None

    written = sorted_flags({**nested, **verb_flags, **output_flags})
    parameters = [
        _parameter(
            name,
            defaults[name],
            one,
            heading=command.head if one.panel == "verb" else one.panel.capitalize(),
            hidden=bool(one.only_with) and words is not None and f"--{one.only_with}" not in words,
        )
        for name, one in written.items()
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__name__ = command.name
    call.__doc__ = command.help
    return call


def _parameter(name: str, default: Any, flag: Flag, *, heading: str, hidden: bool) -> inspect.Parameter:
    """Make the Python parameter, annotated for typer, that stands for one flag in the verb's signature."""
    if flag.command_default is not AS_FIELD:
        default = flag.command_default
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
    names = flag.names or ("--" + name.replace("_", "-"),)
    info: Any = typer.Argument(**common) if flag.panel == "argument" else typer.Option(*names, **common)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, info],
    )


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer's exception class for unreadable flags and arguments, which has no public name."""
_COMPLETING = "_MESHWRIGHT_COMPLETE"
"""Environment variable that a shell sets when it asks for completions."""
_OF_PLANS = ("plan", "estimate", "compare", "explain", "advise", "reshard", "verify", "forecast")
_SHOWING = ("plot", "report", "explore")
_RUNNING = ("cluster", "doctor", "run", "emulate", "measure", "serve", "export", "import", "tokens")
_KNOWING = ("calibrate", "validate", "catalog")
_ELSEWHERE = {"explore": "explorer", "import": "verbs.export", "reshard": "verbs.compare"}
_ELSEWHERE |= {"advise": "verbs.explain", "emulate": "verbs.run"}
"""Modules of verbs that have none of their name in `meshwright.verbs`."""
VERBS = _OF_PLANS + _SHOWING + _RUNNING + _KNOWING
"""Names of the verbs, in the order of `--help`."""


@cache
def command_of(verb: str) -> Command[Any]:
    """Command of a verb, whose module is imported only at the first call."""
    module = import_module(f"meshwright.{_ELSEWHERE.get(verb, f'verbs.{verb}')}")
    command: Command[Any] = getattr(module, f"{verb}_command")
    return command


def command_line(words: Sequence[str] | None = None) -> typer.Typer:
    """Build the typer application, with only the called verb if `words` begin with a verb, else with all verbs.
    Verbs that are only listed get no flags."""
    app = typer.Typer(
        name="meshwright",
        help="Plan the parallel training of large models with a proof, run the plan, and compare.",
        rich_markup_mode=None,  # rich help costs 50 ms of start-up
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_frame)
    called = [name for name in VERBS if name in (words or ())[:1]]
    for verb in map(command_of, called or VERBS):
        call = typer_function(verb, words) if called or words is None else _no_flags
        app.command(verb.name, help=verb.help, cls=InPanels)(call)
    return app


def _no_flags() -> None:
    """Empty stand-in for a verb that is only listed, not called."""


def _print_version(is_given: bool) -> None:
    """Print Meshwright's version and exit, if `--version` was given."""
    if is_given:
        from importlib.metadata import version

        print(f"meshwright {version('meshwright')}")
        raise typer.Exit


def _frame(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options before any verb: `--version` acts in its callback, `--debug` in `main`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console command.

    Raises:
        SystemExit: 0 done; 1 the answer is no; 2 bad input; 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # wherever it stands
    try:
        _call([word for word in words if word != "--debug"])
    except BrokenPipeError:
        # the reader of stdout has gone (`| head`): end with nothing left to flush into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError) as error:
        worded = _worded(error)
        if debug or worded is None:
            raise
        print_error(worded, json="--json" in words)
        sys.exit(worded.exit_code)


def _call(words: list[str]) -> None:
    """Run a verb, and print typer's usage errors in the form of all other errors."""
    json = "--json" in words
    try:
        app = command_line(None if _COMPLETING in os.environ else words)
        code = app(words, prog_name="meshwright", standalone_mode=False)
    except _UsageError as error:
        usage, worded = _word_usage_error(error)
        if usage and not json:
            say_aside(usage + "\n")
        if words:  # else the help was asked for
            print_error(worded, json=json)
        code = worded.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _word_usage_error(error: Any) -> tuple[str, InputError]:
    """Two parts of typer's usage error: text to print before it (the line of usage; the help if no verb was
    given; or nothing), and the error as an InputError."""
    if error.ctx is None:
        return "", InputError(_lowered(error.format_message()))
    if error.ctx.invoked_subcommand is None and error.ctx.parent is None and "\n" in error.format_message():
        return error.format_message(), InputError("a verb is missing")
    problem = _refused_value(error) or _lowered(error.format_message())
    return error.ctx.get_usage(), InputError(problem, hint=f"{error.ctx.command_path} --help lists its flags")


def _lowered(text: str) -> str:
    """Typer's message in our form: "Missing argument 'PLAN'." → "missing argument `PLAN`"."""
    return re.sub(r"'([^']*)'", r"`\1`", text[:1].lower() + text[1:].rstrip("."))


def _refused_value(error: Any) -> str:
    """Message for a flag's value that pydantic refused, such as "--gpus: `1.5` is not a whole number"; empty for
    other errors."""
    from pydantic import BaseModel, ValidationError

    from cost_models.documents import spec_problems

    if not isinstance(error.__cause__, ValidationError):
        return ""
    problems, _ = spec_problems(error.__cause__, BaseModel, limit=1)
    sentence = _lowered(next(iter(problems.values())))
    value, _, choices = sentence.partition(" is not one of ")
    return f"{error.param.opts[0]}: {sentence}{did_you_mean(value, re.findall('`(.+?)`', choices))}"


def _worded(error: Exception) -> MeshwrightError | None:
    """The error as a message for the user; None for a defect of Meshwright itself, which keeps its traceback."""
    if isinstance(error, MeshwrightError):
        return error
    if isinstance(error, OSError):
        return word_os_error(error)
    if "pydantic" in sys.modules:
        from pydantic import ValidationError

        if isinstance(error, ValidationError):
            from cost_models.documents import spec_error

            return spec_error(error)
    return None
