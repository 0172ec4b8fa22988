"""Storage for `torch.distributed.checkpoint`: a safetensors file of each rank and a JSON manifest.

Torch's own file system storage keeps its metadata as a pickle, and its safetensors storage holds one box of a tensor in
each file and opens every file to learn what there is; see docs/decisions/0013. Nothing here can run code on loading.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from executor.checkpoints.manifest import (
    Folder,
    Manifest,
    Progress,
    RecommenderProgress,
    SavedFile,
    SavedPiece,
    SavedTensor,
    digest_of,
    dtype_name,
    write_manifest,
)

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


class PieceWriter(StorageWriter):
    """Writes one checkpoint: files of the ranks, then the manifest, then the name that makes it count."""

    def __init__(self, folder: Folder, progress: Progress | RecommenderProgress, keep: int) -> None:
        self.folder, self.progress, self.keep = folder, progress, keep
        self.size_bytes: int | None = None
        """Total bytes of all files, on the coordinator once they are written."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """One writer writes one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The coordinator makes the folder; the others write only after it has planned."""
        if is_coordinator:
            self.folder.begin(self.progress.step)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged: it does not depend on the place of files."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """A file for each rank."""
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file. Raises OSError, as on a full disk."""
        written: Future[list[WriteResult]] = Future()
        written.set_result(self._write(plan, planner) if plan.items else [])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when every rank has written."""
        written: dict[MetadataIndex, SavedFile] = {
            result.index: result.storage_data for rank in results for result in rank
        }
        files = sorted({file.name: file for file in written.values()}.values(), key=lambda file: file.name)
        place = {file.name: index for index, file in enumerate(files)}
        tensors: dict[str, SavedTensor] = {}
        for name, saved in metadata.state_dict_metadata.items():
            assert isinstance(saved, TensorStorageMetadata)
            tensors[name] = SavedTensor(
                dtype=dtype_name(saved.properties.dtype),
                shape=tuple(saved.size),
                pieces=tuple(
                    SavedPiece(
                        offsets=tuple(chunk.offsets),
                        sizes=tuple(chunk.sizes),
                        file=place[written[MetadataIndex(name, chunk.offsets)].name],
                    )
                    for chunk in saved.chunks
                ),
            )
        manifest = Manifest(progress=self.progress, tensors=tensors, files=tuple(files))
        write_manifest(manifest, self.folder.partial(self.progress.step))
        self.size_bytes = sum(file.size_bytes for file in files)
        self.folder.commit(self.progress.step)
        self.folder.keep(self.keep)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Torch never has to guess this storage from a path."""
        return False

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        name = f"rank-{plan.storage_data:05}.safetensors"
        path = self.folder.partial(self.progress.step) / name
        tensors: dict[str, Tensor] = {}
        for item in plan.items:
            value = planner.resolve_data(item)
            assert isinstance(value, Tensor)
            tensors[_key(item.index)] = value.detach().cpu().contiguous()
        try:
            save_file(tensors, path)
        except SafetensorError as error:
            raise _system_error(error, path) from error
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        file = SavedFile(name=name, size_bytes=path.stat().st_size, sha256=digest_of(path))
        return [
            WriteResult(index=item.index, size_in_bytes=tensors[_key(item.index)].nbytes, storage_data=file)
            for item in plan.items
        ]


class PieceReader(StorageReader):
    """Reads one checkpoint whose files were found intact."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._files = {
            MetadataIndex(name, piece.offsets): manifest.files[piece.file].name
            for name, tensor in manifest.tensors.items()
            for piece in tensor.pieces
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """One reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Torch's view of the manifest."""
        return Metadata(
            state_dict_metadata={
                name: TensorStorageMetadata(
                    properties=TensorProperties(dtype=getattr(torch, tensor.dtype)),
                    size=torch.Size(tensor.shape),
                    chunks=[
                        ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.sizes))
                        for piece in tensor.pieces
                    ],
                )
                for name, tensor in self.manifest.tensors.items()
            }
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Everything is known from the manifest."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Ranks read for themselves."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Ranks read for themselves."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the planned items: each file is opened once, and only the needed parts are read."""
        from safetensors import safe_open

        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._files[item.storage_index], []).append(item)
        for name, items in by_file.items():
            with safe_open(self.path / name, framework="pt") as stream:
                for item in items:
                    part = stream.get_slice(_key(item.storage_index))[_slices(item)]
                    target = planner.resolve_tensor(item)
                    target.copy_(part)
                    planner.commit_tensor(item, target)
        result: Future[None] = Future()
        result.set_result(None)
        return result

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Torch never has to guess this storage from a path."""
        return False


def key_of(name: str, offsets: Iterable[int]) -> str:
    """`weights.head.weight@0,64`: a piece's name in its file."""
    return f"{name}@{','.join(map(str, offsets))}"


def _key(index: MetadataIndex) -> str:
    return key_of(index.fqn, index.offset or ())


def _slices(item: ReadItem) -> tuple[slice, ...]:
    return tuple(
        slice(offset, offset + length)
        for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
    )


def _system_error(error: Exception, path: Path) -> Exception:
    """The OSError behind a safetensors error, parsed from its message."""
    match = _SYSTEM_ERROR.search(str(error))
    if match is None:
        return error
    number = int(match[1])
    return OSError(number, os.strerror(number), str(path))
