"""Trainers whose files and commands are not read: whose a source seems to be, and the `estimate` that asks the same.

Columns of `foreign.csv`: trainer; keys of its files (all of an alternative, which `|` parts; a key may be a table);
words of its commands and Python as a regular expression; then the paths of its settings, the first that is set counts;
and the software stack of the catalogue that prices the trainer.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError, UnknownNameError
from cost_models.files.loading import resolve_model
from planner.formats.settings import by_path

READERS = ("megatron", "torchtitan", "nemo", "deepspeed", "accelerate", "axolotl", "torchrec")


_AXES = ("tp", "pp", "cp", "dp", "ep", "mbs", "zero")


def refuse_foreign(source: str, document: Mapping[str, Any], text: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if a file or a command belongs to a trainer that is not supported, with an equivalent
    `estimate` command. `options` are the user's `model`, `cluster` and `gpus`."""
    values = dict(by_path(document))
    paths = [f"{path}." for path in values]
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
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
    """An `estimate` command equivalent to a foreign trainer's file, with capitals in place of missing sizes."""
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
