"""Registry of trainers to whose files plans are exported, and from whose files and commands runs are read.
For other trainers it finds the trainer of a file, and the equivalent `estimate` command.

Columns of `foreign.csv`: trainer; keys of its files (all of an alternative, which `|` parts; a key may be a table);
words of its commands and Python as a regular expression; then the paths of its settings, the first that is set counts;
and the software stack of the catalogue that prices the trainer.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.defaults import OWN_STACKS
from cost_models.documents import printable
from cost_models.errors import InfeasibleError, InputError, UnknownNameError
from cost_models.families import load
from cost_models.files.loading import resolve_model
from cost_models.files.reading import is_pipe, read_document, read_text
from cost_models.question import Question
from planner.formats.exporter import Exporter, Job, Target, settings_of
from planner.formats.settings import by_path
from planner.formats.torchrec import MOST_BYTES
from planner.formats.trainers import TRAINERS, trainers_of
from planner.plan import Plan

READERS = ("megatron", "torchtitan", "nemo", "deepspeed", "accelerate", "axolotl", "torchrec")


_AXES = ("tp", "pp", "cp", "dp", "ep", "mbs", "zero")


def refuse_foreign(source: str, document: Mapping[str, Any], text: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if a file or a command belongs to a trainer that is not supported; the hint has an
    equivalent `estimate` command. `options` are the user's `model`, `cluster` and `gpus`."""
    values = dict(by_path(document))
    paths = [f"{path}." for path in values]
    with Path(__file__).with_name("foreign.csv").open(encoding="utf-8", newline="") as file:
        trainers = tuple(csv.DictReader(file))
    for row in trainers:
        keys = [each.split() for each in row["keys"].split("|") if each]
        has = any(all(any(path.startswith(f"{key}.") for path in paths) for key in each) for each in keys)
        if has or (text and re.search(row["command"], text)):
            raise InputError(
                f"`{source}` seems to be of {row['trainer']}, whose files are not read",
                hint=f"read are those of {', '.join(READERS)}; the same is asked by: {_estimate(row, values, options)}",
            )


def _estimate(row: Mapping[str, str], values: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Command `estimate` that is equivalent to a foreign trainer's file, with capital letters in place of
    missing sizes."""
    settings = {name: next((values[one] for one in row[name].split() if one in values), None) for name in row}
    is_size = re.compile(r"[1-9]\d{0,8}", re.ASCII).fullmatch
    sizes = {name: int(str(value)) for name, value in settings.items() if is_size(str(value))}
    split = math.prod(sizes.get(axis, 1) for axis in _AXES[:3])
    gpus = options.get("gpus") or sizes.get("gpus", 0) * sizes.get("nodes", 1) or split * sizes.get("dp", 0)
    if gpus and str(gpus).isdecimal():
        sizes.setdefault("dp", int(gpus) // split)
    if {"mbs", "dp"} <= sizes.keys():
        sizes.setdefault("batch", sizes["mbs"] * sizes.get("steps", 1) * sizes["dp"])
    model, cluster = str(options.get("model") or settings["model"]), str(options.get("cluster") or "CLUSTER")
    try:
        resolve_model(model)
    except (InputError, UnknownNameError, OSError):
        model = "MODEL"
    layout = " ".join(f"{axis}{sizes[axis]}" for axis in _AXES if axis in sizes)
    words = ["meshwright estimate", printable(model), cluster, f"--gpus {gpus or 'N'}"]
    words += [f"--global-batch {sizes.get('batch', 'B')}", f"--sequence {sizes.get('sequence', 'S')}"]
    words += [f"--task {settings['task']}"] if settings["task"] in ("lora", "qlora") else []
    words += [f"--stack {row['stack']}"] if row["stack"] else []
    return f'{" ".join(words)} --layout "{layout or "LAYOUT"}"'


_TARGETS = {"megatron": "megatron:TARGET", "torchtitan": "torchtitan:TARGET"}
_TARGETS |= {"deepspeed": "deepspeed:TARGET", "nemo": "nemo:TARGET"}
_TARGETS |= {"accelerate": "fsdp2:ACCELERATE", "axolotl": "fsdp2:AXOLOTL"}
_SCRIPTS = {"torchrun": "torchrun:TORCHRUN", "slurm": "torchrun:SLURM"}
EXPORTERS = _TARGETS | _SCRIPTS | {"torchrec": "torchrec:EXPORTER"}
"""Module and object in `planner.formats` of each exporter, by its name; imported on first use."""
_SUFFIXES = {".py": ("nemo", "torchtitan"), ".toml": ("torchtitan",), ".json": ("deepspeed", "torchrec")}
_SUFFIXES |= dict.fromkeys((".yaml", ".yml"), ("axolotl", "accelerate", "nemo"))
_SUFFIXES |= dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch", ".log", ".out", ".txt"), ("megatron",))
"""Trainers that use each suffix of files; the content tells the files of several apart, and the last trainer has the
rest."""
MARKS = {"axolotl": {"base_model", "micro_batch_size"}, "accelerate": {"distributed_type", "fsdp_config"}}
MARKS["deepspeed"] = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"}
MARKS["nemo"] = {"trainer", "model"}
"""Keys that identify each trainer's files: a file has at least one of them, NeMo's have both."""
_BRIDGE = "megatron.bridge"
"""Package that every recipe of NeMo's Megatron Bridge imports from."""


def exporter_named(name: str) -> Exporter:
    """Exporter with the given name. Raises UnknownNameError. Raises UnknownNameError."""
    if name not in EXPORTERS:
        raise UnknownNameError(
            "trainer to export to", name, EXPORTERS, hint=f"there are {', '.join(EXPORTERS)}"
        )
    exporter: Exporter | Target = load(f"planner.formats.{EXPORTERS[name]}")
    return Exporter(write=exporter.write) if isinstance(exporter, Target) else exporter


def exporter_of(plan: Plan) -> tuple[str, str]:
    """Name of an exporter that can write a plan, with an empty reason; if there is none, an empty name with
    the reason. The user's trainer is tried alone if one was named, else the trainers of the plan's stack."""
    requested = plan.user_restrictions.trainer
    executors = ["torchrun"] if plan.stack.name in OWN_STACKS else []
    names = [requested] if requested else [*trainers_of(plan.stack), *executors]
    refused = [] if names else [f"stack {plan.stack.name} has no exporter"]
    for name in names:
        try:
            exporter_named(name).write(plan, "plan.yaml", False)
        except (InputError, InfeasibleError) as error:
            refused += [*map(str, error.problems), error.headline][:1]
        else:
            return name, ""
    return "", refused[0]


def reader_of(source: str, reader: str | None = None, options: Mapping[str, Any] | None = None) -> str:
    """Name of the reader ("megatron", "torchtitan", ...) for a trainer's file or command line: the requested
    reader, or else found by file suffix and contents. `options` are the user's `model`, `cluster` and `gpus`.

    Raises:
        UnknownNameError: there is no such reader.
        InputError: neither its name nor its words tell, or they are of a trainer whose files are not read.
    """
    names = ", ".join(READERS)
    hint = f"--from says it: {names}"
    if reader is not None:
        if reader not in READERS:
            raise UnknownNameError("trainer to import from", reader, READERS, hint=f"there are {names}")
        return reader
    if is_command(source):
        return "megatron"
    suffix = PurePath(source).suffix
    if suffix not in _SUFFIXES:
        raise InputError(f"`{source}` does not tell whose it is", hint=hint)
    *marked, fallback = _SUFFIXES[suffix]
    if marked and is_pipe(source):
        message = f"`{source}` is a pipe, which is read once: its words cannot tell whose it is"
        raise InputError(message, hint=hint)
    text, document = "", dict[str, Any]()
    with suppress(InputError, tomllib.TOMLDecodeError, RecursionError):  # its reader says why
        text = read_text(source) if suffix in (".py", ".toml") else ""
        document = tomllib.loads(text) if suffix == ".toml" else {}
    if suffix in (".json", ".yaml", ".yml"):
        value = read_document(source, most_bytes=MOST_BYTES).value
        document = value if isinstance(value, dict) else {}
    is_bridge = suffix == ".py" and _BRIDGE in text
    refuse_foreign(source, document, text if suffix == ".py" and not is_bridge else "", options or {})
    for name in marked:
        if is_bridge or MARKS.get(name, set()) & document.keys():
            return name
    if fallback == "nemo" and not document.keys() >= MARKS["nemo"]:
        hint = f"read are those of {names}; `meshwright estimate` asks about any layout"
        raise InputError(f"`{source}` is of no trainer that is known here", hint=hint)
    return fallback


def is_command(source: str) -> bool:
    """Whether a source is the text of a command, not the name of a file."""
    return "\n" in source or " --" in source or source.startswith("--")


def switch_words(old_question: Question, new_question: Question, layout: Layout) -> str:
    """Text of the trainer settings to add and to remove when the new question replaces the old one; empty if
    no trainer has settings for the change."""
    names = [name for name in _TARGETS if TRAINERS[name].stack == old_question.stack.name]
    if not names:
        return ""
    target: Target = load(f"planner.formats.{EXPORTERS[names[0]]}")
    old, new = (settings_of(target.field_exports(Job(one, layout))) for one in (old_question, new_question))
    added = {name: value for name, value in new.items() if old.get(name) != value}
    dropped = {name: value for name, value in old.items() if name not in new}
    words = [target.spelled(added)] if added else []
    return ", ".join(words + ([f"without {target.spelled(dropped)}"] if dropped else []))
