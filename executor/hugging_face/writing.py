"""Writer of a model, or of its adapters alone, as files of Hugging Face.

Adapters are written as peft lays them out. Every rank writes its own bytes into files that all of them share. The first
rank lays out the files and reserves their room; when all have written, they get their names. Nothing that is in the
folder is changed before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.errors import InputError, Problem, RunError
from cost_models.hugging_face.config import config_of
from cost_models.operators.parameters import target_names
from cost_models.specs.training import TuningSpec
from cost_models.units import GB
from executor.boxes import Box
from executor.engine.engine import Engine
from executor.engine.weights import frozen, owned
from executor.hugging_face.names import Names, Part, Source, family_of, has_names, parts_of
from executor.hugging_face.reading import ADAPTER_CONFIG, CONFIG, INDEX, ONE_FILE, TYPES, Folder, FromTensors
from executor.messages import on_all_ranks
from executor.models.adapters import ENDING, MATRICES
from executor.models.ends import original
from planner.plan import Plan

ADAPTERS = "adapter_model.safetensors"
_SIDES = {f"{ENDING}.down.": "lora_A", f"{ENDING}.up.": "lora_B"}


class AdapterNames:
    """Where files of the peft library hold a job's adapters; has the methods of `Names`.

    Raises:
        InputError: an adapter of ours is beside some rows of a matrix of theirs, for which peft has one adapter.
    """

    def __init__(self, names: Names, tuning: TuningSpec) -> None:
        self.names, self.tuning = names, tuning
        self.shapes: dict[str, tuple[int, ...]] = {}
        targets = target_names(tuning)
        paths = [path for path, name in MATRICES.items() if name in targets]
        self.modules: dict[str, None] = {}
        problems: dict[str, None] = {}
        for block in range(names.spec.num_layers):
            for matrix in (f"blocks.{block}.{path}.weight" for path in paths):
                if matrix not in names:
                    continue
                source = names.sources(matrix)[0]
                shape = names.shapes[source.name]
                inputs, outputs = shape if source.transposed else shape[::-1]
                module = source.name.removesuffix(".weight")
                inside = re.split(r"\.\d+\.", module, maxsplit=1)[1]
                self.modules[inside] = None
                if len(source.rows) != outputs:
                    problems[inside] = None
                self.shapes[f"base_model.model.{module}.lora_A.weight"] = (tuning.rank, inputs)
                self.shapes[f"base_model.model.{module}.lora_B.weight"] = (outputs, tuning.rank)
        if problems:
            raise InputError(
                "peft has one adapter where several of ours lie side by side",
                problems=[
                    Problem("", f"`{one}` joins matrices that have an adapter each") for one in problems
                ],
                hint="name others with --targets, or keep adapters by --checkpoint",
            )

    def parts(self, name: str, box: Box) -> Iterator[Part]:
        """Yield the parts of peft's tensors that hold a box of an adapter's A or B."""
        side = next(one for one in _SIDES if one in name)
        base = self.names.sources(name.replace(side, "."))[0]
        rows = base.rows if _SIDES[side] == "lora_B" else np.arange(self.tuning.rank)
        their_name = f"base_model.model.{base.name.removesuffix('weight')}{_SIDES[side]}.weight"
        yield from parts_of(Source(name=their_name, rows=rows, reach=base.reach), box)

    def config(self, base: str) -> dict[str, Any]:
        """Content of peft's config file for these adapters of the model in folder `base`."""
        spec = self.names.spec
        task = None if spec.encoder else "CAUSAL_LM"  # none for masked tokens
        return {
            "peft_type": "LORA",
            "task_type": "SEQ_2_SEQ_LM" if spec.stacks else task,
            "base_model_name_or_path": base,
            "r": self.tuning.rank,
            "lora_alpha": self.tuning.scale * self.tuning.rank,
            "lora_dropout": self.tuning.dropout,
            "target_modules": list(self.modules),
            "fan_in_fan_out": bool(self.names.family.transposed),
            "bias": "none",
            "inference_mode": True,
        }


_LARGEST_FILE = int(5 * GB)
"""Largest size of a file, as on Hugging Face's hub."""
_ALIGNMENT = 8
_MOST_AT_ONCE = 1 << 30
"""Bytes of one write call; the kernel takes 2 GiB at most."""
_COPIED = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files without weights that are copied with a model."""


def require_writable(plan: Plan, folder: Path, source: Path | None) -> None:
    """Raise InputError if `folder` is neither new nor empty, or no Hugging Face format takes what the plan trains."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(
            f"--save-weights {folder}: is there already", hint="name a folder that is new or empty"
        )
    if plan.training.tuning is not None:
        if source is None:
            raise InputError(
                "--save-weights writes adapters, which are of no use without the weights beside them",
                hint="--weights names these",
            )
        AdapterNames(Folder(source, plan.model).names, plan.training.tuning)
    elif source is None and _config(plan) is None:
        raise InputError(
            f"no family of Hugging Face has the blocks of {plan.model.name}, so nothing else could read its weights",
            hint="--checkpoint keeps them for meshwright, under any layout",
        )


def _config(plan: Plan) -> dict[str, Any] | None:
    """Hugging Face config, of the first family whose config reads back as the plan's model; None if there is none."""
    return config_of(plan.model, "float32" if plan.training.precision == "fp32" else "bfloat16", has_names)


def keeps_gains_less_one(plan: Plan, source: Folder | None) -> bool:
    """Whether norms' gains are stored less one, in the family of `source` if given, else of the plan's model."""
    config = {"model_type": source.model_type} if source is not None else _config(plan)
    return config is not None and family_of(config["model_type"]).less_one


def save_weights(engine: Engine, folder: Path, source: Folder | None) -> None:
    """Write the trained weights as a Hugging Face folder; every rank calls it. Types and config are those of `source`
    if given.

    Raises:
        RunError: a rank could not write; the folder is as it was.
    """
    _Writing(engine, folder, source).run()


class _Writing:
    """Writes a model's weights, or its adapters, by all ranks together."""

    def __init__(self, engine: Engine, folder: Path, source: Folder | None) -> None:
        self.engine, self.folder, self.source = engine, folder, source
        self.first = dist.get_rank() == 0
        self.partial = folder.parent / f".partial-{folder.name}"
        self.starts: dict[str, tuple[str, int]] = {}
        """File of each tensor, and the tensor's first byte in it."""
        self._open: dict[str, int] = {}
        plan, tuning = engine.plan, engine.plan.training.tuning
        self.names: Names | AdapterNames
        self.config, self.config_file = _config(plan), CONFIG
        if tuning is not None and source is not None:
            self.names = AdapterNames(source.names, tuning)
            self.types = dict.fromkeys(self.names.shapes, "F32")
            self.config, self.config_file = self.names.config(str(source.path)), ADAPTER_CONFIG
        elif source is not None:
            self.names, self.types, self.config = source.names, source.types, None
        else:
            assert self.config is not None
            self.names = Names(plan.model, str(self.config["model_type"]))
            default_type = "F32" if plan.training.precision == "fp32" else "BF16"
            self.types = dict.fromkeys(self.names.shapes, default_type)
        shapes = self.names.shapes
        are_adapters = isinstance(self.names, AdapterNames)
        self.files = {ADAPTERS: list(shapes)} if are_adapters else _files(shapes, self.types)

    def run(self) -> None:
        """Write all files; either the folder is complete at the end, or RunError is raised."""
        try:
            for stage in (self._lay_out, self._write, self._finish):
                on_all_ranks(stage, f"weights could not be written to {self.folder}")
        except RunError:
            if self.first:
                shutil.rmtree(self.partial, ignore_errors=True)
            raise
        finally:
            for descriptor in self._open.values():
                os.close(descriptor)

    def _lay_out(self) -> None:
        """Compute on every rank where each tensor lies; the first rank makes the files."""
        if self.first:
            shutil.rmtree(self.partial, ignore_errors=True)
            self.partial.mkdir(parents=True)
        for file, tensors in self.files.items():
            sizes = [_bytes_of(self.names.shapes[name], self.types[name]) for name in tensors]
            offsets = list(accumulate(sizes, initial=0))
            header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
            for name, (begin, end) in zip(tensors, pairwise(offsets), strict=True):
                about = {"dtype": self.types[name], "shape": list(self.names.shapes[name])}
                header[name] = about | {"data_offsets": [begin, end]}
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % _ALIGNMENT)
            first = 8 + len(text)
            self.starts |= {name: (file, first + at) for name, at in zip(tensors, offsets, strict=False)}
            if self.first:
                with (self.partial / file).open("wb") as stream:
                    os.posix_fallocate(stream.fileno(), 0, first + offsets[-1])
                    stream.write(len(text).to_bytes(8, "little") + text)

    def _write(self) -> None:
        """Write this rank's weights. Of ranks that update the same elements, only the first writes them."""
        engine = self.engine
        tied = engine.plan.model.tied_embeddings
        for owner in owned(engine.optimizer, engine.names):
            copied = original(owner.place.name, tied=tied) != owner.place.name
            if copied or (owner.slice.holders is not None and dist.get_rank(owner.slice.holders) > 0):
                continue
            for box, piece in owner.pieces(owner.slice.updated):
                self._write_box(owner.place.name, box, piece)
        if isinstance(self.names, Names):  # of those that hold the same, each writes the same
            for place, box, values in frozen(engine.parts, engine.names):
                if self.source is not None:  # which may have more bits than products
                    values = torch.empty(box.sizes)
                    FromTensors(self.names, self.source).fill(place.name, place.shape, box, values)
                self._write_box(place.name, box, values)
        if self.source is not None and self.first and isinstance(self.names, Names):
            for name in self.source.unused:
                rows = self.source[name][:].view(self.names.shapes[name][0], -1)
                self._write_rows(name, rows, torch.empty_like(rows, device="meta"))
        for descriptor in self._open.values():
            os.fsync(descriptor)

    def _write_box(self, name: str, box: Box, piece: Tensor) -> None:
        """Write a box of a parameter into the files."""
        for part in self.names.parts(name, box):
            source, order = part.source, np.argsort(part.order)
            shape, at = self.names.shapes[source.name], part.order[order]
            region = part.of(torch.empty(shape, device="meta"), len(shape))
            rows = part.ours(piece).float().cpu()[torch.from_numpy(order)].sub(source.added)
            for run in np.split(np.arange(len(at)), np.flatnonzero(np.diff(at) != 1) + 1):
                block = region[int(at[run[0]]) : int(at[run[-1]]) + 1]
                self._write_rows(source.name, rows[run[0] : run[-1] + 1], block)

    def _write_rows(self, name: str, values: Tensor, region: Tensor) -> None:
        """Write a matrix into a tensor's file; `region` is its place: a view, without memory, of the whole tensor."""
        if region.stride(0) < region.stride(1):
            region, values = region.T, values.T
        file, start = self.starts[name]
        if file not in self._open:
            self._open[file] = os.open(self.partial / file, os.O_WRONLY)
        dtype = TYPES[self.types[name]]
        stored = values.to(dtype).contiguous().view(torch.uint8).numpy()
        if region.stride(0) == region.shape[1]:  # rows lie behind one another
            stored = stored.reshape(1, -1)
        for index, row in enumerate(stored):
            place = start + (int(region.storage_offset()) + index * region.stride(0)) * dtype.itemsize
            content = memoryview(row)
            while content:
                written = os.pwrite(self._open[file], content[:_MOST_AT_ONCE], place)
                content, place = content[written:], place + written

    def _finish(self) -> None:
        """Write index and config on the first rank, and give all files their final names, the config last."""
        if not self.first:
            return
        if len(self.files) > 1:
            file_of_tensor = {name: file for file, tensors in self.files.items() for name in tensors}
            total = sum(_bytes_of(self.names.shapes[name], self.types[name]) for name in file_of_tensor)
            index = {"metadata": {"total_size": total}, "weight_map": file_of_tensor}
            (self.partial / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
        if self.config is not None:
            (self.partial / self.config_file).write_text(json.dumps(self.config, indent=2) + "\n", "utf-8")
        elif self.source is not None:
            for name in _COPIED:
                if (self.source.path / name).is_file():
                    shutil.copyfile(self.source.path / name, self.partial / name)
        self.folder.mkdir(parents=True, exist_ok=True)
        for entry in sorted(self.partial.iterdir(), key=lambda path: path.name == self.config_file):
            os.replace(entry, self.folder / entry.name)
        self.partial.rmdir()


def _files(shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of the tensors in each file, in order; no file is larger than the hub allows."""
    groups: list[list[str]] = [[]]
    size = 0
    for name in shapes:
        tensor_bytes = _bytes_of(shapes[name], types[name])
        if groups[-1] and size + tensor_bytes > _LARGEST_FILE:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor_bytes
    if len(groups) == 1:
        return {ONE_FILE: groups[0]}
    names = [f"model-{number:05}-of-{len(groups):05}.safetensors" for number in range(1, len(groups) + 1)]
    return dict(zip(names, groups, strict=True))


def _bytes_of(shape: tuple[int, ...], kind: str) -> int:
    """Bytes of a tensor of this shape and stored type."""
    return prod(shape) * TYPES[kind].itemsize
