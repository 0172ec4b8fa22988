"""Command-line flags, declared in the options class of a verb (a subcommand) as metadata of its fields.

    class PlanOptions(Options, kw_only=True):
        gpus: int | None = flag("N")
        "GPUs to use."

The field is a keyword of the verb's function (`as_keywords`) and a flag of its command
(`meshwright.cli`), whose type is that of the field and whose help the first paragraph of the field's
docstring. A field without a flag exists in Python only. A field of a pydantic model is annotated with its
`Flag`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields, replace
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, dataclass_transform, get_args

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741
R = TypeVar("R")

Panel = Literal["argument", "subject", "job", "machine", "search", "objective", "verb", "output"]
"""Name of a group of flags in `--help`, which lists the groups in this order."""
PANELS: tuple[Panel, ...] = get_args(Panel)
AS_FIELD: Any = object()
"""Marker: the command-line default of a flag equals the default of its field."""
_FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Flag:
    """Command-line form of one field of an options class: spelling, type, help and group."""

    metavar: str
    help: str = ""
    """Text in `--help`; empty: the first paragraph of the field's docstring."""
    kind: Any = str
    """Type to which the flag's text is converted: `str`, `int`, `float`, `bool`, `Path`, an enumeration, or a
    list of such values; None: the type of the annotated field, `str` where that has several."""
    _: KW_ONLY
    names: tuple[str, ...] = ()
    """Spellings of the flag; empty: `--` followed by the field's name."""
    panel: Panel = "verb"
    """Group in `--help` that lists the flag; in group `argument` it is positional, without a name."""
    listed_after: str = ""
    """Name of the field whose flag precedes this one in `--help`; empty: the order of the fields."""
    minimum: float | None = None
    maximum: float | None = None
    completion: str = ""
    """Name of the function in `meshwright.cli.completion` that completes values in the shell; empty: none."""
    check: Callable[[Any], Any] | None = None
    """Validator of the value, called before any other work, which raises InputError for an invalid one; None:
    no check."""
    is_part_of_question: bool = True
    """Whether the flag changes the question to answer; else only how to search, for how long, or what to
    print."""
    only_with: str = ""
    """Name, without `--`, of another flag without which this flag has no use; `--help` shows this flag only
    together with the other. Empty: none."""
    command_default: Any = AS_FIELD
    """Default of the flag if it differs from the field's default; MISSING marks a required flag."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Options:
    """Base class of a verb's options. Subclasses become frozen dataclasses; with `kw_only` their fields are
    keywords."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        """Make a subclass a frozen dataclass."""
        dataclass(frozen=True, kw_only=kw_only)(cls)


def flag(
    metavar: str,
    help: str = "",
    *,
    default: Any = None,
    kind: Any = None,
    kw_only: bool | None = None,
    **flag_fields: Any,
) -> Any:
    """Declare a dataclass field with a default that is also a command-line flag; `flag_fields` are further fields of
    `Flag`."""
    metadata = {_FLAG: Flag(metavar=metavar, help=help, kind=kind, **flag_fields)}
    return field(default=default, metadata=metadata, kw_only=MISSING if kw_only is None else kw_only)


def switch(help: str = "", **extra: Any) -> Any:
    """Declare a boolean dataclass field that is true if its command-line flag is given."""
    return flag("", help, default=False, kind=bool, **extra)


def output_flag(help: str, metavar: str = "FILE") -> Any:
    """Declare the flag `-o` for an output file; without it nothing is written, unless `help` says
    otherwise."""
    return flag(metavar, help, kind=Path, names=("-o", "--out"), panel="output")


def argument(metavar: str, help: str = "", *, kind: Any = None, **extra: Any) -> Mapping[str, Flag]:
    """Metadata that makes a dataclass field a positional command-line argument, optional if the field has a
    default."""
    return {_FLAG: Flag(metavar=metavar, help=help, kind=kind, panel="argument", **extra)}


def plan_file() -> Mapping[str, Flag]:
    """Metadata of a dataclass field that takes a plan; the command line reads it from a plan file."""
    return argument("PLAN", kind=Path, completion="plans")


def flags_of(options: type[Any]) -> dict[str, Flag]:
    """Command-line flags of an options class (dataclass or pydantic model) by field name, sorted by help
    group."""
    if hasattr(options, "model_fields"):
        marks = {name: one.metadata for name, one in options.model_fields.items()}
        flags = {name: mark for name, own in marks.items() for mark in own if isinstance(mark, Flag)}
    else:
        flags = {one.name: _flag_of(one) for one in fields(options) if _FLAG in one.metadata}
    return sorted_flags(flags)


_KINDS: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "Path": Path}
"""Type of the flag for each annotation of a field, by annotation."""


def _flag_of(declared: Field[Any]) -> Flag:
    """Flag of a dataclass field, with the type of the field's annotation unless the flag states one."""
    flag: Flag = declared.metadata[_FLAG]
    kind = _KINDS.get(str(declared.type).removesuffix(" | None"), str) if flag.kind is None else flag.kind
    return replace(flag, kind=kind)


def with_help(flags: Mapping[str, Flag], options: type[Any]) -> dict[str, Flag]:
    """Copy of the flags of an options class, each with its text in `--help`."""
    texts = {
        name: " ".join(text.partition("\n\n")[0].split()) for name, text in field_docstrings(options).items()
    }
    return {name: replace(one, help=one.help or texts.get(name, "")) for name, one in flags.items()}


def field_docstrings(options: type[Any]) -> dict[str, str]:
    """Docstring of each field of a dataclass or pydantic model, inherited fields included, read from the source code,
    by field."""
    docstrings: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if owner.__module__.partition(".")[0] in ("builtins", "typing", "pydantic"):
            continue
        for statements in pairwise(_class_bodies(owner.__module__).get(owner.__name__, ())):
            match statements:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docstrings[name] = inspect.cleandoc(text)
    return docstrings


@cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Statements of each class of a module, by name of the class."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def sorted_flags(flags: Mapping[str, Flag]) -> dict[str, Flag]:
    """Copy of a mapping of flags, sorted by help group; a flag with `listed_after` directly follows the flag
    of that field."""
    names = sorted(flags, key=lambda name: PANELS.index(flags[name].panel))
    for name in [name for name in names if flags[name].listed_after in names]:
        names.remove(name)
        names.insert(names.index(flags[name].listed_after) + 1, name)
    return {name: flags[name] for name in names}


def defaults_of(options: type[Any]) -> dict[str, Any]:
    """Default value of each field of an options class, by field name; MISSING for required fields."""
    if not hasattr(options, "model_fields"):
        return {one.name: one.default for one in fields(options)}
    return {name: MISSING if one.is_required() else one.default for name, one in options.model_fields.items()}


def given_flags(options: Any) -> tuple[str, ...]:
    """Names of the fields whose values differ from their defaults. Only those fields count whose flags
    several verbs share, without output flags."""
    defaults, excluded = defaults_of(type(options)), ("argument", "subject", "verb", "output")
    empty: tuple[Any, ...] = (None, "", (), [])
    flags = {name: one for name, one in flags_of(type(options)).items() if one.is_part_of_question}
    shared = [name for name, one in flags.items() if one.panel not in excluded]
    return tuple(name for name in shared if getattr(options, name) not in (*empty, defaults[name]))


def part_of(options: Any, kind: type[O], **extra: Any) -> O:
    """Options of class `kind` with the values of the fields that it shares with `options`, and those in
    `extra`."""
    names = {one.name for one in fields(options)}
    shared = {one.name: getattr(options, one.name) for one in fields(kind) if one.name in names}  # type: ignore[arg-type]
    return kind(**(shared | extra))


def as_keywords(options: Callable[P, O]) -> Callable[[Callable[[O], R]], Callable[P, R]]:
    """Decorator that makes a function of one options object take the object's fields as keywords: `plan(...)`
    for `plan(PlanOptions(...))`.

    Type checkers and editors see the fields as parameters; the help of the function has them too.
    """

    def of_fields(answer: Callable[[O], R]) -> Callable[P, R]:
        """Wrap a function of one options object into a function of the options' fields."""

        @wraps(answer)
        def call(*positional: P.args, **keywords: P.kwargs) -> R:
            try:
                read = options(*positional, **keywords)
            except TypeError as error:  # a missing or unknown argument is named as this function's
                constructor = f"{getattr(options, '__name__', '')}.__init__"
                raise TypeError(str(error).replace(constructor, answer.__name__)) from None
            return answer(read)

        signature = inspect.signature(options)
        returned = inspect.signature(answer).return_annotation
        call.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return of_fields
