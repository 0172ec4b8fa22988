"""Saves checkpoints while training goes on, and resumes runs from them, under the same plan or another.

A save copies the state to host memory, which is all that training waits for; a thread with a gloo group of its own
writes it. The state a run needs to go on bit for bit: weights, optimizer, random generators, and the step, from which
data and learning rate follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from cost_models.errors import WARNING, InputError, Problem, RunError
from executor.checkpoints.contents import Contents, PieceReader, Saved, lacking, problems_of, save, unsplit
from executor.checkpoints.manifest import (
    BrokenError,
    Folder,
    Manifest,
    ReadingClock,
    changes,
    differences,
    read_manifest,
)
from executor.clock import making_group
from executor.messages import gather_json, json_from_first, on_all_ranks
from executor.run_config import Saving

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

    def __init__(self, state: Saved, saving: Saving, data: str) -> None:
        """`state` is what is saved, `saving` where and how often; `data` identifies the data trained on."""
        self.state, self.saving, self.data = state, saving, data
        self.folder = Folder(saving.folder)
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
            size = save(contents, self.folder, progress, self.saving.keep, headline, self.group)
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
