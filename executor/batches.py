"""Batches of real text: bytes of the Python library's own sources, or token files on disk.

What a step trains on follows from (seed, step) alone, so every layout sees the same sequences in the same order; each
data-parallel rank takes its slice of the global batch.
"""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cost_models.errors import InputError
from cost_models.specs.training import TrainingSpec

_SHIPPED_BYTES = 4_000_000
"""Enough text that short runs never see a window twice."""
_WIDE_VOCABULARY = 65_536
"""From here a token needs four bytes on disk."""


class Batches:
    """Windows of a token stream, drawn by (seed, step)."""

    def __init__(
        self, training: TrainingSpec, *, vocabulary: int, seed: int, tokens_path: Path | None = None
    ) -> None:
        self.training = training
        self.seed = seed
        self.tokens = text_tokens() if tokens_path is None else token_file(tokens_path, vocabulary)
        largest = int(self.tokens[: 1 << 20].max())
        if largest >= vocabulary:
            raise InputError(f"the text has token {largest}; the model's vocabulary ends at {vocabulary - 1}")
        if len(self.tokens) <= training.sequence_length:
            raise InputError(
                f"the text has {len(self.tokens)} tokens, fewer than one sequence of {training.sequence_length}"
            )

    def slice(self, step: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        """(B/ranks, S) inputs and targets of one data-parallel rank."""
        sequence = self.training.sequence_length
        draw = np.random.default_rng((self.seed, step))
        starts = draw.integers(0, len(self.tokens) - sequence, self.training.global_batch)
        share = self.training.global_batch // ranks
        mine = starts[rank * share : (rank + 1) * share]
        windows = np.stack([self.tokens[start : start + sequence + 1] for start in mine]).astype(np.int64)
        both = torch.from_numpy(windows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


@lru_cache(maxsize=1)
def text_tokens() -> npt.NDArray[np.uint8]:
    """Bytes of the standard library's modules, in order of their names: real text that is on every machine."""
    library = Path(sysconfig.get_paths()["stdlib"])
    pieces: list[bytes] = []
    size = 0
    for path in sorted(library.glob("*.py")):
        pieces.append(path.read_bytes())
        size += len(pieces[-1])
        if size >= _SHIPPED_BYTES:
            break
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def token_file(path: Path, vocabulary: int) -> npt.NDArray[np.generic]:
    """A memory-mapped file of little-endian unsigned tokens: 16 bits, or 32 where the vocabulary needs them.

    Raises:
        InputError: no such file, or its size is no multiple of a token.
    """
    wide = vocabulary > _WIDE_VOCABULARY
    if not path.is_file():
        raise InputError(f"no token file `{path}`")
    width = 4 if wide else 2
    if path.stat().st_size % width:
        raise InputError(f"`{path}` is no file of {8 * width}-bit tokens: {path.stat().st_size} bytes")
    return np.memmap(path, dtype="<u4" if wide else "<u2", mode="r")
