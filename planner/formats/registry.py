"""Trainers whose files plans are written as, and whose files and commands runs are read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from cost_models.errors import InputError, UnknownNameError
from cost_models.files.reading import is_pipe, read_document, read_text
from planner.formats import own_executor, torchrec
from planner.formats.accelerate import reading as from_accelerate
from planner.formats.accelerate import writing as accelerate
from planner.formats.axolotl import reading as from_axolotl
from planner.formats.axolotl import writing as axolotl
from planner.formats.deepspeed import reading as from_deepspeed
from planner.formats.deepspeed import writing as deepspeed
from planner.formats.exporter import Exporter
from planner.formats.megatron import script as megatron
from planner.formats.nemo import recipe as nemo
from planner.formats.torchtitan import writing as torchtitan

EXPORTERS: dict[str, Exporter] = {
    "megatron": megatron.TARGET.exporter,
    "torchtitan": torchtitan.TARGET.exporter,
    "deepspeed": deepspeed.TARGET.exporter,
    "nemo": nemo.TARGET.exporter,
    "accelerate": accelerate.TARGET.exporter,
    "axolotl": axolotl.TARGET.exporter,
    "torchrun": own_executor.TORCHRUN,
    "slurm": own_executor.SLURM,
    "torchrec": torchrec.EXPORTER,
}
READERS = ("megatron", "torchtitan", "nemo", "deepspeed", "accelerate", "axolotl", "torchrec")
_SUFFIXES = {
    ".json": "torchrec",
    ".sh": "megatron",
    ".bash": "megatron",
    ".slurm": "megatron",
    ".sbatch": "megatron",
    ".py": "torchtitan",
    ".toml": "torchtitan",
    ".yaml": "nemo",
    ".yml": "nemo",
}
_SEVERAL = (".json", ".py", ".yaml", ".yml")
"""Suffixes that several trainers use; the content tells their files apart."""
_MARKS = {
    ".json": {"deepspeed": from_deepspeed.MARKS},
    ".yaml": {"axolotl": from_axolotl.MARKS, "accelerate": from_accelerate.MARKS},
}
"""Suffix → trainer → keys of which its files have one."""


def exporter_named(name: str) -> Exporter:
    """An exporter. Raises UnknownNameError."""
    if name not in EXPORTERS:
        known = tuple(EXPORTERS)
        raise UnknownNameError("trainer to export to", name, known, hint=f"there are {', '.join(known)}")
    return EXPORTERS[name]


def reader_of(source: str, said: str | None = None) -> str:
    """Name of the reader of a file or a command line.

    Raises:
        UnknownNameError: there is no such reader.
        InputError: neither its name nor its words tell.
    """
    known = ", ".join(READERS)
    if said is not None:
        if said not in READERS:
            raise UnknownNameError("trainer to import from", said, READERS, hint=f"there are {known}")
        return said
    if is_command(source):
        return "megatron"
    suffix = PurePath(source).suffix
    if suffix in _SEVERAL and is_pipe(source):
        raise InputError(
            f"`{source}` is a pipe, which is read once: its words cannot tell whose it is",
            hint=f"--from says it: {known}",
        )
    if suffix not in _SUFFIXES:
        raise InputError(f"`{source}` does not tell whose it is", hint=f"--from says it: {known}")
    marked = _marked(source, _MARKS.get(suffix.replace("yml", "yaml"), {}))
    return marked or ("nemo" if suffix == ".py" and _is_bridge(source) else _SUFFIXES[suffix])


def _marked(source: str, marks: Mapping[str, frozenset[str]]) -> str:
    """The first trainer one of whose keys a document has; empty where it has none."""
    if not marks:
        return ""
    document = read_document(source, most_bytes=torchrec.MOST_BYTES).value
    keys = document.keys() if isinstance(document, dict) else set()
    return next((name for name, own in marks.items() if own & keys), "")


def _is_bridge(source: str) -> bool:
    try:
        return nemo.MARK in read_text(source)
    except InputError:
        return False


def is_command(source: str) -> bool:
    """Whether a source is a command line, not the name of a file."""
    return "\n" in source or " --" in source or source.startswith("--")
