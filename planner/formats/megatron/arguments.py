"""Arguments of Megatron-LM's `pretrain_gpt.py` as settings by the names of their values, and back.

Sources of `arguments.csv`: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py; its column
`earlier` has names of 2021 and 2022 that scripts still use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any

from cost_models.errors import InputError, Problem
from cost_models.units import LARGEST
from planner.formats.exporter import Settings
from planner.formats.reading.settings import Left, without
from planner.formats.reading.shell_words import is_known, may_hold_arguments, plain
from planner.formats.table import Fate, table_of

TABLE = "megatron"
_EXCLUDE = (
    ("bf16", "fp16"),
    ("swiglu", "squared_relu"),
    ("pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage"),
    ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage"),
    ("train_iters", "train_samples"),
    ("fp8", "fp4"),
)
OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
OFFLOADED_OF_EXPERTS = ("expert_fc1", "moe_act")
_MOST_BLOCKS = 100_000
_PATTERN_PART = re.compile(r"\(?\[([01](?:,[01])*)\]\)?(?:\*(\d{1,4}))?", re.ASCII)


@dataclass(slots=True)
class Arguments:
    """Arguments of a command: settings by name, arguments that are not known, and problems."""

    values: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    """Name → the words of the command that set it."""
    left: list[Left] = field(default_factory=list)
    """Arguments that no price is made of."""
    problems: list[Problem] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        """A setting; where it is not set the given default, else that of the table."""
        return self.values.get(name, table_of(TABLE).arguments[name].default if default is None else default)

    def has(self, name: str) -> bool:
        """Whether the command sets an argument."""
        return name in self.values

    def say(self, name: str, value: Any, words: str) -> None:
        """Set an argument. A different value before is a contradiction, kept as a problem."""
        if name in self.values and self.values[name] != value:
            self.problems.append(Problem(f"`{words}`", f"contradicts `{self.flags[name]}`"))
        self.values[name] = value
        self.flags[name] = words


def read_arguments(words: Sequence[str], ignore: Sequence[str] = ()) -> Arguments:
    """Read the words of a command as settings, without flags that are left out (`ignore`).

    Raises:
        InputError: values that cannot be read, arguments that contradict one another, what only the shell knows; all.
    """
    said = Arguments()
    flags = _by_flag(words, said)
    left = without({_dest(flag): None for flag, _ in flags}, [_dest(key) for key in ignore])
    for flag, values in flags:
        if _dest(flag) in left:
            _take(said, flag, values)
    for one, other in _EXCLUDE:
        if said.get(one) and said.get(other):
            said.problems.append(Problem(f"`{said.flags[other]}`", f"contradicts `{said.flags[one]}`"))
    if said.get("recompute_activations"):
        if said.get("recompute_granularity", "selective") != "selective":
            words_ = said.flags["recompute_granularity"]
            said.problems.append(Problem(f"`{words_}`", "contradicts `--recompute-activations`"))
        said.values["recompute_granularity"] = "selective"
    if said.problems:
        hint = ""
        if any("only the shell knows" in one.what for one in said.problems):
            hint = (
                "paste the command with values in place, as `bash -x run.sh` or `ps -ww -o args` prints it; "
                '--also "SIZE=7b" sets variables that the script is started with'
            )
        raise InputError("the command cannot be read", problems=said.problems, hint=hint)
    return said


def _by_flag(words: Sequence[str], said: Arguments) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            what = "is no argument" if is_known(word) else "only the shell knows what this is"
            said.problems.append(Problem(f"`{plain(word)}`", what))
    return found


_ACTS: Mapping[str, Callable[[Arguments], Any]] = {
    "cp_comm_type": lambda said: said.get("context_parallel_size") > 1,
    "recompute_modules": lambda said: said.get("recompute_granularity") == "selective",
    "offload_modules": lambda said: said.get("fine_grained_activation_offloading"),
    "moe_token_dispatcher_type": lambda said: said.get("num_experts"),
    "moe_router_score_function": lambda said: said.get("num_experts"),
    "data_parallel_sharding_strategy": lambda said: uses_fsdp(said),
}
"""Argument → whether it does anything, beside the others."""


def unlisted(said: Arguments) -> list[Left]:
    """Arguments with values that no price is made of, where they act."""
    found = []
    for name in dict.fromkeys([*said.values, "offload_modules"]):
        value, switch = said.get(name) or (), name
        wrong: Sequence[str]
        several = [value] if isinstance(value, str) else value
        known = list(table_of(TABLE).arguments[name].values.values())
        wrong = known and [one for one in several if one not in known]
        why = f"has a value that is not priced; priced are {', '.join(known)}"
        if name == "offload_modules":
            known = [*OFFLOADED, *(OFFLOADED_OF_EXPERTS if said.get("num_experts") else ())]
            wrong, switch = sorted(set(known) - set(value)), "fine_grained_activation_offloading"
            why = f"leaves the inputs of {', '.join(wrong)} on the GPU: all or none are priced on the host"
        elif name.startswith("exp_avg_") and said.get("exp_avg_dtype") != said.get("exp_avg_sq_dtype"):
            wrong, why = several, "both moments are priced in one type"
        elif name == "cp_comm_type" and len(set(value)) > 1:
            wrong, why = several, "all blocks are priced with one kind"
        if wrong and _ACTS.get(name, bool)(said):
            key = re.split("[: ]", said.flags[switch].removeprefix("--"))[0]
            found.append(
                Left(key, value, said.flags.get(name, said.flags[switch]), Fate("unpriced", why, ""))
            )
    return found


def uses_fsdp(said: Arguments) -> bool:
    """Whether Megatron-FSDP shards, by its name of today or that of 2025."""
    return bool(said.get("use_megatron_fsdp") or said.get("use_custom_fsdp"))


def _dest(flag: str) -> str:
    """The name of a flag's value."""
    return flag.lstrip("-").replace("-", "_")


@cache
def _flags() -> dict[str, tuple[str, bool | None]]:
    """Flag → the name of its value, and the value of a flag that takes none."""
    found: dict[str, tuple[str, bool | None]] = {}
    for name, row in table_of(TABLE).arguments.items():
        dashed = name.replace("_", "-")
        spellings = " ".join([f"--{dashed}", *(row.others.get(column, "") for column in ("flag", "earlier"))])
        if row.kind != "off":
            found |= dict.fromkeys(spellings.split(), (name, True if row.kind == "switch" else None))
        if row.kind in ("switch", "off"):
            found[flag_of(name, False)] = name, False
    return found


def _take(said: Arguments, flag: str, values: list[str]) -> None:
    words = plain(" ".join([flag, *values]))
    dashed = flag if flag.startswith("--no") else f"--{flag[2:].replace('_', '-')}"
    if (found := _flags().get(flag) or _flags().get(dashed)) is None:
        _pass_over(said, flag, values, words)
        return
    name, value = found
    row = table_of(TABLE).arguments[name]
    arity = 0 if value is not None else max(1, len(values)) if row.kind == "list" else 1
    try:
        if unknown := [one for one in values if not is_known(one)]:
            raise ValueError(f"only the shell knows what `{plain(unknown[0])}` is")
        if len(values) != arity:
            raise ValueError(f"takes {'no value' if not arity else 'one value'}, not {len(values)}")
        said.say(name, _value(row.kind, values) if value is None else value, words)
    except ValueError as error:
        if row.why and not values[1:]:
            said.left.append(Left(name, True, words, Fate("noted", f"{error}, and {row.why}", "")))
        else:
            said.problems.append(Problem(f"`{words}`", str(error)))


def _pass_over(said: Arguments, flag: str, values: list[str], words: str) -> None:
    """Keep an argument that the table does not have; values that may hold further arguments are a problem."""
    dest, table = _dest(flag), table_of(TABLE)
    fate, off = table.fate(dest), dest.removeprefix("no_")
    if fate is None and off != dest:
        fate, values = table.fate(off), ["false"]
    said.left.append(Left(flag[2:], " ".join(values) if values else True, words, fate))
    first = len(values) if "data-path" in flag else 1
    for one in values:
        if "[@]" in one or (one in values[first:] and may_hold_arguments(one)):
            what = "only the shell knows which arguments it holds"
            said.problems.append(Problem(f"`{plain(one)}`", what))


def _value(kind: str, values: list[str]) -> Any:
    text = values[0]
    if kind in ("list", "name"):
        return tuple(values) if kind == "list" else text
    if kind == "pattern":
        return _pattern(text)
    wanted = "whole number" if kind == "whole" else "number"
    try:
        value = int(text) if kind == "whole" else float(text)
    except ValueError:
        raise ValueError(f"`{text}` is no {wanted}") from None
    if not abs(value) <= LARGEST:
        raise ValueError(f"`{text[:40]}` is no {wanted} that counts anything")
    return value


def _pattern(text: str) -> Any:
    """`3`, `127,0` or `([0]*3+[1]*58)`."""
    bare = text.replace(" ", "")
    if re.fullmatch(r"\d{1,9}", bare, re.ASCII):
        return int(bare)
    if re.fullmatch(r"\(?-?\d{1,9},-?\d{1,9}\)?", bare, re.ASCII):
        return tuple(ast.literal_eval(bare if bare.startswith("(") else f"({bare})"))
    found: list[int] = []
    inner, _, times = bare.rpartition(")*") if bare.startswith("(") and ")*" in bare else (bare, "", "1")
    inner = inner.removeprefix("(").removesuffix(")")
    for part in inner.split("+"):
        match = _PATTERN_PART.fullmatch(part)
        if match is None or not times.isdecimal():
            raise ValueError(f"`{text}` is no pattern like `[0]*3+[1]*58`")
        found += [int(one) for one in match[1].split(",")] * int(match[2] or 1)
        if len(found) * int(times[:9]) > _MOST_BLOCKS:
            raise ValueError(f"`{text[:40]}` names more blocks than any model has")
    return tuple(found) * int(times)


def flag_of(name: str, value: Any) -> str:
    """The flag that sets an argument to a value."""
    row = table_of(TABLE).arguments[name]
    return row.others.get("flag", ("--no-" if value is False else "--") + name.replace("_", "-"))


def written(settings: Settings) -> list[list[str]]:
    """Settings as arguments of `pretrain_gpt.py`: the words of each flag with its values."""
    return [[flag_of(name, value), *_words(name, value)] for name, value in settings.items()]


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return []
    if name == "window_size":
        return [",".join(map(str, value))]
    if table_of(TABLE).arguments[name].kind == "pattern":
        return ["+".join(f"[{one}]*{len(list(run))}" for one, run in groupby(value))]
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]
