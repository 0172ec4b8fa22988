"""Whether a checkpoint can be loaded whole: its files are what was written, pieces cover every tensor and lie in the
files, and nothing that a run needs is missing.

A manifest may have the right digest and still lie, where what wrote it was wrong or a person has edited it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from executor.boxes import Box
from executor.checkpoints.contents import Contents
from executor.checkpoints.manifest import MANIFEST, Manifest, ReadingClock, SavedFile, SavedTensor, digest_of
from executor.checkpoints.storage import key_of


def problems_of(
    manifest: Manifest, folder: Path, share: int, shares: int, clock: ReadingClock | None = None
) -> list[str]:
    """A sentence for each tensor and each file that is not what it must be; `shares` readers divide them."""
    mine = list(manifest.tensors.items())[share::shares]
    problems = [f"{MANIFEST}: {found}" for name, one in mine if (found := _of_tensor(name, one, manifest))]
    for index, file in list(enumerate(manifest.files))[share::shares]:
        problems += filter(
            None, [_of_file(file, folder / file.name, clock) or _of_pieces(index, manifest, folder)]
        )
    return problems


def lacking(
    manifest: Manifest, contents: Contents, substitutes: Mapping[str, str], padded: int | None
) -> Iterator[str]:
    """Sentences on what this rank needs and the checkpoint has not, or has in another shape.

    A tensor may have grown or shrunk along its first dim since it was saved, beyond `padded` rows: a vocabulary that is
    padded for other tensor ranks.
    """
    for name, held in contents.items():
        saved = manifest.tensors.get(name) or manifest.tensors.get(substitutes.get(name, name))
        if saved is None:
            yield f"{MANIFEST}: it has no `{name}`"
        elif saved.shape != held.shape and not (
            padded is not None
            and saved.shape[1:] == held.shape[1:]
            and len(saved.shape) == len(held.shape)
            and min(saved.shape[0], held.shape[0]) >= padded
        ):
            yield f"{MANIFEST}: its `{name}` is {saved.shape}; the model's is {held.shape}"


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> Box | None:
    """A box of a tensor of this shape that none of these holds, the first in its memory; None where they cover it.

    Cuts the tensor along its first dim wherever one begins or ends, and looks at each slice with those that reach it.
    """
    if not shape:
        return None if boxes else Box((), ())
    ends = {box.offsets[0] + box.sizes[0] for box in boxes}
    cuts = sorted({0, shape[0], *(box.offsets[0] for box in boxes), *ends})
    coming, reach = sorted(boxes, key=lambda box: box.offsets[0], reverse=True), list[Box]()
    for begin, end in pairwise(cuts):
        while coming and coming[-1].offsets[0] <= begin:
            reach.append(coming.pop())
        reach = [box for box in reach if box.offsets[0] + box.sizes[0] > begin]
        missing = uncovered(shape[1:], [Box(box.offsets[1:], box.sizes[1:]) for box in reach])
        if missing is not None:
            return Box((begin, *missing.offsets), (end - begin, *missing.sizes))
    return None


def _of_tensor(name: str, tensor: SavedTensor, manifest: Manifest) -> str:
    for piece in tensor.pieces:
        ends = [first + size for first, size in zip(piece.offsets, piece.sizes, strict=False)]
        fits = len(piece.offsets) == len(piece.sizes) == len(tensor.shape)
        if not fits or any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            return f"a piece of `{name}` lies outside it, at {_range(piece.offsets, piece.sizes)} of {tensor.shape}"
        if piece.file >= len(manifest.files):
            return f"a piece of `{name}` is in file {piece.file} of {len(manifest.files)}"
    missing = uncovered(tensor.shape, [Box(piece.offsets, piece.sizes) for piece in tensor.pieces])
    return "" if missing is None else f"no piece of `{name}` holds {_range(missing.offsets, missing.sizes)}"


def _of_file(file: SavedFile, path: Path, clock: ReadingClock | None) -> str:
    try:
        size = path.stat().st_size
        if size != file.size_bytes:
            return f"{file.name}: it has {size} bytes, {file.size_bytes} were written"
        if digest_of(path, clock) != file.sha256:
            return f"{file.name}: its bytes are not what was written (its digest differs)"
    except OSError as error:
        return f"{file.name}: {(error.strerror or str(error)).lower()}"
    return ""


def _of_pieces(index: int, manifest: Manifest, folder: Path) -> str:
    """The first piece that the manifest has in an intact file and the file has not, or in another size."""
    from safetensors import SafetensorError, safe_open

    file = manifest.files[index].name
    wanted = {
        key_of(name, piece.offsets): piece.sizes
        for name, tensor in manifest.tensors.items()
        for piece in tensor.pieces
        if piece.file == index
    }
    try:
        with safe_open(folder / file, framework="pt") as stream:
            there = set(stream.keys())
            for key, sizes in wanted.items():
                if key not in there:
                    return f"{file}: it has no `{key}`"
                if (shape := tuple(stream.get_slice(key).get_shape())) != sizes:
                    return f"{file}: its `{key}` is {shape}, not {sizes}"
    except SafetensorError as error:
        return f"{file}: {error}"
    return ""


def _range(offsets: Iterable[int], sizes: Iterable[int]) -> str:
    """`[128:256, 0:64]`."""
    parts = (f"{first}:{first + size}" for first, size in zip(offsets, sizes, strict=False))
    return f"[{', '.join(parts)}]"
