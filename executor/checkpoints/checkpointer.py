"""Saves checkpoints while training goes on, and resumes runs from them, under the same plan or another.

A save copies the state to host memory, which is all that training waits for; a thread with a gloo group of its own
writes it. The state a run needs to go on bit for bit: weights, optimizer, random generators, and the step, from which
data and learning rate follow.

**Boxes.** A rank's part of the state is named tensors in boxes. A box is axis-aligned and one run of memory. A share of
a flat buffer cuts parameters anywhere, so its part of a matrix is the end of a row, whole rows and the beginning of a
row: at most 2·dims − 1 boxes. Of ranks that hold the same box, one writes it. A rank reads where its boxes overlap with
saved ones, which is all of resharding; of ranks that hold the same, each may read a part and send it to the others.

**Checks.** A checkpoint can be loaded if its files are what was written, its pieces cover every tensor and lie in the
files, and nothing that a run needs is missing. A manifest may have the right digest and still lie, where what wrote it
was wrong or a person has edited it.

**Storage** is a safetensors file of each rank and a JSON manifest. In `torch.distributed.checkpoint` ranks send each
other pickles, and its storages keep their metadata as a pickle, or one box of a tensor in each file; see
docs/decisions/0013. Nothing here can run code on loading.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.errors import WARNING, InputError, Problem, RunError
from executor.boxes import Box
from executor.checkpoints.manifest import (
    MANIFEST,
    BrokenError,
    Folder,
    Manifest,
    Progress,
    ReadingClock,
    RecommenderProgress,
    SavedFile,
    SavedPiece,
    SavedTensor,
    changes,
    differences,
    digest_of,
    read_manifest,
    write_manifest,
)
from executor.clock import making_group
from executor.messages import gather_json, json_from_first, on_all_ranks
from executor.run_config import RunConfig

_SENT_BYTES = 1 << 26
"""Bytes of a tensor that are sent at a time, as data in host memory are copied to the device for it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a tensor with its values on this rank; `tensor` has the box's sizes."""

    box: Box
    tensor: Tensor

    def rows_from(self, size: Sequence[int]) -> Piece | None:
        """Rows of this piece beyond the rows of a tensor of shape `size`; None if there are none."""
        if not size or (skipped := max(0, size[0] - self.box.offsets[0])) >= self.box.sizes[0]:
            return None
        offsets = (self.box.offsets[0] + skipped, *self.box.offsets[1:])
        sizes = (self.box.sizes[0] - skipped, *self.box.sizes[1:])
        return Piece(Box(offsets, sizes), self.tensor[skipped:])


@dataclass(slots=True)
class RankTensor:
    """This rank's pieces of one named tensor of `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[Piece] = field(default_factory=list)
    holders: dist.ProcessGroup | None = None
    """Ranks that hold the same pieces as this one; None if no other does."""

    def staged(self) -> RankTensor:
        """Copy of these pieces in host memory, which training does not change."""
        pieces = [Piece(piece.box, piece.tensor.detach().to("cpu", copy=True)) for piece in self.pieces]
        return RankTensor(self.shape, self.dtype, pieces)


Contents = dict[str, RankTensor]


def unsplit(tensor: Tensor, holders: dist.ProcessGroup | None = None) -> RankTensor:
    """Checkpoint entry of a tensor that is whole on this rank, and on all ranks of `holders`."""
    box = Box((0,) * tensor.dim(), tuple(tensor.shape))
    return RankTensor(tuple(tensor.shape), tensor.dtype, [Piece(box, tensor.detach())], holders)


class Saved(Protocol):
    """Interface of the training state of a run that a checkpoint saves and loads."""

    @property
    def device(self) -> torch.device:
        """Device on which the state is."""

    def contents(self) -> Contents:
        """Tensors of this rank that a checkpoint saves or fills; every rank calls it."""

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """Names of tensors → names of tensors to load where a checkpoint lacks the former; none if not overridden."""
        return {}

    def make_anew(self, contents: Contents) -> None:
        """Set initial values of rows that this layout has but the checkpoint lacks, such as a vocabulary's padding."""
        assert not contents

    def spread(self) -> None:
        """Copy loaded `contents` to all places that hold the same values; every rank calls it."""

    def reads_once(self, rate: float) -> bool:
        """Whether one rank should read and send what several hold, given that each rank reads `rate` bytes/s."""

    def progress(self, step: int, data: str) -> Progress | RecommenderProgress:
        """Progress of the run after `step` steps on this data, as checkpoints record it."""


def write_checkpoint(
    contents: Contents,
    folder: Folder,
    progress: Progress | RecommenderProgress,
    keep: int,
    headline: str,
    group: dist.ProcessGroup,
) -> int:
    """Write a checkpoint, after which `folder` keeps the newest `keep`; every rank calls it and gets the bytes written.

    Raises:
        RunError: a rank could not write, with this headline; on every rank. Nothing is left of the checkpoint.
    """
    rank, path = dist.get_rank(group), folder.partial(progress.step)
    pieces = {
        key_of(name, piece.box.offsets): (name, entry, piece)
        for name, entry in contents.items()
        for piece in entry.pieces
    }

    def begin() -> dict[str, int]:
        """Make the folder, on the first rank; returns the bytes of each piece that this rank holds."""
        if rank == 0:
            folder.begin(progress.step)
        return {key: piece.tensor.nbytes for key, (_, _, piece) in pieces.items()}

    def finish() -> None:
        """Write the manifest and give the folder its final name, on the first rank."""
        if rank == 0:
            write_manifest(_manifest(progress, records), path)
            folder.commit(progress.step)
            folder.keep(keep)

    try:
        writers = _writers(on_all_ranks(begin, headline, group))
        own_pieces = {key: piece for key, piece in pieces.items() if writers[key] == rank}
        write = partial(_write, own_pieces, path / f"rank-{rank:05}.safetensors")
        records = [record for record in on_all_ranks(write, headline, group) if record]
        on_all_ranks(finish, headline, group)
    except RunError:
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        raise
    return sum(file["size_bytes"] for file, _ in records)


def key_of(name: str, offsets: Iterable[int]) -> str:
    """Name of a piece in its file: tensor name and offsets, as `weights.head.weight@0,64`."""
    return f"{name}@{','.join(map(str, offsets))}"


def _writers(sizes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Rank that writes each piece: of those that hold it the one with the fewest bytes so far. `sizes` has the bytes of
    each rank's pieces.
    """
    holders: dict[str, list[int]] = {}
    for rank, pieces in enumerate(sizes):
        for key in pieces:
            holders.setdefault(key, []).append(rank)
    writers, loads = {}, [0] * len(sizes)
    for key, ranks in holders.items():
        writers[key] = writer = min(ranks, key=loads.__getitem__)
        loads[writer] += sizes[writer][key]
    return writers


def _write(
    pieces: Mapping[str, tuple[str, RankTensor, Piece]], path: Path
) -> tuple[dict[str, Any], list[Any]] | None:
    """Write pieces by key into a file; returns records of the file and of each piece, or None without pieces."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if not pieces:
        return None
    try:
        save_file({key: piece.tensor.contiguous() for key, (_, _, piece) in pieces.items()}, path)
    except SafetensorError as error:
        if (match := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(number := int(match[1]), os.strerror(number), str(path)) from error
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return {"name": path.name, "size_bytes": path.stat().st_size, "sha256": digest_of(path)}, [
        (name, str(entry.dtype).removeprefix("torch."), entry.shape, piece.box.offsets, piece.box.sizes)
        for name, entry, piece in pieces.values()
    ]


def _manifest(progress: Progress | RecommenderProgress, records: Sequence[Any]) -> Manifest:
    """Manifest of a checkpoint, given the records of all files and their pieces."""
    pieces: dict[Any, list[SavedPiece]] = {}
    for file, (_, of_pieces) in enumerate(records):
        for name, dtype, shape, offsets, sizes in of_pieces:
            piece = SavedPiece(offsets=tuple(offsets), sizes=tuple(sizes), file=file)
            pieces.setdefault((name, dtype, tuple(shape)), []).append(piece)
    manifest = Manifest(
        progress=progress,
        tensors={
            name: SavedTensor(dtype=dtype, shape=shape, pieces=tuple(of_tensor))
            for (name, dtype, shape), of_tensor in pieces.items()
        },
        files=tuple(SavedFile(**file) for file, _ in records),
    )
    problems = [_of_tensor(name, tensor, manifest) for name, tensor in manifest.tensors.items()]
    assert not any(problems), problems
    return manifest


class PieceReader:
    """Reads what a rank needs of a checkpoint whose files are intact and have all tensors that it needs.

    `substitutes` maps a name to the one to read where the checkpoint lacks it. A tensor may have grown or shrunk along
    its first dim since it was saved (a vocabulary padded for other tensor ranks): `padding_rows` has the rows that it
    has now and had not then. With `once` each part that several ranks want is read by one of them and sent by `send`;
    these ranks share the bytes equally.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        contents: Contents,
        substitutes: Mapping[str, str],
        *,
        once: bool = False,
    ) -> None:
        """Divide the reads of the checkpoint in folder `path` that fill `contents`."""
        self.path = path
        self.reads: dict[str, list[tuple[str, tuple[slice, ...], Tensor]]] = {}
        """Parts to read of each file: name of the piece, its part, and the part of this rank's tensors to fill."""
        self.padding_rows: Contents = {}
        self._broadcasts: list[tuple[Tensor, dist.ProcessGroup, int]] = []
        """Parts to broadcast, each with the group of ranks that needs it and the rank of the group that reads it."""
        loads: dict[dist.ProcessGroup, list[int]] = {}
        """Bytes that each rank of a group reads for the whole group so far."""
        for name, entry in contents.items():
            saved_name = name if name in manifest.tensors else substitutes.get(name, name)
            saved = manifest.tensors[saved_name]
            if padding_rows := [rows for piece in entry.pieces if (rows := piece.rows_from(saved.shape))]:
                self.padding_rows[name] = RankTensor(entry.shape, entry.dtype, padding_rows)
            for piece, stored in product(entry.pieces, saved.pieces):
                stored_box = Box(stored.offsets, stored.sizes)
                if (overlap := piece.box.overlap(stored_box)) is None:
                    continue
                target = piece.tensor[overlap.slices_in(piece.box)]
                if once and (group := entry.holders) is not None:
                    of_group = loads.setdefault(group, [0] * dist.get_world_size(group))
                    reader = of_group.index(min(of_group))
                    of_group[reader] += target.nbytes
                    self._broadcasts.append((target, group, reader))
                    if reader != dist.get_rank(group):
                        continue
                part = key_of(saved_name, stored.offsets), overlap.slices_in(stored_box), target
                self.reads.setdefault(manifest.files[stored.file].name, []).append(part)

    def read(self) -> None:
        """Read the parts: each file is opened once, and only what is needed of it is read."""
        from safetensors import safe_open

        for file, parts in self.reads.items():
            with safe_open(self.path / file, framework="pt") as stream:
                for key, part, target in parts:
                    target.copy_(stream.get_slice(key)[part])

    def send(self, device: torch.device) -> None:
        """Broadcast parts that one rank has read to the ranks that hold the same pieces. They go by way of a device;
        all ranks call it together.
        """
        for target, group, reader in self._broadcasts:
            rows = max(1, _SENT_BYTES * len(target) // max(1, target.nbytes)) if target.dim() else 0
            for part in torch.split(target, rows) if rows else [target]:
                message = part.to(device).contiguous()
                dist.broadcast(message, group=group, group_src=reader)
                if message is not part:
                    part.copy_(message)


def problems_of(
    manifest: Manifest, folder: Path, share: int, shares: int, clock: ReadingClock | None = None
) -> list[str]:
    """Sentences on tensors and files that differ from the manifest; `shares` readers divide them, this is `share`."""
    of_tensors = (
        _of_tensor(name, record, manifest) for name, record in list(manifest.tensors.items())[share::shares]
    )
    of_files = (_of_file(file, manifest, folder, clock) for file in range(share, len(manifest.files), shares))
    return [f"{MANIFEST}: {problem}" for problem in of_tensors if problem] + [*filter(None, of_files)]


def lacking(
    manifest: Manifest, contents: Contents, substitutes: Mapping[str, str], padded: int | None
) -> Iterator[str]:
    """Sentences on tensors that this rank needs and the checkpoint lacks, or has in another shape.

    A tensor may have grown or shrunk along its first dim since it was saved, beyond `padded` rows: a vocabulary that is
    padded for other tensor ranks.
    """
    for name, entry in contents.items():
        saved = manifest.tensors.get(name) or manifest.tensors.get(substitutes.get(name, name))
        if saved is None:
            yield f"{MANIFEST}: it has no `{name}`"
        elif saved.shape != entry.shape and not (
            padded is not None
            and saved.shape[1:] == entry.shape[1:]
            and len(saved.shape) == len(entry.shape)
            and min(saved.shape[0], entry.shape[0]) >= padded
        ):
            yield f"{MANIFEST}: its `{name}` is {saved.shape}; the model's is {entry.shape}"


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> Box | None:
    """The first box, in memory order, of a tensor of `shape` that none of `boxes` holds; None if they cover it.

    Cuts the tensor along its first dim wherever a box begins or ends, and looks at each slice with the boxes that reach
    it.
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
    """Problem of a tensor's pieces: one lies beyond its shape or in no file, or they leave a gap; empty if none."""
    for piece in tensor.pieces:
        ends = [first + size for first, size in zip(piece.offsets, piece.sizes, strict=False)]
        fits = len(piece.offsets) == len(piece.sizes) == len(tensor.shape)
        if not fits or any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            return f"a piece of `{name}` lies outside it, at {_range(piece.offsets, piece.sizes)} of {tensor.shape}"
        if piece.file >= len(manifest.files):
            return f"a piece of `{name}` is in file {piece.file} of {len(manifest.files)}"
    missing = uncovered(tensor.shape, [Box(piece.offsets, piece.sizes) for piece in tensor.pieces])
    return "" if missing is None else f"no piece of `{name}` holds {_range(missing.offsets, missing.sizes)}"


def _of_file(index: int, manifest: Manifest, folder: Path, clock: ReadingClock | None) -> str:
    """Problem of a file whose size or digest differs from the manifest, or that lacks a piece; empty if none."""
    from safetensors import SafetensorError, safe_open

    file, problem = manifest.files[index], ""
    expected_sizes = {
        key_of(name, piece.offsets): piece.sizes
        for name, tensor in manifest.tensors.items()
        for piece in tensor.pieces
        if piece.file == index
    }
    try:
        if (size := (folder / file.name).stat().st_size) != file.size_bytes:
            problem = f"it has {size} bytes, {file.size_bytes} were written"
        elif digest_of(folder / file.name, clock) != file.sha256:
            problem = "its bytes are not what was written (its digest differs)"
        else:
            with safe_open(folder / file.name, framework="pt") as stream:
                shapes = {key: tuple(stream.get_slice(key).get_shape()) for key in stream.keys()}  # noqa: SIM118
            problems = [
                f"its `{key}` is {shapes[key]}, not {sizes}" if key in shapes else f"it has no `{key}`"
                for key, sizes in expected_sizes.items()
                if shapes.get(key) != sizes
            ]
            problem = problems[0] if problems else ""
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
    except SafetensorError as error:
        problem = str(error)
    return problem and f"{file.name}: {problem}"


def _range(offsets: Iterable[int], sizes: Iterable[int]) -> str:
    """A box as text, such as `[128:256, 0:64]`."""
    parts = (f"{first}:{first + size}" for first, size in zip(offsets, sizes, strict=False))
    return f"[{', '.join(parts)}]"


_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run resumed: the step, and notes for people."""

    step: int
    """Optimizer steps that are done; 0 if training starts from the beginning."""
    notes: tuple[str, ...]
    """Notes for people: which checkpoint was loaded, which were broken and why."""


class Checkpointer:
    """Saves and loads the checkpoints of one run; every rank makes one, after its engine and before the first step."""

    def __init__(self, state: Saved, config: RunConfig, data: str) -> None:
        """`state` is what is saved, `config` says where and how often; `data` identifies the data trained on."""
        assert config.checkpoint is not None
        self.state, self.config, self.data = state, config, data
        self.folder = Folder(config.checkpoint)
        with making_group():
            self.group = dist.new_group(backend="gloo")
        self.saved: int | None = None
        """Step of the newest checkpoint that is on the disk."""
        self._read = ReadingClock()
        """Bytes and seconds of reading files for their digests."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: tuple[int, Future[None]] | None = None
        """Step and future of the save that was begun last; None if it was waited for."""

    def resume(self) -> Resumed:
        """Load the newest checkpoint whose files are all intact.

        Raises:
            InputError: it belongs to another run: another model, batch, seed or text.
            RunError: there are checkpoints, and none of them is whole.
        """
        broken: list[tuple[int, list[str]]] = []
        for step in self._from_first_rank(self.folder.complete):
            problems, manifest = self._examine(step)
            if not problems:
                assert manifest is not None
                self._load(step, manifest)
                self.saved = step
                return Resumed(step, self._notes(step, manifest, broken))
            broken.append((step, problems))
        if broken:
            of_steps = [(self.folder.at(step).name, what) for step, faults in broken for what in faults]
            raise RunError(
                f"no checkpoint in {self.folder.path} is whole",
                problems=[Problem(*problem) for problem in of_steps],
                hint="without --resume and with another folder it starts again",
            )
        return Resumed(0, (f"nothing to resume in {self.folder.path}; starting at step 1",))

    def require_empty(self) -> None:
        """Raise InputError where another run has left checkpoints in the folder."""
        complete_steps = self._from_first_rank(self.folder.complete)
        if complete_steps:
            raise InputError(
                f"{self.folder.path} has checkpoints already, the newest of step {complete_steps[0]}",
                hint="--resume goes on from there; or name another folder",
            )

    def save(
        self,
        step: int,
        alive: Callable[[], None] = lambda: None,
        written: Callable[[int, float, int], None] = lambda step, seconds, size: None,
    ) -> None:
        """Begin to save the state after `step` steps, once the save before has ended; raises that save's error.

        Rank 0 calls `written` from the thread that writes, once the checkpoint is on the disk: step, seconds since
        training went on, bytes.
        """
        self.wait(alive)
        progress = self.state.progress(step, self.data)
        contents = {name: held.staged() for name, held in (self.state.contents() | self._random()).items()}
        whole = f"the checkpoint of step {self.saved} is whole"
        last_save = whole if self.saved else "there is no earlier checkpoint"
        headline = f"the checkpoint of step {step} could not be written; {last_save}"
        began = time.monotonic()

        def write() -> None:
            """Write the checkpoint, then call `written` on rank 0."""
            size = write_checkpoint(contents, self.folder, progress, self.config.keep, headline, self.group)
            if dist.get_rank() == 0:
                written(step, time.monotonic() - began, size)

        self._running = step, self._thread.submit(write)

    def failed(self) -> bool:
        """Whether the save that was begun last is known on this rank to have failed. Ranks learn it at
        different times.
        """
        if self._running is None:
            return False
        _, future = self._running
        return future.done() and future.exception() is not None

    def wait(self, alive: Callable[[], None] = lambda: None) -> None:
        """Wait until the last save is on the disk, and call `alive` repeatedly meanwhile.

        Raises:
            RunError: it could not be written, by which rank and why; older checkpoints are as they were.
        """
        if self._running is None:
            return
        step, future = self._running
        while not future.done():
            alive()
            time.sleep(_POLL_SECONDS)
        self._running = None
        future.result()
        self.saved = step

    def _random(self) -> Contents:
        """States of this rank's random generators, as contents of a checkpoint."""
        rank = f"{dist.get_rank():05}"
        states = {f"random.cpu.{rank}": unsplit(torch.get_rng_state())}
        if self.state.device.type == "cuda":
            states[f"random.cuda.{rank}"] = unsplit(torch.cuda.get_rng_state(self.state.device))
        return states

    def _examine(self, step: int) -> tuple[list[str], Manifest | None]:
        """Problems of the checkpoint of a step, and its manifest; ranks divide its tensors and files among them."""
        manifest, problems = None, []
        path = self.folder.at(step)
        try:
            manifest = read_manifest(path)
            problems = problems_of(manifest, path, dist.get_rank(), dist.get_world_size(), self._read)
        except BrokenError as error:
            problems = [str(error)]
        rank_problems = self._of_all_ranks(problems)
        if not rank_problems:
            assert manifest is not None
            # the first only: many may lack the same
            rank_problems = self._of_all_ranks(islice(self._lacking(step, manifest), 1))
        return rank_problems, manifest

    def _of_all_ranks(self, problems: Iterable[str]) -> list[str]:
        """Problems that any rank has found, sorted, each once; every rank calls it."""
        everyone = gather_json(list(problems), self.group)
        return sorted({problem for found in everyone for problem in found})

    def _lacking(self, step: int, manifest: Manifest) -> Iterator[str]:
        """Problems of a checkpoint of this run that lacks tensors which this rank needs."""
        if any(differences(manifest.progress, self.state.progress(step, self.data))):
            return iter(())
        contents = self.state.contents()
        rows = getattr(manifest.progress.model, "vocab_size", None)
        return lacking(manifest, contents, self.state.substitutes(contents), rows)

    def _load(self, step: int, manifest: Manifest) -> None:
        """Fill weights and optimizer from the checkpoint of a step, and random generators if the layout is the same."""
        progress = self.state.progress(step, self.data)
        if different := list(differences(manifest.progress, progress)):
            raise InputError(
                f"{self.folder.at(step)} belongs to another run",
                problems=[Problem("", what) for what in different],
                hint="use the plan, seed and data it was made with, or another folder",
            )
        contents, generators = self.state.contents(), {}
        if manifest.progress.split == progress.split:
            generators = {name: held for name, held in self._random().items() if name in manifest.tensors}
        # ranks that hold the same may share the reading: at the rate at which they read for the digests
        reads = gather_json((self._read.size, self._read.seconds), self.group)
        size, seconds = map(sum, zip(*reads, strict=True))
        once = self.state.reads_once(size / max(seconds, 1e-9))
        everything, substitutes = {**contents, **generators}, self.state.substitutes(contents)
        reader = PieceReader(self.folder.at(step), manifest, everything, substitutes, once=once)
        with torch.no_grad():
            on_all_ranks(reader.read, f"the checkpoint of step {step} could not be read", self.group)
            reader.send(self.state.device)
            self.state.make_anew(reader.padding_rows)
        self.state.spread()
        self._restore_random(generators, step)

    def _restore_random(self, generators: Contents, step: int) -> None:
        """Restore the random generators; if none were saved for this rank, seed them from its own seed and the step."""
        if not generators:
            torch.manual_seed((torch.initial_seed() + step) % 2**63)
        for name, generator in generators.items():
            state = generator.pieces[0].tensor
            if ".cuda." in name:
                torch.cuda.set_rng_state(state, self.state.device)
            else:
                torch.set_rng_state(state)

    def _notes(self, step: int, manifest: Manifest, broken: list[tuple[int, list[str]]]) -> tuple[str, ...]:
        """Notes for people on a resume; renames the broken checkpoints."""
        notes = []
        for bad, problems in broken:
            aside = self._from_first_rank(partial(self.folder.set_aside, bad))
            renaming = f"{self.folder.at(bad).name} is broken and now named {aside}: {'; '.join(problems)}"
            notes.append(WARNING + renaming)
        then, now = manifest.progress.split, self.state.progress(step, self.data).split
        change = "" if then == now else f", saved as {then}"
        notes.append(f"resumed from {self.folder.at(step)} after step {step}{change}")
        return tuple(notes) + tuple(changes(manifest.progress, self.state.progress(step, self.data)))

    def _from_first_rank(self, compute: Callable[[], Any]) -> Any:
        """Call a function on rank 0 only, and return its result on every rank."""
        return json_from_first(compute() if dist.get_rank() == 0 else None, self.group)
