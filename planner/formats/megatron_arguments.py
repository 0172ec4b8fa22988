"""Arguments of Megatron-LM's `pretrain_gpt.py`: parsing into settings by the names of their values, and
writing.

Sources of `megatron.csv`: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py; its column
`earlier` has names of 2021 and 2022 that scripts still use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, groupby
from typing import Any

from cost_models.errors import InputError, Problem
from cost_models.units import LARGEST
from planner.formats.bash import is_decided, may_hold_arguments, plain
from planner.formats.exporter import Written
from planner.formats.settings import (
    Argument,
    Fate,
    Settings,
    Table,
    UnusedSetting,
    could_decide,
    literal,
    table_of,
    without,
)

TABLE = table_of("megatron")
_EXCLUDE = """
    bf16 fp16, swiglu squared_relu, train_iters train_samples, fp8 fp4,
    pipeline_model_parallel_layout num_layers_per_virtual_pipeline_stage,
    num_virtual_stages_per_pipeline_rank num_layers_per_virtual_pipeline_stage
"""
"""Pairs of arguments that exclude each other."""
OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
OFFLOADED_OF_EXPERTS = ("expert_fc1", "moe_act")
_MOST_BLOCKS = 100_000
_PATTERN_PART = re.compile(r"\(?\[([01](?:,[01])*)\]\)?(?:\*(\d{1,4}))?", re.ASCII)


@dataclass(slots=True)
class Arguments(Settings):
    """Arguments of a Megatron-LM command as settings by name, with unknown arguments and problems."""

    values: dict[str, Any] = field(default_factory=dict)
    table: Table = TABLE
    flags: dict[str, str] = field(default_factory=dict)
    """Words of the command that set each argument, by its name."""
    unpriced: list[UnusedSetting] = field(default_factory=list)
    """Arguments on which no price depends."""
    problems: list[Problem] = field(default_factory=list)
    tokenizer: str = ""
    """Kind of the tokenizer; GPT-2's if the command only has a merge file."""

    def has(self, name: str) -> bool:
        """Whether the command sets an argument explicitly."""
        return name in self.values

    def assign(self, name: str, value: Any, flag: str) -> None:
        """Record the value of an argument. A second, different value is recorded as a problem."""
        if name in self.values and self.values[name] != value:
            self.refuse(flag, f"contradicts `{self.flags[name]}`")
        self.values[name], self.flags[name] = value, flag

    def refuse(self, words: str, reason: str, row: Argument | None = None) -> None:
        """Record the `words` of the command as a problem, or only as a note if the table says in `row` that
        no price depends on the argument."""
        if row and row.why:
            self.unpriced += [UnusedSetting(row.name, True, words, Fate("noted", f"{reason}, and {row.why}"))]
        else:
            self.problems.append(Problem(f"`{words}`", reason))


_PASTE = (
    "paste the command with values in place, as `bash -x run.sh` or `ps -ww -o args` prints it; "
    '--also "SIZE=7b" sets variables that the script is started with'
)


def read_arguments(words: Sequence[str], ignore: Sequence[str] = ()) -> Arguments:
    """Parse the words of a Megatron-LM command into settings by name, without the flags to `ignore`.

    Raises:
        InputError: values that cannot be read, arguments that contradict one another, what only the shell knows; all.
    """
    args = Arguments()
    flags = _by_flag(words, args)
    first_values = {flag: "".join(values[:1]) for flag, values in reversed(flags)}
    default = "GPT2BPETokenizer" if first_values.get("--merge-file") else ""
    args.tokenizer = first_values.get("--tokenizer-type") or default
    names = {_setting_name(flag): None for flag, _ in flags}
    read_names = without(names, [_setting_name(key) for key in ignore])
    for flag, values in flags:
        if _setting_name(flag) in read_names:
            _take(args, flag, values)
    for name, excluded in map(str.split, _EXCLUDE.split(",")):
        if args.get(name) and args.get(excluded):
            args.refuse(args.flags[excluded], f"contradicts `{args.flags[name]}`")
    if args.get("recompute_activations"):
        if args.get("recompute_granularity", "selective") != "selective":
            args.refuse(args.flags["recompute_granularity"], "contradicts `--recompute-activations`")
        args.values["recompute_granularity"] = "selective"
    if args.problems:
        hint = _PASTE if any("only the shell knows" in problem.what for problem in args.problems) else ""
        raise InputError("the command cannot be read", problems=args.problems, hint=hint)
    return args


def _by_flag(words: Sequence[str], args: Arguments) -> list[tuple[str, list[str]]]:
    """Flags of a command with their values, in order; words without a flag are recorded as problems."""
    flags: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flags.append((flag, [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
        else:
            reason = "is no argument" if is_decided(word) else "only the shell knows what this is"
            args.refuse(plain(word), reason)
    return flags


_ACTS: Mapping[str, Callable[[Arguments], Any]] = {
    "cp_comm_type": lambda args: args.get("context_parallel_size") > 1,
    "recompute_modules": lambda args: args.get("recompute_granularity") == "selective",
    "offload_modules": lambda args: args.get("fine_grained_activation_offloading"),
    "data_parallel_sharding_strategy": lambda args: uses_fsdp(args),
}
"""Function that says whether an argument has an effect, given the other arguments, by argument."""


def unpriced_values(args: Arguments) -> list[UnusedSetting]:
    """Arguments that have an effect, with a value that the cost model does not price."""
    unused = []
    for name in dict.fromkeys([*args.values, "offload_modules"]):
        value, switch = args.get(name) or (), name
        several = [value] if isinstance(value, str) else value
        priced = list(TABLE.arguments[name].values.values())
        unpriced = priced and [one for one in several if one not in priced]
        reason = f"has a value that is not priced; priced are {', '.join(priced)}"
        if name == "offload_modules":
            priced = [*OFFLOADED, *(OFFLOADED_OF_EXPERTS if args.get("num_experts") else ())]
            unpriced, switch = sorted(set(priced) - set(value)), "fine_grained_activation_offloading"
            unpriced_names = ", ".join(unpriced)
            reason = f"leaves the inputs of {unpriced_names} on the GPU: all or none are priced on the host"
        elif name.startswith("exp_avg_") and args.get("exp_avg_dtype") != args.get("exp_avg_sq_dtype"):
            unpriced, reason = [*several], "both moments are priced in one type"
        elif name == "cp_comm_type" and len(set(value)) > 1:
            unpriced, reason = [*several], "all blocks are priced with one kind"
        if unpriced and _ACTS.get(name, bool)(args):
            words, fate = args.flags[switch], Fate("unpriced", reason)
            key = re.split("[: ]", words.removeprefix("--"))[0]
            unused.append(UnusedSetting(key, value, args.flags.get(name, words), fate))
    return unused


def uses_fsdp(args: Arguments) -> bool:
    """Whether the command uses Megatron-FSDP (`--use-megatron-fsdp`, or `--use-custom-fsdp` as in 2025)."""
    return bool(args.get("use_megatron_fsdp") or args.get("use_custom_fsdp"))


def _setting_name(flag: str) -> str:
    """Name of the setting that a flag sets, as argparse derives it: `num_layers` for `--num-layers`."""
    return flag.lstrip("-").replace("-", "_")


@cache
def _flags() -> dict[str, tuple[str, bool | None]]:
    """For each flag, the name of its setting and the value for which the flag stands (None if a value follows
    the flag)."""
    flags: dict[str, tuple[str, bool | None]] = {}
    for name, row in TABLE.arguments.items():
        if row.kind != "off":
            other_spellings = " ".join(row.spellings.get(column, "") for column in ("flag", "earlier"))
            spellings = (f"--{name.replace('_', '-')}", *other_spellings.split())
            flags |= dict.fromkeys(spellings, (name, True if row.kind == "switch" else None))
        if row.kind in ("switch", "off"):
            flags[flag_of(name, False)] = name, False
    return flags


def _take(args: Arguments, flag: str, values: list[str]) -> None:
    """Record one flag with its values, or the problem with them."""
    words = plain(" ".join([flag, *values]))
    dashed = flag if flag.startswith("--no") else f"--{flag[2:].replace('_', '-')}"
    if (entry := _flags().get(flag) or _flags().get(dashed)) is None:
        _pass_over(args, flag, values, words)
        return
    name, value = entry
    row = TABLE.arguments[name]
    arity = 0 if value is not None else max(1, len(values)) if row.kind == "list" else 1
    try:
        if unknown := [one for one in values if not is_decided(one)]:
            raise ValueError(f"only the shell knows what `{plain(unknown[0])}` is")
        if len(values) != arity:
            raise ValueError(f"takes {'no value' if not arity else 'one value'}, not {len(values)}")
        args.assign(name, _value(row.kind, values) if value is None else value, words)
    except ValueError as error:
        args.refuse(words, str(error), None if values[1:] else row)


def _pass_over(args: Arguments, flag: str, values: list[str], words: str) -> None:
    """Record an argument that the table does not list; a value that may contain further arguments is a
    problem."""
    dest, table = _setting_name(flag), TABLE
    fate, off = table.fate(dest), dest.removeprefix("no_")
    if fate is None and off != dest:
        fate, values = table.fate(off), ["false"]
    args.unpriced.append(UnusedSetting(flag[2:], " ".join(values) if values else True, words, fate))
    first = len(values) if "data-path" in flag else 1
    for value in values:
        if "[@]" in value or (value in values[first:] and may_hold_arguments(value)):
            args.refuse(plain(value), "only the shell knows which arguments it holds")


def _value(kind: str, values: list[str]) -> Any:
    """Value of an argument of the given kind, parsed from its words. Raises ValueError."""
    text = values[0]
    if kind in ("list", "name"):
        return tuple(values) if kind == "list" else text
    if kind == "pattern":
        return _pattern(text)
    kind_words = "whole number" if kind == "whole" else "number"
    try:
        value = int(text) if kind == "whole" else float(text)
    except ValueError:
        raise ValueError(f"`{text}` is no {kind_words}") from None
    if not abs(value) <= LARGEST:
        raise ValueError(f"`{text[:40]}` is no {kind_words} that counts anything")
    return value


def _pattern(text: str) -> Any:
    """Parse a pattern of blocks, such as `3`, `127,0` or `([0]*3+[1]*58)`."""
    bare = text.replace(" ", "")
    if re.fullmatch(r"\d{1,9}", bare, re.ASCII):
        return int(bare)
    if re.fullmatch(r"\(?-?\d{1,9},-?\d{1,9}\)?", bare, re.ASCII):
        return tuple(ast.literal_eval(bare if bare.startswith("(") else f"({bare})"))
    marks: list[int] = []
    inner, _, times = bare.rpartition(")*") if bare.startswith("(") and ")*" in bare else (bare, "", "1")
    inner = inner.removeprefix("(").removesuffix(")")
    for part in inner.split("+"):
        match = _PATTERN_PART.fullmatch(part)
        if match is None or not times.isdecimal():
            raise ValueError(f"`{text}` is no pattern like `[0]*3+[1]*58`")
        marks += [int(one) for one in match[1].split(",")] * int(match[2] or 1)
        if len(marks) * int(times[:9]) > _MOST_BLOCKS:
            raise ValueError(f"`{text[:40]}` names more blocks than any model has")
    return tuple(marks) * int(times)


def flag_of(name: str, value: Any) -> str:
    """Megatron-LM flag that gives an argument this value, such as `--no-bias-gelu-fusion`."""
    row = TABLE.arguments[name]
    return row.spellings.get("flag", ("--no-" if value is False else "--") + name.replace("_", "-"))


def argument_words(settings: Written) -> list[list[str]]:
    """Arguments of `pretrain_gpt.py` for the settings, one list of words (flag and values) for each."""
    return [[flag_of(name, value), *_words(name, value)] for name, value in settings.items()]


def _words(name: str, value: Any) -> list[str]:
    """Words that follow the flag of an argument with this value."""
    if isinstance(value, bool):
        return []
    if name == "window_size":
        return [",".join(map(str, value))]
    if TABLE.arguments[name].kind == "pattern":
        return ["+".join(f"[{one}]*{len(list(run))}" for one, run in groupby(value))]
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


_PRINTED = re.compile(r"(?:^|[:\s])  (\w+) \.{2,} (.*?)\s*$", re.MULTILINE | re.ASCII)
"""Line of the list of arguments at the head of a log, perhaps behind the rank that prints it."""
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_DERIVED = """
    encoder_num_layers encoder_seq_length world_size data_parallel_size transformer_pipeline_model_parallel_size
    virtual_pipeline_model_parallel_size
"""
"""Printed settings that follow from others."""


def printed_arguments(text: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Read the arguments that Megatron-LM lists at the head of its log. Returns values other than the
    defaults by name, the words of a command for them, and the names of unknown settings that could change
    layout or memory."""
    values, words, unknown = dict[str, Any](), list[str](), list[str]()
    earlier = TABLE.spelled("earlier")
    for printed, shown in _PRINTED.findall(text):
        name = earlier.get(f"--{printed.replace('_', '-')}", printed)
        value = literal(shown.rpartition(".")[2] if re.match(r"torch\.|AttnBackend\.", shown) else shown)
        value = _DTYPES.get(value, value) if isinstance(value, str) else value
        row = TABLE.arguments.get(name)
        if name in values or value in (None, [], *([] if row is None else [row.default])):
            continue
        values[name] = value
        if name in _DERIVED.split():
            continue
        if row is not None:
            words += chain(*argument_words({name: value}))
        elif TABLE.fate(name) is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        elif value is not False and could_decide(name):
            unknown.append(name)
    return values, words, unknown
