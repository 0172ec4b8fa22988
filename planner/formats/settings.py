"""A trainer's table of arguments, the settings of a file by path, and the run that a file describes.

A table lies in the folder `arguments`; readers and writers share it. Columns: name; kind (how its value is written);
default of the release that the reader's module names; unit; field of a plan that the argument sets; when an export
writes the field from the table alone (`always`, `changed` from the default, of `mixtures`; empty: the trainer's module
translates it); values as `ours=theirs`, of several the one to write first; other spellings; role in code that several
trainers share (`planner.formats.fsdp2`); why, of arguments that no price is made of. These are of three kinds:
`ignored` changes neither time nor memory of a step, `noted` changes them a little and is named where it is set,
`unpriced` changes them and stops a reader unless its value is the default or switches it off. A name that ends with `*`
stands for all that begin so.
"""

from __future__ import annotations

import ast
import csv
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from cost_models.axes.layout import Layout
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import LARGEST

_FOLDER = Path(__file__).parent / "arguments"
_PARSERS: dict[str, Callable[[str], Any]] = {"whole": int, "share": float, "pattern": int, "list": str.split}
"""Parser of the default in the table, by kind of argument; other kinds are text or switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a trainer (a row of its table), with its default and plan field."""

    name: str
    """Name of the value in the trainer's own code."""
    kind: str
    default: Any
    """Value if a file does not set it; None: there is none, or it follows from other arguments."""
    field: str
    """Path of the plan field, such as `layout.tp`; behind `not` if a switch has the opposite meaning."""
    written: str
    values: Mapping[Any, Any]
    """Trainer's value for each value of the plan field, if they differ."""
    synonyms: Mapping[Any, Any]
    """Value of the plan field for each of the trainer's values in lower case."""
    why: str
    """Reason why no price depends on the argument although it is read; else empty."""
    spellings: Mapping[str, str]
    """Other spellings of the argument, and its role in code that several trainers share, by column of the table."""

    def trainer_value(self, value: Any) -> Any:
        """Convert a value of the plan field into the trainer's value."""
        return not value if self.field.startswith("not ") else self.values.get(value, value)

    def plan_value(self, value: Any) -> Any:
        """Convert a trainer's value into the value of the plan field. Raises InputError if the table lists
        values and lacks this one."""
        if self.field.startswith("not "):
            return not value
        if self.values and str(value).lower() not in self.synonyms:
            message = f"`{self.name}: {printable(str(value))}` is not priced here"
            raise InputError(message, hint=f"priced are {', '.join(map(str, self.values.values()))}")
        return self.synonyms[str(value).lower()] if self.values else value


class Fate(NamedTuple):
    """Treatment of a trainer's argument on which no price depends (ignored, noted or unpriced), with the
    reason."""

    kind: str
    """`ignored`, `noted` or `unpriced`."""
    reason: str
    default: str = ""


_FATES = ("ignored", "noted", "unpriced")


@dataclass(frozen=True, slots=True)
class Table:
    """All arguments in one trainer's table."""

    arguments: Mapping[str, Argument]
    fates: Mapping[str, Mapping[str, Fate]]
    """Treatment of the arguments on which no price depends, by column of the table and spelling."""

    def fate(self, spelling: str, column: str = "name") -> Fate | None:
        """Treatment of an argument on which no price depends; None if the table lacks the argument."""
        fates = self.fates.get(column, {})
        starts = (one for name, one in fates.items() if name[-1] == "*" and spelling.startswith(name[:-1]))
        return fates.get(spelling) or next(starts, None)

    def fields(self, part: str, get: Callable[[str], Any], *, mixtures: bool = False) -> dict[str, Any]:
        """Values of the fields of one plan part (such as `model`), by name; only of fields that a single
        trainer argument expresses."""
        values = {}
        for argument in self.arguments.values():
            argument_part, _, field = argument.field.removeprefix("not ").partition(".")
            if argument_part == part and argument.written and ("mixtures" in argument.written) == mixtures:
                values[field] = argument.plan_value(get(argument.name))
        return values

    def spelled(self, column: str) -> dict[str, str]:
        """Map from each spelling in a column ("earlier", "role", ...) to the name of its argument."""
        words = {name: one.spellings.get(column, "").split() for name, one in self.arguments.items()}
        return {spelling: name for name, spellings in words.items() for spelling in spellings}


@cache
def table_of(trainer: str) -> Table:
    """Read the table of a trainer's arguments by its name; cached."""
    with (_FOLDER / f"{trainer}.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
    fates: dict[str, dict[str, Fate]] = {}
    for row in rows:
        if row["kind"] in _FATES:
            for column in row.keys() - {"kind", "why", "default"}:
                fate = Fate(row["kind"], row.get("why", ""), row.get("default", ""))
                fates.setdefault(column, {})[row[column]] = fate
    return Table({row["name"]: _argument(row) for row in rows if row["kind"] not in _FATES}, fates)


def _argument(row: Mapping[str, str]) -> Argument:
    """Convert a row of the table into an argument."""
    text, kind = row.get("default"), row["kind"]
    default = None if text is None else _PARSERS.get(kind, str)(text)
    if kind in ("switch", "off"):
        default = text == "true" or (kind == "off" and text is None)
    pairs = [pair.split("=", 1) for pair in row.get("values", "").split()]
    return Argument(
        **{key: row.get(key, "") for key in ("name", "kind", "field", "written", "why")},
        default=default,
        values={ours: next(two for one, two in pairs if one == ours) for ours, _ in pairs},
        synonyms={theirs.lower(): ours for ours, theirs in pairs},
        spellings={key: row[key] for key in ("flag", "earlier", "nemo", "bridge", "role") if key in row},
    )


_OF_TABLE: Any = object()
_OFF = ("", "none", "null", "false", "no", "off", "0", "0.0")
"""Values that switch a setting off, in lower case."""
_DECIDES = re.compile(
    r"^(?!(?:.*\.)?(?:log|eval|wandb|tensorboard)[_-]|.*[._-](?:dir|folder|path|file|addr|port)$)"
    r".*(?:parallel|shard|fsdp|zero|ddp|offload|recompute|activation|gradient_?checkpoint|checkpointing|dtype|precision"
    r"|fp\d|bf16|int\d|quant|\dbit|optim|memory|batch|sequence|seq_?len|layer|hidden|expert|moe|heads|vocab|pipeline"
    r"|tensor|context|stage|mesh|replica|degree|cpu|nvme|cache|buffer|bucket|lora|adapter|peft|fr[eo]ez|gradient"
    r"|grad_|state|master|world|gpus|nodes|(?:^|[^a-z])(?:[tpdce]p|ac|mbs|gbs|mtp|mlp|ffn)(?:[^a-z]|$))",
    re.IGNORECASE,
)
"""Pattern of names of settings that could change layout or memory, except logging, evaluation and paths."""
_BY_NAME = Fate("unpriced", "is not known here, and by its name could change layout or memory", "")


@dataclass(frozen=True, slots=True)
class Reading:
    """Training run read from another trainer's file or command: model, training job, layout and stack,
    without a cluster."""

    model: TransformerSpec
    training: TrainingSpec
    layout: Layout
    stack: StackSpec
    assumptions: tuple[str, ...] = ()
    """Values assumed for missing settings, and settings that are not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Facts about a run that the user states in addition to a trainer's file."""

    gpus: int | None = None
    """Number of GPUs of the run; None: the file has it."""
    node: int = 8
    """Number of GPUs per node."""
    sequence: int = 0
    """Tokens per sequence, if the file does not state them."""
    also: dict[str, Any] = field(default_factory=dict)
    """Arguments of the program that the file is for, by name, or settings that replace the file's, by path."""
    ignore: Sequence[str] = ()
    """Paths of settings of a recipe that are left out."""
    stack: str | None = None


@dataclass(slots=True)
class Settings:
    """Settings of a trainer's file by dotted path (`training.seq_len`), with defaults from the trainer's
    table."""

    values: dict[str, Any]
    table: Table
    read: set[str] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)
    """Values assumed for missing settings, and differences that prices ignore, as sentences."""

    def default_of(self, path: str) -> Any:
        """Trainer's default of a setting; None if the table has none."""
        argument = self.table.arguments.get(path)
        return argument.default if argument is not None else None

    def get(self, path: str, default: Any = _OF_TABLE) -> Any:
        """Value of a setting, which is marked as read. If the file lacks the setting, it is `default` if
        given, else the trainer's default."""
        self.read.add(path)
        return self.values.get(path, self.default_of(path) if default is _OF_TABLE else default)

    def assume(self, sentence: str, *, when: object = True) -> None:
        """Record an assumption, if `when` is true."""
        if when:
            self.assumed.append(sentence)

    def integer(self, path: str, default_value: Any = _OF_TABLE) -> Any:
        """Value of a setting as an integer of at least 1, or the default. Raises InputError if the file sets
        anything else."""
        value = self.get(path, default_value)
        if value is (self.default_of(path) if default_value is _OF_TABLE else default_value):
            return value
        if not isinstance(value, int | float) or not 1 <= value <= LARGEST or value != int(value):
            raise InputError(f"`{path}: {printable(str(value))}` is no whole number above zero")
        return int(value)

    def plan_value(self, path: str) -> Any:
        """Value of a setting, translated into the plan's terms; a list is translated item by item, and a
        missing value gives an empty list.

        Raises:
            InputError: the table has none for it.
        """
        argument, value = self.table.arguments[path], self.get(path)
        values = value if isinstance(value, list) else [] if value is None else [value]
        plan_values = [argument.plan_value(one) for one in values]
        return plan_values if isinstance(value, list) or value is None else plan_values[0]

    def listed(self, path: str) -> list[Any] | None:
        """Value of a setting that must be a list; None if missing. Raises InputError if the file sets
        anything else."""
        value = self.get(path)
        if value is not None and not isinstance(value, list):
            raise InputError(f"`{path}: {printable(str(value))}` is no list")
        return value

    def unread(self) -> list[str]:
        """Assumptions to report, one for each setting of the file that the reader did not use. Raises
        InputError as `unpriced` does."""
        return unpriced(self.unused(self._fate))

    def unused(self, fate: Callable[[str], Fate | None]) -> list[UnusedSetting]:
        """Settings of the file that the reader did not use, each with its treatment."""
        unread = {path: value for path, value in self.values.items() if path not in self.read}
        return [UnusedSetting(path, value, f"{path}: {value}", fate(path)) for path, value in unread.items()]

    def _fate(self, path: str) -> Fate | None:
        """Treatment of an unused setting by the table; an argument that other settings make useless is only
        noted."""
        if path in self.table.arguments:
            return Fate("noted", "other settings leave it without use", str(self.default_of(path)))
        return self.table.fate(path)


def gpus_of(source: str, gpus: int | None) -> int:
    """Number of GPUs that the user states for a source that does not state it. Raises InputError if the user
    does not either."""
    if gpus is None:
        raise InputError(f"the {source} does not say on how many GPUs it runs", hint="--gpus says it")
    return gpus


class UnusedSetting(NamedTuple):
    """Setting of a trainer's file on which the prediction does not depend."""

    key: str
    value: Any
    words: str
    """Setting and value as the source writes them."""
    fate: Fate | None


def unpriced(unused: Iterable[UnusedSetting]) -> list[str]:
    """Assumptions to report about settings on which the prediction does not depend.

    Raises:
        InputError: some could change layout or memory, by the trainer's table or, where that does not have them, by
            their names; all of them.
    """
    stops: dict[str, Problem] = {}
    noted, unknown = [], []
    for setting in unused:
        setting_words, fate = f"`{printable(setting.words)}`", setting.fate
        text = "" if setting.value in ([], {}) else str(setting.value).lower()
        is_off = text in _OFF or (fate is not None and text == (fate.default.lower() or None))
        if fate is None and not is_off and could_decide(setting.key):
            fate = _BY_NAME
        if fate is None:
            unknown.append(setting_words)
        elif fate.kind == "unpriced" and not is_off:
            stops[setting.key] = Problem(setting_words, fate.reason)
        elif fate.kind == "noted" and not is_off:
            noted.append(f"no effect of {setting_words}: {fate.reason}")
    if stops:
        hint = f"to price the run without: {' '.join(f'--ignore {key}' for key in stops)}"
        headline = "settings that layout or memory depend on are not priced"
        raise InputError(headline, problems=[*stops.values()], hint=hint)
    if unknown:
        reason = "not known here, so what it does to step and memory is unknown"
        noted.append(f"no effect of {', '.join(unknown)}: {reason}")
    return noted


def could_decide(name: str) -> bool:
    """Whether a setting could change layout or memory, judged by its name."""
    return _DECIDES.search(name) is not None


def without(values: Mapping[str, Any], keys: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """Copy of nested settings without the paths or tables that `--ignore` names.

    Raises:
        InputError: --ignore names what is not there; all.
    """
    paths = [] if prefix else [f"{path}." for path, _ in by_path(values)]
    if absent := [key for key in keys if not prefix and not any(one.startswith(f"{key}.") for one in paths)]:
        problems = [Problem(f"`{printable(key)}`", "is not there") for key in absent]
        raise InputError("--ignore names settings that the source does not have", problems=problems)
    return {
        name: without(value, keys, f"{prefix}{name}.") if isinstance(value, Mapping) and value else value
        for name, value in values.items()
        if f"{prefix}{name}" not in keys
    }


def settings_of(*documents: Mapping[str, Any], table: Table) -> Settings:
    """Merge the documents of a run into one `Settings`, under current names; null and empty tables are
    removed. Raises InputError as `with_current_names` does."""
    stated = (entry for entry in chain.from_iterable(map(by_path, documents)) if entry[1] not in (None, {}))
    return Settings(with_current_names(stated, table), table)


def with_current_names(entries: Iterable[tuple[str, Any]], table: Table) -> dict[str, Any]:
    """Settings by path, with older spellings replaced by the table's names. Raises InputError if two
    spellings of a setting have different values."""
    spelled, settings, words = table.spelled("earlier"), dict[str, Any](), dict[str, str]()
    for path, value in entries:
        name = spelled.get(path, path)
        if settings.get(name, value) != value:
            problem = Problem(f"`{path}: {printable(str(value))}`", f"contradicts `{words[name]}`")
            raise InputError("a setting is said twice", problems=[problem])
        settings[name], words[name] = value, f"{path}: {printable(str(value))}"
    return settings


def also_settings(text: str) -> dict[str, Any]:
    """Parse settings such as `--training.seq_len 8192 --compile.enable batch=4` into values by path. Raises
    InputError."""
    settings: dict[str, Any] = {}
    words = also_words(text)
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not re.fullmatch(r"(--)?[A-Za-z_][\w.-]*", flag, re.ASCII) or (flag[:2] != "--" and not equals):
            raise InputError(f"--also: `{printable(flag)}` is no setting like `--training.seq_len 8192`")
        values = [value] if value else []
        while not value and words and not words[0].startswith("--") and "=" not in words[0]:
            values.append(words.pop(0))
        path = flag.removeprefix("--").replace("-", "_")
        part, _, last = path.rpartition(".")
        if part and not values and last.startswith("no_"):
            settings[f"{part}.{last[3:]}"] = False
        else:
            literals = [literal(one) for one in values] or [True]
            settings[path] = literals[0] if len(literals) == 1 else literals
    return settings


def literal(text: str) -> Any:
    """Python value of a word of a command line (number, list, true, null), or else its text."""
    try:
        value = ast.literal_eval(text) if len(text) < 10_000 else text
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = text
    return {"null": None, "none": None, "": None, "true": True, "false": False}.get(text.lower(), value)


def also_words(text: str) -> list[str]:
    """Split the text of `--also` into words, as a shell does. Raises InputError for an unclosed quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--also: {str(error).lower()}") from None


def by_path(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of every leaf of a nested document."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from by_path(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
