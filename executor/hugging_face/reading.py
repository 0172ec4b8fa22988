"""Weights of a Hugging Face folder: located, checked against the plan's model, and read box by box.

Each rank reads the bytes of what it updates, and no more. Files are safetensors, from which nothing can run; pickles
(`.bin`) are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cost_models.documents import printable
from cost_models.errors import MOST_PROBLEMS, InputError, Problem
from cost_models.files.loading import resolve_model
from cost_models.files.reading import read_document
from cost_models.hugging_face.config import stated_fields
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import MB, grouped
from executor.boxes import Box
from executor.hugging_face.names import Names
from executor.models.initial import Values

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types of stored tensors that fp32 holds exactly, by their names in a file."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OLD_TOWER = "vision_tower.vision_model."
"""Prefix of a CLIP tower's weights in files of transformers before version 5."""
_AT_ONCE = 1 << 24
"""Values that are checked at a time."""
NOT_FINITE = "values that are no numbers (NaN, infinite)"
_LARGEST_INDEX = int(64 * MB)
_LENGTH, _LARGEST_HEADER = 8, int(100 * MB)
"""Bytes of a safetensors file's header length, and the largest header that is read."""


class FromTensors:
    """Source of values of our parameters, read from Hugging Face tensors in memory or in files."""

    def __init__(self, names: Names, tensors: Mapping[str, Any], adapters: Values | None = None) -> None:
        """Read parameters from `tensors`; parameters that the names lack come from `adapters`."""
        self.names, self.tensors, self.adapters = names, tensors, adapters

    def fill(self, name: str, shape: tuple[int, ...], box: Box, into: Tensor) -> None:
        """Write the box of a parameter into a tensor of its sizes; rows that only pad a vocabulary become zero."""
        if self.adapters is not None and name not in self.names:
            self.adapters.fill(name, shape, box, into)
            return
        if into.is_meta or not box.elements:
            return
        filled = 0
        for part in self.names.parts(name, box):
            source, tensor = part.source, self.tensors[part.source.name]
            values = part.of(tensor, len(self.names.shapes[source.name]))
            if not values.isfinite().all():
                raise InputError(f"`{source.name}` has {NOT_FINITE}")
            if source.added:
                values = values.float() + source.added
            part.ours(into).copy_(values[torch.from_numpy(part.order)])
            filled += len(part.order)
        if len(box.sizes) < 3:
            into[filled:].zero_()


class Folder(Mapping[str, Any]):
    """Tensors of a Hugging Face folder by their names in the family, as slices that read only what is indexed.

    Raises:
        InputError: no config, no safetensors, files cut off or not there; weights that are not those of the model:
            which tensor, what it is and what it must be; all at once.
    """

    def __init__(self, path: Path, model: TransformerSpec) -> None:
        self.path = path
        self.model_type = _model_type(path, model)
        self.names = Names(model, self.model_type)
        self.files = _files(path)
        self.types: dict[str, str] = {}
        """Name of each tensor's type, such as `BF16`."""
        self._at: dict[str, tuple[str, str]] = {}
        """File of each tensor, and its name in that file."""
        self.unused: list[str] = []
        """Names of stored tensors that belong to the model and that no parameter reads."""
        self._open: dict[str, Any] = {}
        problems = list(self._examine())
        if problems:
            raise InputError(
                f"{path} does not hold the weights of {model.name}",
                problems=problems[:MOST_PROBLEMS],
                more=max(0, len(problems) - MOST_PROBLEMS),
                hint="fetch or write these files again, from where its config.json is from",
            )

    def __getitem__(self, name: str) -> Any:
        """Slice of a tensor's file, which reads only what is indexed."""
        file, stored_name = self._at[name]
        return self._stream(file).get_slice(stored_name)

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors, as the family has them."""
        return iter(self._at)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._at)

    def require_finite(self) -> None:
        """Raise InputError where a tensor has NaN or infinite values; reads all files."""
        problems = []
        for name, (file, stored_name) in self._at.items():
            tensor = self[name]
            count, *width = tensor.get_shape()
            rows = max(1, _AT_ONCE // max(1, prod(width)))
            if not all(tensor[first : first + rows].isfinite().all() for first in range(0, count, rows)):
                problems.append(Problem(f"{file}  {printable(stored_name)}", f"has {NOT_FINITE}"))
        if problems:
            raise InputError(f"{self.path} holds weights that cannot be trained", problems=problems)

    def _stream(self, file: str) -> Any:
        """Open safetensors file of this name."""
        from safetensors import safe_open

        if file not in self._open:
            if not (self.path / file).is_file():  # a pipe would be waited for
                raise FileNotFoundError
            self._open[file] = safe_open(self.path / file, framework="pt")
        return self._open[file]

    def _examine(self) -> Iterator[Problem]:
        """Examine all files, note the place of each tensor, and yield the problems."""
        from safetensors import SafetensorError

        unknown, broken = [], False
        for file in self.files:
            try:
                stream = self._stream(file)
            except (SafetensorError, OSError) as error:
                broken, message = True, printable(str(error), limit=100)
                yield Problem(file, _cut_off(self.path / file) or f"is no safetensors: {message}")
                continue
            for stored_name in stream.keys():  # noqa: SIM118
                name = self._current_name(stored_name)
                place = f"{file}  {printable(stored_name)}"
                if name in self._at:
                    yield Problem(place, f"is in {self._at[name][0]}, too")
                elif self.names.is_unused(name):
                    self.unused.append(name)
                    self._at[name] = file, stored_name
                elif name not in self.names.shapes:
                    unknown += [place] if self.names.is_weight(name) else []
                else:
                    self._at[name] = file, stored_name
                    yield from self._of_tensor(name, place, stream.get_slice(stored_name))
        yield from (Problem(place, "is none of the model's weights") for place in unknown)
        for name in self.unused:
            self.names.shapes[name] = tuple(self[name].get_shape())
            self.types[name] = self[name].get_dtype()
        for name, shape in self.names.shapes.items():
            if not broken and name not in self._at:
                yield Problem(name, f"is missing; it must be {shape}")

    def _current_name(self, stored_name: str) -> str:
        """Name in the family of a stored tensor. Files of a model without its head omit a prefix, and old files have
        another.
        """
        shapes, prefix = self.names.shapes, self.names.prefix
        stored_name = stored_name.replace(_OLD_TOWER, "vision_tower.")
        for old_spelling, spelling in self.names.family.spelled.items():
            if stored_name not in shapes:
                stored_name = stored_name.replace(old_spelling, spelling)
        omits = stored_name not in shapes and prefix + stored_name in shapes
        return prefix + stored_name if omits else stored_name

    def _of_tensor(self, name: str, place: str, tensor: Any) -> Iterator[Problem]:
        """Note the type of a file's tensor, and yield a problem each if its shape or type is wrong."""
        shape, expected = tuple(tensor.get_shape()), self.names.shapes[name]
        self.types[name] = tensor.get_dtype()
        if shape != expected:
            yield Problem(place, f"is {shape}; the config makes it {expected}")
        if self.types[name] not in TYPES:
            yield Problem(place, f"is of type {self.types[name]}, not one of {', '.join(TYPES)}")


def _cut_off(file: Path) -> str:
    """Problem of a file that is missing or ends before the size in its header; empty if there is none."""
    if not file.is_file():
        return "is no file" if file.exists() else "is not there"
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        length = int.from_bytes(opened.read(_LENGTH), "little")
        header = opened.read(length) if length < _LARGEST_HEADER else b""
    try:
        stated = max(one["data_offsets"][1] for one in json.loads(header).values() if "dtype" in one)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        complete = size > _LENGTH + len(header)
        return "" if complete else f"is cut off in its header, after {grouped(size)} bytes"
    full_size = _LENGTH + length + int(stated)
    return f"is cut off: it has {grouped(size)} of {grouped(full_size)} bytes" if size < full_size else ""


def _model_type(path: Path, model: TransformerSpec) -> str:
    """Family of the folder's config; raises InputError if it has none, or describes another model than the plan."""
    if (path / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"{path} holds adapters of peft, not the model that they are beside",
            hint="--weights takes the folder of that model; adapters go on from a --checkpoint",
        )
    if not (path / CONFIG).is_file():
        raise InputError(
            f"{path} has no {CONFIG}", hint="--weights takes a folder as Hugging Face's hub has it"
        )
    our_fields, their_fields = stated_fields(model), stated_fields(resolve_model(str(path)).spec)
    values = {name: (our_fields.get(name), their_fields.get(name)) for name in our_fields | their_fields}
    differences = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    text = f"the plan has {{}}, {CONFIG} {{}}"
    if problems := [Problem(name, text.format(*pair)) for name, pair in differences.items()]:
        raise InputError(
            f"{path} holds another model than the plan",
            problems=problems,
            hint=f"plan with `{path}` for the model",
        )
    model_type = read_document(path / CONFIG).value["model_type"]
    assert isinstance(model_type, str)
    return model_type


def _files(path: Path) -> list[str]:
    """Names of the safetensors files in a folder that hold its weights."""
    if (path / INDEX).is_file():
        listed = read_document(path / INDEX, most_bytes=_LARGEST_INDEX).value
        weight_map = listed.get("weight_map") if isinstance(listed, dict) else None
        names = sorted({str(one) for one in weight_map.values()}) if isinstance(weight_map, dict) else []
        if not names or any(Path(one).name != one for one in names):
            raise InputError(f"{path / INDEX}: its `weight_map` names no files of this folder")
        return names
    if (path / ONE_FILE).is_file():
        return [ONE_FILE]
    if names := sorted(one.name for one in path.glob("*.safetensors")):
        return names
    if pickles := sorted(one.name for pattern in _PICKLES for one in path.glob(pattern)):
        raise InputError(
            f"{path} has no safetensors; `{printable(pickles[0])}` is a pickle, which can run code when it is read",
            hint=f"where you trust it, `from_pretrained` and `save_pretrained` of transformers write {ONE_FILE}",
        )
    raise InputError(f"{path} has no safetensors", hint="a folder that is still being fetched has none yet")
