"""Folders of checkpoints, and the manifest that says what each checkpoint holds.

step-00000040/                 complete: it got this name after everything in it was on the disk
.partial-step-00000060/        being written, or left by a run that was killed; never read
broken-step-00000050-0/        found broken when a run resumed, set aside for a person to look at

`manifest.json` records what was trained how far, where every piece lies, and what each file must be, beside its own
digest, so that a changed digit is noticed as well as a changed weight.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.reading import parse_json
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.run_config import EngineOptions
from planner.plan import LayoutText

_COMPLETE = re.compile(r"step-(\d{8,})$")
_HIDDEN = (".partial-step-*", ".deleting-step-*")


class Folder:
    """A folder with the checkpoints of a run by step. One process may change it; any may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def complete(self) -> list[int]:
        """Steps of the complete checkpoints, newest first."""
        if not self.path.is_dir():
            return []
        matches = [_COMPLETE.match(entry.name) for entry in self.path.iterdir() if entry.is_dir()]
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def at(self, step: int) -> Path:
        """The folder of the complete checkpoint of a step."""
        return self.path / f"step-{step:08}"

    def partial(self, step: int) -> Path:
        """The folder in which the checkpoint of a step is written."""
        return self.path / f".partial-step-{step:08}"

    def begin(self, step: int) -> Path:
        """Make an empty folder for the checkpoint of a step; folders that killed runs left are deleted."""
        self.path.mkdir(parents=True, exist_ok=True)
        for pattern in _HIDDEN:
            for left in self.path.glob(pattern):
                shutil.rmtree(left)
        self.partial(step).mkdir()
        return self.partial(step)

    def commit(self, step: int) -> None:
        """Rename a written checkpoint to its final name; an older one of the same step is deleted first."""
        _sync(self.partial(step))
        if self.at(step).exists():
            self.delete(step)
        os.rename(self.partial(step), self.at(step))
        _sync(self.path)

    def keep(self, newest: int) -> None:
        """Delete all complete checkpoints but the newest `newest`."""
        for step in self.complete()[newest:]:
            self.delete(step)

    def set_aside(self, step: int) -> str:
        """Rename a broken checkpoint, so that it is neither tried again nor counted; returns its new name."""
        attempt = 0
        while (target := self.path / f"broken-step-{step:08}-{attempt}").exists():
            attempt += 1
        os.rename(self.at(step), target)
        return target.name

    def delete(self, step: int) -> None:
        """Delete a complete checkpoint, renamed first so that a partial one never looks complete."""
        doomed = self.path / f".deleting-step-{step:08}"
        os.rename(self.at(step), doomed)
        shutil.rmtree(doomed)


def _sync(folder: Path) -> None:
    """Flush a folder's list of file names to the disk, so that new and renamed files survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MANIFEST = "manifest.json"
SCHEMA = 1
DtypeName = Literal["float32", "bfloat16", "float16", "uint8", "int64"]
Count = Annotated[int, Field(ge=0, le=10**15)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SavedFile(Spec):
    """Manifest entry of one rank's file: name, bytes and digest."""

    name: Annotated[str, Field(pattern=r"^rank-\d{5,}\.safetensors$")]
    size_bytes: Count
    sha256: Digest


class SavedPiece(Spec):
    """Manifest entry of one box of a tensor, and the file that holds it."""

    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    file: Count
    """Index of the file in the manifest's list of files."""


class SavedTensor(Spec):
    """Manifest entry of a tensor: type, shape and the boxes it was saved in, which cover it without overlap."""

    dtype: DtypeName
    """Torch's name of the tensor's type."""
    shape: tuple[Count, ...]
    pieces: tuple[SavedPiece, ...]


class Descent(Spec):
    """Settings of a run that shape its loss curve: learning rate schedule, clipping, compilation."""

    peak: float
    """The largest learning rate; with `warm_up` and `decay` as in `executor.run_config`."""
    warm_up: int
    decay: int | None
    clip: float | None
    """Largest norm of a step's gradient."""
    compiled: bool
    """Whether blocks went through `torch.compile`."""


def progress_fields(options: EngineOptions, step: int, data: str) -> dict[str, Any]:
    """Fields of a run's progress after `step` steps that all model families share."""
    rate = options.rate
    descent = Descent(**asdict(rate), clip=options.clip, compiled=options.compile)
    fields = {"step": step, "seed": options.seed, "learning_rate": rate.at(step)}
    return {**fields, "descent": descent, "data": data}


class AnyProgress(Spec):
    """Progress of a run, and all settings that must stay the same for it to resume; each family adds fields."""

    step: Count
    """Number of optimizer steps done."""
    seed: int
    learning_rate: float
    """Learning rate of the step that comes next."""
    descent: Descent | None = None
    """Learning rate schedule and clipping; None in older checkpoints."""
    data: str
    """Data trained on: `text`, `random`, the digest of a token folder, or the clicks. The position in them follows from
    seed and step."""
    model: Spec
    training: Spec
    settled: ClassVar[tuple[str, ...]]
    """Fields of the training job that must be the same for a run to resume."""
    may_change: ClassVar[tuple[str, ...]]
    """Fields of the training job that may change at a resume, although they change the loss curve."""

    @property
    def split(self) -> str:
        """How the model was split over ranks; random generators go on only under the same split."""
        raise NotImplementedError


class Progress(AnyProgress):
    """Progress of a transformer's run."""

    layout: LayoutText
    model: TransformerSpec
    training: TrainingSpec
    settled = ("global_batch", "sequence_length", "optimizer")
    may_change = ("precision", "dropout")

    @property
    def split(self) -> str:
        """Layout of the run, in brief."""
        return self.layout.brief


class RecommenderProgress(AnyProgress):
    """Progress of a recommender's run."""

    sharding: str
    ranks: Count
    model: RecommenderSpec
    training: RecommenderTraining
    settled = ("global_batch", "optimizer", "dense_optimizer", "table_dtype")
    may_change = ("precision", "exchange_dtype")

    @property
    def split(self) -> str:
        """Sharding of the tables, and number of GPUs."""
        return f"{self.sharding} on {self.ranks} GPUs"


class Manifest(Spec):
    """Record of a complete checkpoint: progress of the run, its tensors and its files."""

    schema_version: int = SCHEMA
    progress: Progress | RecommenderProgress
    tensors: dict[str, SavedTensor]
    files: tuple[SavedFile, ...]


class BrokenError(Exception):
    """A checkpoint that must not be loaded; the text names the file and its problem."""


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest and flush it to the disk; call this when every other file is there."""
    content = manifest.model_dump(mode="json")
    with (folder / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump({"sha256": _digest(content), "checkpoint": content}, stream)
        stream.flush()
        os.fsync(stream.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Read and verify the manifest in a checkpoint's folder.

    Raises:
        BrokenError: it is missing, changed, or no manifest.
        InputError: it is of another step than its folder's name says.
    """
    try:
        document = parse_json((folder / MANIFEST).read_text("utf-8"), source=MANIFEST).value
        content, digest = document["checkpoint"], document["sha256"]
        schema = content.get("schema_version")
        right = _digest(content) == digest
    except OSError as error:
        raise BrokenError(f"{MANIFEST}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BrokenError(f"{MANIFEST}: it is cut off, or no manifest") from None
    if not right:
        raise BrokenError(f"{MANIFEST}: it is not what was written (its digest differs)")
    if schema != SCHEMA:
        name = printable(str(schema), limit=20)
        raise BrokenError(f"{MANIFEST}: written by another version (schema {name})")
    try:
        manifest = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise BrokenError(f"{MANIFEST}: {printable(error.errors()[0]['msg'])}") from None
    right = Folder(folder.parent).at(manifest.progress.step)
    if folder.name.startswith("step-") and folder != right:
        contents = f"{folder} holds the checkpoint of step {manifest.progress.step}"
        raise InputError(contents, hint=f"it was renamed; its name is {right.name}")
    return manifest


@dataclass(slots=True)
class ReadingClock:
    """Bytes that were read from files, and the seconds that reading took."""

    size: int = 0
    seconds: float = 0.0


def digest_of(path: Path, clock: ReadingClock | None = None) -> str:
    """SHA-256 of a file, in hex; the bytes and seconds of reading it are added to `clock`."""
    digest, buffer, clock = hashlib.sha256(), memoryview(bytearray(1 << 20)), clock or ReadingClock()
    with path.open("rb", buffering=0) as stream:
        while True:
            began = time.perf_counter()
            size = stream.readinto(buffer) or 0
            clock.seconds += time.perf_counter() - began
            clock.size += size
            if not size:
                return digest.hexdigest()
            digest.update(buffer[:size])


def differences(then: AnyProgress, now: AnyProgress) -> Iterable[str]:
    """Sentences on why a run cannot resume from a saved one. The layout may differ, and fields with a sentence in
    `changes`."""
    if type(then) is not type(now):
        yield "it holds a model of another kind"
        return
    if then.model != now.model:
        names = type(now.model).model_fields
        fields = [name for name in names if getattr(then.model, name) != getattr(now.model, name)]
        yield f"the model differs in {', '.join(f'`{name}`' for name in fields)}"
    yield from _changed(then, now, now.settled)
    if then.seed != now.seed:
        yield f"the seed was {then.seed}, now it is {now.seed}"
    if then.data != now.data:
        yield f"it was trained on {_data(then.data)}, now it would go on with {_data(now.data)}"


def changes(then: AnyProgress, now: AnyProgress) -> Iterable[str]:
    """Sentences on differences from the saved run, other than the layout, that change its loss curve from here on."""
    old, new = then.descent, now.descent
    if then.learning_rate != now.learning_rate:
        yield f"the learning rate was {then.learning_rate:g}, now it is {now.learning_rate:g}"
    elif old and new and _schedule(old) != _schedule(new):
        yield f"the learning rate was {_schedule(old)}, now it is {_schedule(new)}"
    if old and new and old.clip != new.clip:
        yield f"gradients were {_clipped(old.clip)}, now they are {_clipped(new.clip)}"
    if old and new and old.compiled != new.compiled:
        yield f"blocks were {_compiled(old.compiled)}, now they are {_compiled(new.compiled)}"
    yield from _changed(then, now, now.may_change)


def _changed(then: AnyProgress, now: AnyProgress, names: Iterable[str]) -> Iterable[str]:
    """Sentences on fields of the training job that differ from the saved run's."""
    for name in names:
        earlier, later = getattr(then.training, name), getattr(now.training, name)
        if earlier != later:
            yield f"`{name}` was {earlier}, the plan has {later}"


def _schedule(descent: Descent) -> str:
    """A learning rate schedule in words."""
    decay = "" if descent.decay is None else f", falling until step {descent.decay}"
    return f"{descent.peak:g} after {descent.warm_up} steps of warm-up{decay}"


def _clipped(norm: float | None) -> str:
    """A clipping norm in words; None is no clipping."""
    return "not clipped" if norm is None else f"clipped to a norm of {norm:g}"


def _compiled(compiled: bool) -> str:
    """Whether blocks were compiled, in words."""
    return "compiled" if compiled else "not compiled"


def _digest(content: Any) -> str:
    """SHA-256 of JSON content, in hex."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _data(name: str) -> str:
    """A run's data in words: a kind of built-in data, or the start of a digest."""
    words = {"text": "the built-in text", "random": "random tokens", "made-up": "made-up clicks"}
    return words.get(name, f"the data {name[:12]}")
