"""Trainers whose files plans are written as, and whose files and commands runs are read from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.defaults import OWN_STACKS
from cost_models.errors import InfeasibleError, InputError, UnknownNameError
from cost_models.families import load
from cost_models.files.reading import is_pipe, read_document, read_text
from cost_models.question import Question
from planner.formats.exporter import Exporter, Job, settings_of
from planner.formats.foreign import READERS, refuse_foreign
from planner.formats.target import Target
from planner.formats.trainers import TRAINERS, trainers_of
from planner.plan import Plan

_TARGETS = {"megatron": "megatron.script:TARGET", "torchtitan": "torchtitan:TARGET"}
_TARGETS |= {"deepspeed": "deepspeed:TARGET", "nemo": "nemo.recipe:TARGET"}
_TARGETS |= {"accelerate": "fsdp2:ACCELERATE", "axolotl": "fsdp2:AXOLOTL"}
_OTHER = {"torchrun": "torchrun:TORCHRUN", "slurm": "torchrun:SLURM", "torchrec": "torchrec:EXPORTER"}
EXPORTERS = _TARGETS | _OTHER
"""Name of an exporter → where in `planner.formats` it is, imported on first use, as most plans need one."""
_SUFFIXES = {".py": ("nemo", "torchtitan"), ".toml": ("torchtitan",), ".json": ("deepspeed", "torchrec")}
_SUFFIXES |= dict.fromkeys((".yaml", ".yml"), ("axolotl", "accelerate", "nemo"))
_SUFFIXES |= dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch"), ("megatron",))
"""Suffix of a file → trainers that use it; the content tells the files of several apart, the last one's being the
rest."""
_MARKS = {"axolotl": {"base_model", "micro_batch_size"}, "accelerate": {"distributed_type", "fsdp_config"}}
_MARKS["deepspeed"] = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"}
"""Trainer → keys that tell its files from others': each file has at least one."""


def exporter_named(name: str) -> Exporter:
    """The exporter with this name. Raises UnknownNameError."""
    if name not in EXPORTERS:
        known = tuple(EXPORTERS)
        raise UnknownNameError("trainer to export to", name, known, hint=f"there are {', '.join(known)}")
    exporter: Exporter | Target = load(f"planner.formats.{EXPORTERS[name]}")
    return Exporter(write=exporter.write) if isinstance(exporter, Target) else exporter


def exporter_of(plan: Plan) -> tuple[str, str]:
    """Name of the exporter that writes a plan (by its trainer, else by its stack), and an empty reason; if none
    does, an empty name and the reason."""
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
    """Name of the reader ("megatron", "torchtitan", ...) for a trainer's file or command line, as requested or
    else by file suffix and contents. `options` are the user's `model`, `cluster` and `gpus`.

    Raises:
        UnknownNameError: there is no such reader.
        InputError: neither its name nor its words tell, or they are of a trainer whose files are not read.
    """
    known = ", ".join(READERS)
    hint = f"--from says it: {known}"
    if reader is not None:
        if reader not in READERS:
            raise UnknownNameError("trainer to import from", reader, READERS, hint=f"there are {known}")
        return reader
    if is_command(source):
        return "megatron"
    suffix = PurePath(source).suffix
    if suffix not in _SUFFIXES:
        raise InputError(f"`{source}` does not tell whose it is", hint=hint)
    *marked, rest = _SUFFIXES[suffix]
    if marked and is_pipe(source):
        message = f"`{source}` is a pipe, which is read once: its words cannot tell whose it is"
        raise InputError(message, hint=hint)
    from planner.formats.nemo import config_file as nemo_file
    from planner.formats.nemo import recipe as nemo
    from planner.formats.torchrec import MOST_BYTES

    text, document = "", dict[str, Any]()
    with suppress(InputError, tomllib.TOMLDecodeError, RecursionError):  # its reader says why
        text = read_text(source) if suffix in (".py", ".toml") else ""
        document = tomllib.loads(text) if suffix == ".toml" else {}
    if suffix in (".json", ".yaml", ".yml"):
        value = read_document(source, most_bytes=MOST_BYTES).value
        document = value if isinstance(value, dict) else {}
    is_bridge = suffix == ".py" and nemo.MARK in text
    refuse_foreign(source, document, text if suffix == ".py" and not is_bridge else "", options or {})
    for name in marked:
        if is_bridge or _MARKS.get(name, set()) & document.keys():
            return name
    if rest == "nemo" and not document.keys() >= nemo_file.KEYS:
        hint = f"read are those of {known}; `meshwright estimate` asks about any layout"
        raise InputError(f"`{source}` is of no trainer that is known here", hint=hint)
    return rest


def is_command(source: str) -> bool:
    """Whether a source text is a command line rather than the name of a file."""
    return "\n" in source or " --" in source or source.startswith("--")


def switch_words(old_question: Question, new_question: Question, layout: Layout) -> str:
    """Trainer settings to add and to drop when going from one question to another, in words; empty where no
    trainer has settings for the change."""
    names = [name for name in _TARGETS if TRAINERS[name].stack == old_question.stack.name]
    if not names:
        return ""
    target: Target = load(f"planner.formats.{EXPORTERS[names[0]]}")
    old, new = (settings_of(target.field_exports(Job(one, layout))) for one in (old_question, new_question))
    added = {name: value for name, value in new.items() if old.get(name) != value}
    dropped = {name: value for name, value in old.items() if name not in new}
    words = [target.spelled(added)] if added else []
    return ", ".join(words + ([f"without {target.spelled(dropped)}"] if dropped else []))
