"""Batches of token sequences, read ahead of the steps that train on them.

**Reading ahead.** A thread reads the next batch and sends it to the device while a step runs. Ranks that work on the
same sequences, those of tensor and context parallelism, have them read by one of them, which sends them to the others:
MegaScale's readers, one for a host (Jiang et al. 2024, section 3.4), and Megatron's broadcast
(megatron/core/tensor_parallel/data.py). Stages between the ends of a pipeline read nothing.

**Order.** Tokens come from the built-in text, at random, or from a token folder. A step's sequences follow from (seed,
step) alone, so every layout sees the same ones in the same order, a run resumes at any step, and each data-parallel
rank takes its slice of the global batch.

The shuffle has no memory: each position is computed apart from the others. A Feistel network is a bijection of 2^b
numbers whatever its round function is (Luby & Rackoff 1988); numbers beyond the count are sent through again until they
fall inside (cycle walking, Black & Rogaway 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.arrays import Ints
from cost_models.errors import InputError
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Encoder, Tower
from executor.data.tokens import open_tokens, require_a_sequence
from executor.pinned import carried_to
from executor.run_config import NO_TARGET, RANDOM, TEXT

if TYPE_CHECKING:
    from executor.axes.axis import Rank


Batch = TypeVar("Batch")


class Ahead(Generic[Batch]):
    """Batches that `draw` makes for each number up to `last`, each made in a thread while the one before is used.

    On a GPU `draw` runs on a stream of its own, which begins when the work before the last step is done, so that memory
    of a batch is not written to while a step may still read it.
    """

    def __init__(self, draw: Callable[[int], Batch], device: torch.device, last: int) -> None:
        """`draw` makes the batch of a number; numbers beyond `last` are not drawn ahead."""
        self._draw, self._device, self._end = draw, device, last
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="data")
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._next: tuple[int, Future[Batch]] | None = None
        self._last: Batch | None = None

    def take(self, number: int) -> Batch:
        """The batch of this number, ready for the current stream; begins to draw the next."""
        coming = self._next if self._next is not None and self._next[0] == number else self._begin(number)
        batch = coming[1].result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._next = self._begin(number + 1) if number < self._end else None
        self._last = batch
        return batch

    def _begin(self, number: int) -> tuple[int, Future[Batch]]:
        """Begin to draw the batch of this number in the thread."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return number, self._pool.submit(self._on_stream, number)

    def _on_stream(self, number: int) -> Batch:
        """Draw the batch of this number on the stream for data."""
        with torch.cuda.stream(self._stream):  # nothing without a stream
            return self._draw(number)


class SharedBatches:
    """Batches of this rank's replica, read one step ahead by one of the ranks that work on the same sequences."""

    def __init__(self, batches: Batches, rank: Rank, num_stages: int, last: int) -> None:
        self._rank = rank
        self._needed = batches.tower is not None or not {0, num_stages - 1}.isdisjoint(rank.stages)
        """Whether this rank has the first pipeline stage, which takes tokens, or the last, which takes their targets.
        Behind a vision tower another stage may take tokens.
        """
        self._reads = rank.place.tp == rank.place.cp == 0
        lengths = batches.training.sequences
        self._shapes = [(rank.share.sequences, length) for length in (*lengths, lengths[-1])]
        self._batches, self._ahead = batches, Ahead(self._read, rank.device, last)
        self._images = Ahead(self._see, rank.device, last) if batches.tower is not None else None
        """Images that each rank with the first pipeline stage draws itself; None without a vision tower."""

    def take(self, step: int) -> tuple[Tensor, ...]:
        """Tensors of the replica's batch in a step (from 0): images if there is a vision tower, then tokens."""
        tokens = self._tokens(step)
        if self._images is None:
            return tokens
        first = 0 in self._rank.stages
        return (self._images.take(step) if first else torch.empty(len(tokens[0]), 0), *tokens)

    def _tokens(self, step: int) -> tuple[Tensor, ...]:
        """Tokens of each sequence of a sample, (B, S), and targets of the replica, on the device; steps count from 0.

        Every rank of the job calls it. Stages that need neither get zeros.
        """
        rank = self._rank
        if not self._needed:
            return tuple(torch.zeros(shape, dtype=torch.int64, device=rank.device) for shape in self._shapes)
        sizes = [prod(shape) for shape in self._shapes]
        if self._reads:
            flat_tokens = self._ahead.take(step)
        else:
            flat_tokens = torch.empty(sum(sizes), dtype=torch.int64, device=rank.device)
        if rank.context_group is not None and rank.place.tp == 0:
            dist.broadcast(flat_tokens, group=rank.context_group, group_src=0)
        if rank.mesh["tp"].size() > 1:
            dist.broadcast(flat_tokens, group=rank.mesh["tp"].get_group(), group_src=0)
        parts = zip(torch.split(flat_tokens, sizes), self._shapes, strict=True)
        return tuple(part.view(shape) for part, shape in parts)

    def _read(self, step: int) -> Tensor:
        """All token tensors of the batch of a step, read and flattened into one tensor on the device."""
        read = self._batches.tokens(step, self._rank.share.first, self._rank.share.last)
        return carried_to(self._rank.device, torch.cat([one.flatten() for one in read]))

    def _see(self, step: int) -> Tensor:
        """Images of this rank's replica in a step, on the device."""
        share = self._rank.share
        return carried_to(self._rank.device, self._batches.images(step, share.first, share.last))


_BECOME_MASKS, _BECOME_OTHERS = 0.8, 0.9
"""Cumulative shares of masked tokens: those that become the mask token, then those that become a random token."""

_IMAGES = 1
"""Number that separates the draws of images from other draws of a sequence."""

_Windows = npt.NDArray[Any]
"""Windows of tokens, (N, L + 1), where L is `Batches._length`."""
_Draw = Callable[[int, int, int], _Windows]
"""(step, first, last) → windows of sequences `first` to `last` − 1 of the global batch."""


class Batches:
    """The sequences on which a run trains, by step.

    `data` is `text` (a made-up one, byte by byte), `random`, or the path of a token folder.

    Raises:
        InputError: no token folder, a broken one, or one that does not go with the model.
    """

    def __init__(
        self,
        training: TrainingSpec,
        *,
        vocabulary: int,
        seed: int,
        data: str = TEXT,
        encoder: Encoder | None = None,
        tower: Tower | None = None,
    ) -> None:
        self.training, self.seed, self.vocabulary = training, seed, vocabulary
        self.encoder, self.tower = encoder, tower
        self._length = sum(training.sequences) - bool(training.target_length)
        """Tokens of a window, less one."""
        self.name = data
        """Identifier of the tokens: `text`, `random`, or the digest of the token folder."""
        if data == RANDOM:
            self._draw: _Draw = self._random_tokens
        elif data == TEXT:
            self._draw = self._of_text
            self._tokens: npt.NDArray[np.generic] = text_tokens()
            if (largest := int(self._tokens.max())) >= vocabulary:
                last = vocabulary - 1
                raise InputError(f"the text has token {largest}; the model's vocabulary ends at {last}")
            require_a_sequence(len(self._tokens), self._length, TEXT)
        else:
            header, self._tokens = open_tokens(Path(data), vocabulary)
            self.name, self._draw = header.sha256, self._of_folder
            self._vocabulary_size, self._folder = header.vocabulary, data
            require_a_sequence(header.tokens, self._length, data)

    def slice(self, step: int, rank: int, ranks: int) -> tuple[Tensor, ...]:
        """Inputs and targets, (B/ranks, S), of one data-parallel rank in a step; steps count from 0.

        Of an encoder-decoder tokens of the encoder and of the decoder, and the decoder's targets: it continues what the
        encoder has read (prefix language modelling: Raffel et al. 2019, 3.2.3), and begins with token 0.
        """
        share = self.training.global_batch // ranks
        return self.between(step, rank * share, (rank + 1) * share)

    def between(self, step: int, first: int, last: int) -> tuple[Tensor, ...]:
        """Inputs and targets of a step's sequences `first` to `last` − 1, after their images if there are any."""
        tokens = self.tokens(step, first, last)
        return tokens if self.tower is None else (self.images(step, first, last), *tokens)

    def images(self, step: int, first: int, last: int) -> Tensor:
        """Noise as images of sequences `first` to `last` − 1. It is (B, images of a sample, C, X, X); empty without a
        vision tower.
        """
        if self.tower is None:
            return torch.empty(last - first, 0)
        shape = (self.training.images or 1, self.tower.channels, self.tower.image, self.tower.image)
        rows = (np.random.default_rng((self.seed, step, row, _IMAGES)) for row in range(first, last))
        return torch.from_numpy(np.stack([row.standard_normal(shape, dtype=np.float32) for row in rows]))

    def tokens(self, step: int, first: int, last: int) -> tuple[Tensor, ...]:
        """Token inputs and targets of sequences `first` to `last` − 1; places of images have no token and no target."""
        windows = self._draw(step, first, last).astype(np.int64)
        if self.encoder is not None:
            inputs, targets = self._masked(windows[:, :-1], step, first, self.encoder)
            return torch.from_numpy(inputs), torch.from_numpy(targets)
        windows_tensor = torch.from_numpy(windows)
        if self.training.target_length is not None:
            read, follows = torch.split(windows_tensor, [*self.training.sequences], dim=1)
            begun = torch.nn.functional.pad(follows[:, :-1], (1, 0))
            return read.contiguous(), begun, follows.contiguous()
        if self.tower is not None:
            places = (self.training.images or 1) * self.tower.features
            windows_tensor[:, 1 : places + 1] = NO_TARGET
            return windows_tensor[:, :-1].clamp(min=0), windows_tensor[:, 1:].contiguous()
        return windows_tensor[:, :-1].contiguous(), windows_tensor[:, 1:].contiguous()

    def _masked(self, tokens: Ints, step: int, first: int, encoder: Encoder) -> tuple[Ints, Ints]:
        """Mask the spec's share of tokens of every sequence; returns inputs and targets. Of ten masked tokens eight
        become the mask token, one a random token and one stays (Devlin et al. 2018, section 3.1). Unmasked tokens have
        no target.
        """
        inputs, targets = tokens.copy(), np.full_like(tokens, NO_TARGET)
        length = tokens.shape[1]
        for row in range(len(tokens)):
            draw = np.random.default_rng((self.seed, step, first + row))
            places = draw.permutation(length)[: encoder.masked_tokens(length)]
            fate = draw.random(len(places))
            random_tokens = draw.integers(0, self.vocabulary, len(places))
            mask = self.vocabulary - 1 if encoder.mask_token is None else encoder.mask_token
            targets[row, places] = tokens[row, places]
            inputs[row, places] = np.select(
                [fate < _BECOME_MASKS, fate < _BECOME_OTHERS], [mask, random_tokens], tokens[row, places]
            )
        return inputs, targets

    def _of_text(self, step: int, first: int, last: int) -> _Windows:
        """Windows of the built-in text that begin anywhere."""
        draw = np.random.default_rng((self.seed, step))
        last_start = len(self._tokens) - self._length
        starts = draw.integers(0, last_start, self.training.global_batch)
        return self._windows(starts[first:last])

    def _of_folder(self, step: int, first: int, last: int) -> _Windows:
        """Windows of a token folder that lie side by side, each once an epoch, shuffled anew in every epoch."""
        sequence = self._length
        count = (len(self._tokens) - 1) // sequence
        places = step * self.training.global_batch + np.arange(first, last, dtype=np.uint64)
        numbers = np.empty_like(places)
        for epoch in np.unique(places // np.uint64(count)):
            of_epoch = places // np.uint64(count) == epoch
            numbers[of_epoch] = shuffled(places[of_epoch] % np.uint64(count), count, (self.seed, int(epoch)))
        windows = self._windows(numbers.astype(np.int64) * sequence)
        if (largest := int(windows.max())) >= self._vocabulary_size:
            raise InputError(
                f"`{self._folder}` has token {largest}; its header says that all are below {self._vocabulary_size}",
                hint="it was changed: make the folder again",
            )
        return windows

    def _random_tokens(self, step: int, first: int, last: int) -> _Windows:
        """Windows of tokens drawn uniformly from the vocabulary."""
        draw = np.random.default_rng((self.seed, step))
        shape = (self.training.global_batch, self._length + 1)
        return draw.integers(0, self.vocabulary, shape)[first:last]

    def _windows(self, starts: Ints) -> _Windows:
        """Windows of the tokens that begin at `starts`."""
        return np.stack([self._tokens[start : start + self._length + 1] for start in starts])


Positions = npt.NDArray[np.uint64]

_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Multipliers of SplitMix64's finaliser (Steele, Lea & Flood 2014)."""


def shuffled(positions: Positions, count: int, seed: tuple[int, ...]) -> Positions:
    """Map numbers below `count` by a random permutation of 0 to `count` − 1 that is drawn from `seed`; (N,) → (N,)."""
    half = max(1, -(-(count - 1).bit_length() // 2))
    keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    result = _network(positions.astype(np.uint64), np.uint64(half), keys)
    while (outside := result >= count).any():
        result[outside] = _network(result[outside], np.uint64(half), keys)
    return result


def _network(values: Positions, half: np.uint64, keys: Positions) -> Positions:
    """Permute numbers below 2^(2·half) by a Feistel network with these round keys."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(values: Positions) -> Positions:
    """Hash of 64-bit numbers: the finaliser of SplitMix64."""
    first, second = _MULTIPLIERS
    values = (values ^ (values >> np.uint64(30))) * first
    values = (values ^ (values >> np.uint64(27))) * second
    return values ^ (values >> np.uint64(31))


_BEGINS, _ENDS = "bcdfghjklmnprstvwBCDFLMNPRST0123", ("a", "e", "i", "o", "u", "y", "er", "1)")
_SYLLABLES = [begin + end for begin in _BEGINS for end in _ENDS]
_WORD_BITS, _PHRASE_BITS, _SHIPPED_PHRASES = 12, 13, 1 << 18


@lru_cache(maxsize=1)
def text_tokens() -> npt.NDArray[np.uint8]:
    """Bytes of the built-in text, the same on every machine: phrases of words of random syllables.

    Of 4,096 words and of 8,192 phrases those with low numbers come more often, about in inverse proportion to these, as
    words of languages do (Zipf 1949); some 4 MB, so that short runs never see a window twice.
    """

    def drawn(count: int, kind: int, bits: int) -> list[int]:
        """`count` numbers below 2^bits, small ones more often; `kind` separates sequences of draws."""
        numbers = _mixed(np.arange(count, dtype=np.uint64) + np.uint64(kind << 32))
        limits = np.uint64(2) << (numbers % np.uint64(bits))
        return ((numbers >> np.uint64(8)) % limits).tolist()  # type: ignore[no-any-return]

    def joined(parts: list[str], kind: int, bits: int, separator: str) -> list[str]:
        """Make 2^bits texts, each of two or three drawn `parts` joined by `separator`."""
        count = 1 << bits
        lengths, places = (drawn(count, kind, 1), drawn(4 * count, kind + 1, (len(parts) - 1).bit_length()))
        ranges = [slice(4 * at, 4 * at + 2 + length) for at, length in enumerate(lengths)]
        return [separator.join(parts[part] for part in places[some]) for some in ranges]

    phrases = joined(joined(_SYLLABLES, 0, _WORD_BITS, ""), 2, _PHRASE_BITS, " ")
    text = ", ".join(phrases[at] for at in drawn(_SHIPPED_PHRASES, 4, _PHRASE_BITS))
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
