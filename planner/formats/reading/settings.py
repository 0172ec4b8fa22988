"""Settings of another trainer's file by their paths, and the run that a file describes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from cost_models.axes.layout import Layout
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import LARGEST
from planner.formats.table import Fate, Table

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
"""Words in names of settings that could change layout or memory, but for what is logged and evaluated, and places."""
_BY_NAME = Fate("unpriced", "is not known here, and by its name could change layout or memory", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run of another trainer: a question but for its cluster, and the layout that it runs."""

    model: TransformerSpec
    training: TrainingSpec
    layout: Layout
    stack: StackSpec
    assumptions: tuple[str, ...] = ()
    """What the file does not say, and what was taken instead; settings that are not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is said beside a trainer's file."""

    gpus: int | None = None
    """None: the file says it."""
    node: int = 8
    """GPUs of a node."""
    sequence: int = 0
    """Tokens of a sequence, where the file does not say it."""
    also: dict[str, Any] = field(default_factory=dict)
    """Arguments of the program that the file is for, by name."""
    stack: str | None = None


@dataclass(slots=True)
class Settings:
    """Settings by their paths, as `training.seq_len`, with the trainer's defaults."""

    values: dict[str, Any]
    table: Table
    read: set[str] = field(default_factory=set)

    def usual(self, path: str) -> Any:
        """The trainer's default; None where the table has none."""
        row = self.table.arguments.get(path)
        return row.default if row is not None else None

    def get(self, path: str, default: Any = _OF_TABLE) -> Any:
        """A setting; where the file does not set it the given default, else the trainer's."""
        self.read.add(path)
        return self.values.get(path, self.usual(path) if default is _OF_TABLE else default)

    def whole(self, path: str, default: Any = _OF_TABLE) -> Any:
        """A whole number above zero. Raises InputError where the file sets something else."""
        default = self.usual(path) if default is _OF_TABLE else default
        value = self.get(path, default)
        if value is default:
            return value
        if not isinstance(value, int | float) or not 1 <= value <= LARGEST or value != int(value):
            raise InputError(f"`{path}: {printable(str(value))}` is no whole number above zero")
        return int(value)

    def ours(self, path: str) -> Any:
        """The plan's word for a setting, or for each of a list; an empty list where nothing sets it.

        Raises:
            InputError: the table has none for it.
        """
        known, value = self.table.arguments[path], self.get(path)
        values = value if isinstance(value, list) else [] if value is None else [value]
        found = [known.synonyms.get(str(one).lower()) for one in values]
        if None in found:
            what = f"`{path}: {printable(str(values[found.index(None)]))}` is not priced here"
            raise InputError(what, hint=f"priced are {', '.join(known.values.values())}")
        return found if isinstance(value, list) or value is None else found[0]

    def listed(self, path: str) -> list[Any] | None:
        """A list; None where it is not set. Raises InputError where the file sets something else."""
        value = self.get(path)
        if value is not None and not isinstance(value, list):
            raise InputError(f"`{path}: {printable(str(value))}` is no list")
        return value

    def unread(self) -> list[str]:
        """What is assumed of settings that nothing read. Raises InputError as `unpriced` does."""
        return unpriced(self.left(self._fate))

    def left(self, fate: Callable[[str], Fate | None]) -> list[Left]:
        """Settings that nothing read."""
        left = {path: value for path, value in self.values.items() if path not in self.read}
        return [Left(path, value, f"{path}: {value}", fate(path)) for path, value in left.items()]

    def _fate(self, path: str) -> Fate | None:
        """The table's fate; that of an argument which a price may be made of, and here is not, is to be named."""
        if path in self.table.arguments:
            return Fate("noted", "other settings leave it without use", str(self.usual(path)))
        return self.table.fate(path)


class Left(NamedTuple):
    """A setting that no price is made of."""

    key: str
    value: Any
    words: str
    """As the source has it."""
    fate: Fate | None


def unpriced(left: Iterable[Left]) -> list[str]:
    """What is assumed of settings that no price is made of.

    Raises:
        InputError: some could change layout or memory, by the trainer's table or, where that does not have them, by
            their names; all of them.
    """
    stops: dict[str, Problem] = {}
    noted, unknown = [], []
    for one in left:
        shown, is_off = f"`{printable(one.words)}`", _is_off(one.value, one.fate)
        fate = _BY_NAME if one.fate is None and not is_off and _DECIDES.search(one.key) else one.fate
        if fate is None:
            unknown.append(shown)
        elif fate.kind == "unpriced" and not is_off:
            stops[one.key] = Problem(shown, fate.why)
        elif fate.kind == "noted" and not is_off:
            noted.append(f"no effect of {shown}: {fate.why}")
    if stops:
        hint = f"to price the run without: {' '.join(f'--ignore {key}' for key in stops)}"
        raise InputError(
            "settings that layout or memory depend on are not priced", problems=[*stops.values()], hint=hint
        )
    if unknown:
        noted.append(
            f"no effect of {', '.join(unknown)}: not known here, so what it does to step and memory is unknown"
        )
    return noted


def _is_off(value: Any, fate: Fate | None) -> bool:
    """Whether a value switches its setting off, or is the trainer's default."""
    text = "" if value in ([], {}) else str(value).lower()
    return text in _OFF or (fate is not None and text == (fate.default.lower() or None))


def without(values: Mapping[str, Any], keys: Sequence[str], before: str = "") -> dict[str, Any]:
    """Settings without those that --ignore names by their paths, or by the path of their table.

    Raises:
        InputError: --ignore names what is not there; all.
    """
    paths = [] if before else [f"{path}." for path, _ in by_path(values)]
    if absent := [key for key in keys if not before and not any(one.startswith(f"{key}.") for one in paths)]:
        problems = [Problem(f"`{printable(key)}`", "is not there") for key in absent]
        raise InputError("--ignore names settings that the source does not have", problems=problems)
    return {
        name: without(value, keys, f"{before}{name}.") if isinstance(value, Mapping) and value else value
        for name, value in values.items()
        if f"{before}{name}" not in keys
    }


def settings_of(*documents: Mapping[str, Any], table: Table) -> Settings:
    """Settings of files by the table's names; null, or an empty table, says nothing. Raises InputError as `renamed`."""
    said = (
        (path, one) for path, one in chain.from_iterable(map(by_path, documents)) if one not in (None, {})
    )
    return Settings(renamed(said, table), table)


def renamed(said: Iterable[tuple[str, Any]], table: Table) -> dict[str, Any]:
    """Settings by the table's names. Raises InputError where two spellings of one contradict one another."""
    spelled, found, words = table.spelled("earlier"), dict[str, Any](), dict[str, str]()
    for path, value in said:
        name = spelled.get(path, path)
        if found.get(name, value) != value:
            problem = Problem(f"`{path}: {printable(str(value))}`", f"contradicts `{words[name]}`")
            raise InputError("a setting is said twice", problems=[problem])
        found[name], words[name] = value, f"{path}: {printable(str(value))}"
    return found


def said_beside(text: str) -> dict[str, Any]:
    """`--training.seq_len 8192 --compile.enable batch=4` by path. Raises InputError."""
    found: dict[str, Any] = {}
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
            found[f"{part}.{last[3:]}"] = False
        else:
            said = [literal(one) for one in values] or [True]
            found[path] = said[0] if len(said) == 1 else said
    return found


def literal(text: str) -> Any:
    """A value as it is written on a command line."""
    known = {"null": None, "none": None, "": None, "true": True, "false": False}
    try:
        found = ast.literal_eval(text) if len(text) < 10_000 else text
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = text
    return known.get(text.lower(), found)


def also_words(text: str) -> list[str]:
    """The words of `--also`. Raises InputError for a quote that nothing closes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--also: {str(error).lower()}") from None


def by_path(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values of tables within tables by their paths."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from by_path(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
