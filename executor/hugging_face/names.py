"""Places of this package's parameters in the weight files of a Hugging Face family: tensor, rows and their order.

`data/hugging_face/weights.yaml` has the names. A parameter of ours is a matrix (a bias: of one column), or one for each
expert, and each matrix is some rows of one tensor of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cost_models.errors import InputError, did_you_mean
from cost_models.hugging_face.config import data_of
from cost_models.specs.transformer import TransformerSpec
from executor.boxes import Box
from executor.models.ends import is_gain, original
from executor.models.transformer import Transformer

Rows = npt.NDArray[np.int64]
_COPIES = ("decoder.weight", "decoder.bias")
"""Names of copies of an encoder's head, in files that hold both."""
_EXPERT = "#"
"""Placeholder for an expert's number in names of Hugging Face tensors."""
_WHEN: Mapping[str, Callable[[TransformerSpec], bool]] = {
    "gated": lambda spec: spec.gated_mlp,
    "two norms side by side": lambda spec: spec.parallel_norms == 2,
    "queries from no latent": lambda spec: not (spec.latent_attention and spec.latent_attention.query_rank),
}


_UNITS: Mapping[str, Callable[[TransformerSpec], int]] = {
    "heads": lambda spec: spec.num_heads,
    "key heads": lambda spec: spec.num_kv_heads,
    "groups": lambda spec: spec.recurrence.groups if spec.recurrence else 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Names of modules and tensors in weight files of one Hugging Face `model_type`."""

    model: str
    """Prefix of all names but the head's; files of a model without its head leave it out."""
    blocks: str
    """Prefix of a block's number."""
    decoder: str = ""
    """Name of the blocks of a decoder behind an encoder. Names of its parameters in `block` and `when` begin with
    `decoder `.
    """
    head: str
    outside: Mapping[str, str] = field(default_factory=dict)
    """Our module outside of blocks → the Hugging Face module."""
    block: Mapping[str, str] = field(default_factory=dict)
    """Our module in a block → the Hugging Face module."""
    dealt: Mapping[str, str] = field(default_factory=dict)
    """Ending of a tensor whose rows alternate between our parameters → the unit of alternation (`_UNITS`)."""
    tower_blocks: str = ""
    """Prefix of the number of a vision tower's block; tensors of the tower that are not read are kept."""
    tower: Mapping[str, str] = field(default_factory=dict)
    """Our module in a block of a vision tower → the Hugging Face module."""
    unused: tuple[str, ...] = ()
    """Prefixes of further modules in the family's files, which are not read."""
    transposed: tuple[str, ...] = ()
    """Modules whose matrices are stored as (in, out)."""
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Our module whose rotary pairs are half a head apart, but neighbours in the file → which of its rows these are."""
    less_one: bool = False
    """Whether the files store gains of norms less one."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Part of a name as `transformers` writes it → as published files have it."""
    when: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Condition of `_WHEN` → entries of `block` that it adds."""


def family_of(model_type: str) -> Family:
    """Names of modules and tensors in files of a Hugging Face `model_type`; raises InputError if unknown."""
    families = data_of("weights.yaml")["families"]
    if model_type not in families:
        raise InputError(
            f"weights of model_type `{model_type}` have no names here{did_you_mean(model_type, families)}",
            hint=f"known: {', '.join(families)}",
        )
    entry = _fields(model_type).items()
    fields: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in entry}
    return Family(**fields)


def _fields(name: str) -> dict[str, Any]:
    """Fields of a family's entry in `weights.yaml`, completed from the entry that `like` names."""
    entry = dict((data_of("weights.yaml")["bases"] | data_of("weights.yaml")["families"])[name])
    fields = _fields(entry.pop("like")) if "like" in entry else {}
    for key, value in entry.items():
        fields[key] = fields.get(key, {}) | value if isinstance(value, dict) else value
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One of our matrices in a Hugging Face tensor: the tensor's name, and which of its rows hold the matrix."""

    name: str
    rows: Rows
    """Row of the Hugging Face tensor for each row of our matrix."""
    transposed: bool = False
    added: float = 0.0
    """Number to add to the stored values to get ours."""
    reach: int = 1
    """Largest distance between rows that are read together."""
    slab: int | None = None
    """Index of the expert in a tensor that holds the matrices of all experts; None otherwise."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows and columns of a Hugging Face tensor that hold rows of one of our matrices."""

    source: Source
    place: tuple[int, ...]
    """Place of the first of these rows in the box of our parameter that was asked for: an expert if stacked, a row."""
    rows: slice
    """Rows of the Hugging Face matrix, before any transposition."""
    columns: slice
    order: Rows
    """Index into `rows` for each row of ours."""

    def ours(self, values: Tensor) -> Tensor:
        """Our rows of this part, (rows, columns), given the values of the box that was asked for."""
        *expert, first = self.place
        matrix = values.unsqueeze(1) if values.dim() == 1 else values[expert[0]] if expert else values
        return matrix[first : first + len(self.order)]

    def of(self, tensor: Any, dims: int) -> Tensor:
        """This part of its Hugging Face tensor, of `dims` dims, as a matrix (rows, columns); `order` gives our rows."""
        rows, columns, slab = self.rows, self.columns, self.source.slab
        part: Tensor
        if slab is not None:
            part = tensor[slab : slab + 1, rows, columns].squeeze(0)
        elif self.source.transposed:
            part = tensor[(columns, *[slice(None)] * (dims == 4), rows)].flatten(1).T
        elif dims in (1, 4):
            part = tensor[rows].flatten(1)[:, columns] if dims == 4 else tensor[rows].unsqueeze(1)
        else:
            part = tensor[(rows, *[slice(None)] * (dims == 3), columns)].flatten(1)
        return part


class Names:
    """Where files of a Hugging Face family hold each parameter of a model, and the shapes of the files' tensors."""

    def __init__(self, spec: TransformerSpec, model_type: str) -> None:
        self.spec, self.family = spec, family_of(model_type)
        with torch.device("meta"):
            model = Transformer(spec, vocabulary=spec.vocab_size)
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Hugging Face tensor → its shape, in the order of our parameters."""
        self._ours = {name: tuple(one.shape) for name, one in model.named_parameters()}
        self._block = dict(self.family.block)
        for condition, names_added in self.family.when.items():
            self._block |= names_added if _WHEN[condition](spec) else {}
        of_decoder = {name[8:]: one for name, one in self._block.items() if name.startswith("decoder ")}
        self._decoder = self._block | of_decoder
        self.prefix = f"{self.family.model}." if self.family.model else ""
        for name in self._ours:
            self.sources(name)

    def __contains__(self, name: str) -> bool:
        """Whether the model has a parameter of this name, or a copy of such a parameter."""
        return original(name, tied=True) in self._ours

    def is_weight(self, name: str) -> bool:
        """Whether a tensor of a file counts as a weight: it is neither a buffer nor a copy of the tied embedding."""
        copies = [f"{self.family.head}.{copy}" for copy in ("weight", *_COPIES)]
        tied = self.spec.tied_embeddings and name in copies
        table = data_of("weights.yaml")
        none = name.endswith(tuple(table["no_weights"])) or name.startswith(tuple(table["no_modules"]))
        return not tied and not none

    def is_unused(self, name: str) -> bool:
        """Whether a stored tensor belongs to the model although none of our parameters reads it."""
        prefixes = self.family.unused + ((f"{self.family.tower_blocks}.",) if self.spec.tower else ())
        return name not in self.shapes and name.startswith(prefixes)

    def parts(self, name: str, box: Box) -> Iterator[Part]:
        """Yield the parts of Hugging Face tensors that hold a box of our parameter; padding rows have none."""
        sources = self.sources(name if name in self._ours else original(name, tied=True))
        (first, *_), (count, *_) = box.offsets, box.sizes
        if len(box.sizes) < 3:
            yield from parts_of(sources[0], box)
            return
        for expert in range(count):
            inner = Box(box.offsets[1:], box.sizes[1:])
            yield from parts_of(sources[first + expert], inner, (expert,))

    def sources(self, name: str) -> list[Source]:
        """Sources of a parameter of ours: one, or for stacked experts one for each expert."""
        shape, (their_name, kind, neighbours) = self._ours[name], self._their_name(name)
        row_dim = 1 if len(shape) == 3 else 0
        counts = {other: self._ours[other][row_dim] for other in neighbours}
        rows, total = self._rows(name, their_name, counts)
        common: dict[str, Any] = {"rows": rows, "reach": self.spec.head_dim}
        if len(shape) == 3:
            experts = range(shape[0])
            if _EXPERT not in their_name:
                self.shapes[their_name] = (shape[0], total, shape[2])
                return [Source(name=their_name, slab=expert, **common) for expert in experts]
            tensor_names = [f"{their_name.replace(_EXPERT, str(expert))}.weight" for expert in experts]
            self.shapes |= dict.fromkeys(tensor_names, shape[1:])
            return [Source(name=other, **common) for other in tensor_names]
        transposed = (len(shape) == 2 or not kind) and their_name.endswith(self.family.transposed)
        full, tower = f"{their_name}.{kind}".rstrip("."), self.spec.tower
        if name == "patches.matrix.weight" and tower is not None:
            self.shapes[full] = (total, tower.channels, tower.patch, tower.patch)
        elif name.endswith("_taps"):
            self.shapes[full] = (total, 1, shape[1])
        elif transposed:
            last = (1, 1, total, 1) if name.endswith("decay_log") else (*(shape[1:] or (1,)), total)
            self.shapes[full] = last
        else:
            self.shapes[full] = (total, *shape[1:])
        less = self.family.less_one and is_gain(name)
        return [Source(name=full, transposed=transposed, added=float(less), **common)]

    def _their_name(self, name: str) -> tuple[str, str, list[str]]:
        """Name of our parameter's Hugging Face module, `weight` or `bias`, and our parameters in the same tensor.

        For other kinds of parameters it is the tensor's full name (of stacked experts the module) and an empty kind.
        """
        module, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            module, kind = name, ""
        their_names: Mapping[str, str]
        front, ours, their_names = self.prefix, module, {**self.family.outside, "head": self.family.head}
        stem = ""
        if module.startswith("blocks."):
            _, number, ours = module.split(".", 2)
            stem, tower, stacks = f"blocks.{number}.", self.spec.tower, self.spec.stacks
            place = int(number) - (tower.layers if tower else stacks.encoder_layers if stacks else 0)
            if tower and place < 0:
                front, their_names = f"{self.family.tower_blocks}.{number}.", self.family.tower
            elif stacks and place >= 0:
                front, their_names = f"{front}{self.family.decoder}.{place}.", self._decoder
            else:
                place = int(number) if stacks else place
                front, their_names = f"{front}{self.family.blocks}.{place}.", self._block
        part = their_names[ours]
        same = [f"{stem}{one}.{kind}".rstrip(".") for one, other in their_names.items() if other == part]
        their_name = part.removeprefix("/") if ours == "head" or part.startswith("/") else front + part
        return their_name, kind, [one for one in same if one in self._ours]

    def _rows(self, name: str, their_name: str, counts: Mapping[str, int]) -> tuple[Rows, int]:
        """Index of the Hugging Face tensor's row for each row of our parameter, and that tensor's number of rows."""
        rows = np.arange(self._ours[name][-2 if len(self._ours[name]) == 3 else 0])
        if dealing := self.family.neighbours.get(name.split(".", 2)[-1].rpartition(".")[0]):
            rows = self._neighbours(dealing, len(rows))
        total = sum(counts.values())
        dealt = [unit for end, unit in self.family.dealt.items() if their_name.endswith(end)]
        units = _UNITS[dealt[0]](self.spec) if dealt else 1
        starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        unit, place = divmod(rows, counts[name] // units)
        source_rows: Rows = (unit * total + starts[name]) // units + place
        return source_rows, total

    def _neighbours(self, dealing: str, count: int) -> Rows:
        """Index of the file's row for each row of ours. Rows of a rotary pair are neighbours there; here they are
        half the rotated rows apart.
        """
        spec, latent = self.spec, self.spec.latent_attention
        width = spec.head_dim if "heads" in dealing else count
        turned = latent.position_dim if latent else (spec.rotary and spec.rotary.dim) or width
        first = width - turned if "end" in dealing else 0
        head = np.arange(width)
        head[first : first + turned] = first + np.arange(turned).reshape(-1, 2).T.flatten()
        return (np.arange(count // width)[:, None] * width + head).flatten()


def parts_of(source: Source, box: Box, place: tuple[int, ...] = ()) -> Iterator[Part]:
    """Yield the runs of rows of a Hugging Face tensor that hold a box of one of our matrices."""
    columns = slice(box.offsets[1], box.offsets[1] + box.sizes[1]) if len(box.sizes) > 1 else slice(0, 1)
    rows = source.rows[box.offsets[0] : box.offsets[0] + box.sizes[0]]
    cuts = np.flatnonzero(np.abs(np.diff(rows)) > source.reach) + 1
    begin = 0
    for run in np.split(rows, cuts) if len(rows) else ():
        low, high = int(run.min()), int(run.max()) + 1
        yield Part(source, (*place, begin), slice(low, high), columns, run - low)
        begin += len(run)


def has_names(model_type: str) -> bool:
    """Whether names in weight files of a Hugging Face `model_type` are known."""
    return model_type in data_of("weights.yaml")["families"]
