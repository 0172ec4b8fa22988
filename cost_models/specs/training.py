"""Specs of training jobs without their layout, with batch, sequence, precision, optimizer, adapters, lengths
of documents and changes.

Adapters (LoRA): y = x·W + s · x·A·B with A (in, r) and B (r, out); only A and B are trained (Hu et al. 2021,
arXiv 2106.09685). The scale s costs nothing. W may be stored in fewer bits and converted to 16 bits before
each product (Dettmers et al. 2023, QLoRA, arXiv 2305.14314).

Sequences of documents of different lengths:

    pack     several documents a sequence, each attending to itself alone, none cut: the longest first, each into the
             sequence that it fills best (best fit decreasing)
    pad      one document a sequence, which is computed to its end
    bucket   one document a sequence, in microbatches of documents of similar length, which are as long as those

Lengths are drawn evenly: an equal number of documents from every quantile of a distribution.

`--allow` permits changes of the mathematics. They change the loss curve, so they are never applied unless requested.

    parallel-block   attention and MLP read one norm side by side (Wang & Komatsuzaki 2021; MegaScale, section 3.1)
    window=N         a query attends to N tokens, itself included (Beltagy et al. 2020)
    lamb             optimizer for batches that are too large for Adam (You et al. 2020)

A changed model carries these words in plans, checkpoints and reports.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from statistics import NormalDist
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from cost_models.arrays import Ints
from cost_models.base import OMITTED, TUPLE_FROM_LIST, CheckedSpec, GpuCount, LargeInt, PositiveInt, Spec
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.specs.choices import RECOMPUTE_POLICIES, Recompute
from cost_models.specs.cluster import FULL, NARROW, Precision
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import FP32_BYTES, LARGEST, grouped

Base = Literal["int8", "nf4"]
"""Quantised storage types of frozen matrices.

    int8   a byte, and for each row of a matrix a scale in fp32 (Dettmers et al. 2022, LLM.int8(), section 3.1)
    nf4    half a byte; for each block of 64 a scale of a byte, and for 256 of these one in fp32 (QLoRA, section 3)
"""
Group = Literal["attention", "mlp", "experts", "all-linear"]
StateMatrix = Literal["in_proj", "out_proj"]
Matrix = Literal["q", "k", "v", "o", "gate", "up", "down", "q_a", "q_b", "kv_a", "kv_b", StateMatrix]
Target = Literal[Group, Matrix]
"""A matrix of a block by its usual name, or a group of matrices. `all-linear` is all matrices except router
and output."""
UntrainedPart = Literal["still", "block", "tower", "projector", "embedding", "head", "head matrix"]
NF4_BLOCK = 64
"""Number of NF4 elements that share one scale. Such a block is never split over ranks."""
NF4_GROUP = 256
"""Number of NF4 scales that share a second scale in fp32."""
DEFAULT_RANK = 16
DEFAULT_TARGETS: tuple[Target, ...] = ("all-linear",)


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A number above zero."""


class TuningSpec(CheckedSpec):
    """Low-rank adapters (LoRA, QLoRA) and the storage type of the frozen model that they adapt."""

    rank: PositiveInt = DEFAULT_RANK
    """Rank r of an adapter, which is the number of columns of its matrix A and rows of B."""
    targets: tuple[Target, ...] = Field(default=DEFAULT_TARGETS, min_length=1)
    """Names of the matrices that have an adapter."""
    base: Base | None = None
    """Storage type of the blocks' frozen matrices. None: the training precision."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, allow_inf_nan=False)
    """Probability of dropping an adapter's input. Above 0 the adapter keeps a copy of its input, and a
    mask."""

    alpha: PositiveFloat | None = OMITTED
    """Numerator of the factor alpha / rank on an adapter's output. None: the factor is 1. No cost depends on
    it."""

    left: tuple[UntrainedPart, ...] | None = OMITTED
    """Parts of the model that a job with `freeze` does not train, for blocks of one kind. Set by
    `cost_models.specs.kinds`. `still` where nothing before the blocks is trained either. None: all but
    adapters are frozen."""

    def contradictions(self) -> dict[str, object]:
        """Error message for a file that sets the field `left`, mapped to whether it is set. Only the program
        may set it."""
        return {"left follows from `freeze` of the job": self.left is not None}

    @property
    def scale(self) -> float:
        """Factor by which the adapters' output is multiplied."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def task(self) -> Literal["lora", "qlora"]:
        """Usual name of the fine-tuning method: `lora`, or with a quantised model `qlora`."""
        return "lora" if self.base is None else "qlora"

    def __str__(self) -> str:
        return f"{self.task} of rank {self.rank}"

    def stored_bytes(self, inputs: int) -> float | None:
        """Stored bytes per element of a frozen matrix with rows of `inputs` elements, scales included; None
        if the matrix is not quantised."""
        blockwise = 0.5 + (1.0 + FP32_BYTES / NF4_GROUP) / NF4_BLOCK
        return {"int8": 1.0 + FP32_BYTES / inputs, "nf4": blockwise}.get(self.base or "")


FREEZE_TUNING = TuningSpec().model_copy(update={"targets": ()})
"""Tuning without adapters, for jobs that freeze parts of the model. Its `left` names the untrained parts."""


Packing = Literal["pack", "pad", "bucket"]
MAX_DOCUMENT_LENGTHS = 1024
"""Maximum number of document lengths kept from a file. More are sorted and replaced by the means of this many
equal groups."""
_MIN_SAMPLE, _MAX_SAMPLE = 2048, 32_768
_MIN_SEQUENCES = 256
"""Minimum number of packed sequences in a sample, unless that takes more than `_MAX_SAMPLE` documents."""


_Mean = Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)]
_Deviation = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class LengthsSpec(Spec):
    """Distribution of document lengths, and the way in which documents are combined into sequences."""

    packing: Packing = "pack"
    """Method by which documents are combined into sequences, as packed, padded, or in buckets of similar
    length."""
    lognormal: tuple[_Mean, _Deviation] | None = Field(default=None, strict=False)
    """Mean of the lengths in tokens, and standard deviation of their logarithms. Documents longer than a
    sequence are cut."""
    documents: Annotated[tuple[LargeInt, ...], TUPLE_FROM_LIST] = ()
    """Document lengths in tokens, all equally frequent."""

    def __str__(self) -> str:
        words = {"pack": "packed into sequences of", "pad": "each padded to"}
        return words.get(self.packing, "in microbatches of like length up to")


@dataclass(frozen=True, slots=True)
class Sequences:
    """Representative sample of a training job's sequences and their documents. D documents, S sequences."""

    documents: Ints
    """Tokens of each document, (D,), in the order of their sequences."""
    places: Ints
    """Index of the sequence that contains each document, (D,)."""

    @property
    def number(self) -> int:
        """Number of sequences in the sample, S."""
        return int(self.places[-1]) + 1

    @property
    def mean(self) -> float:
        """Mean number of tokens per document."""
        return float(self.documents.mean())


@lru_cache(maxsize=64)
def sequences_of(lengths: LengthsSpec, longest: int) -> Sequences:
    """Representative sample of sequences of at most `longest` tokens, made of documents whose lengths follow
    the given distribution."""
    length_D = _sample_lengths(lengths, longest)
    if lengths.packing != "pack":
        return Sequences(length_D, np.arange(len(length_D)))
    packed = _best_fit(length_D, longest)
    np.random.default_rng(0).shuffle(packed)
    place_D = np.repeat(np.arange(len(packed)), [len(one) for one in packed])
    return Sequences(np.concatenate(packed), place_D)


def truncated_share(lengths: LengthsSpec, longest: int) -> float:
    """Share of a lognormal distribution's documents that are longer than `longest` tokens and therefore cut."""
    mean, sigma = lengths.lognormal or (1.0, 0.0)
    return 1.0 - NormalDist(log(mean) - sigma**2 / 2, sigma).cdf(log(longest)) if sigma else 0.0


def grouped_lengths(lengths: list[int]) -> tuple[int, ...]:
    """Reduce document lengths to at most `MAX_DOCUMENT_LENGTHS` values of about the same mean (means of equal
    groups of sorted lengths)."""
    if len(lengths) <= MAX_DOCUMENT_LENGTHS:
        return tuple(lengths)
    groups = np.array_split(np.sort(np.array(lengths)), MAX_DOCUMENT_LENGTHS)
    return tuple(max(1, round(float(one.mean()))) for one in groups)


def _sample_lengths(lengths: LengthsSpec, longest: int) -> Ints:
    """Tokens of each document in a sample, (D,): quantiles of the lognormal distribution, or the given
    lengths, each equally often; at most `longest`."""
    if lengths.lognormal is None:
        documents = np.array(lengths.documents or (longest,), dtype=np.int64)
        return np.tile(documents, -(-_MIN_SAMPLE // len(documents)))
    mean, sigma = lengths.lognormal
    count = int(np.clip(_MIN_SEQUENCES * longest / mean, _MIN_SAMPLE, _MAX_SAMPLE))
    normal = [NormalDist().inv_cdf((one + 0.5) / count) for one in range(count)]
    lengths_D = mean * np.exp(np.minimum(sigma * np.array(normal) - sigma**2 / 2, log(longest)))
    return np.clip(np.rint(lengths_D), 1, longest).astype(np.int64)


def _best_fit(length_D: Ints, longest: int) -> list[list[int]]:
    """Pack documents into sequences by best fit decreasing, and return the document lengths of each sequence."""
    sequences: list[list[int]] = []
    free_tokens: list[tuple[int, int]] = []  # (free tokens of a sequence, index of the sequence)
    for length in sorted(length_D.tolist(), reverse=True):
        place = bisect_left(free_tokens, (length, -1))
        free, number = free_tokens.pop(place) if place < len(free_tokens) else (longest, len(sequences))
        if number == len(sequences):
            sequences.append([])
        sequences[number].append(length)
        insort(free_tokens, (free - length, number))
    return sequences


StateDtype = Literal["fp32", "bf16"]
Reference = Literal["resident", "host", "computed"]
Blockwise = Literal["adamw-8bit", "adamw-4bit", "paged-adamw-8bit", "lion-8bit"]
"""Optimizers whose moments are quantised block by block."""
OptimizerName = Literal["adamw", "sgd", "lamb", "adafactor", "muon", "paged-adamw", "lion", Blockwise]
STATE_BYTES: dict[StateDtype, float] = {"fp32": FP32_BYTES, "bf16": 2.0}
_ELEMENT_BYTES: dict[Precision, float] = dict.fromkeys(get_args(Precision), 2.0) | dict.fromkeys(FULL, 4.0)
_OPERAND_BYTES: dict[Precision, float] = {"fp8": 1.0, "fp4": 0.5 + 1 / 16}
"""Precision → bytes per element of the operands of products. fp4 includes a scale of one byte per sixteen
elements (NVFP4)."""


FROZEN_PARTS = ("tower", "projector", "language", "embedding")
_FIRST = re.compile(r"first=([1-9][0-9]{0,5})")


def _frozen_part(name: str) -> str:
    """Check that `name` is a part of the model that `freeze` may list, and return it. Raises ValueError for
    any other name."""
    if name not in FROZEN_PARTS and not _FIRST.fullmatch(name):
        raise ValueError(f"`{printable(name)}` is not one of {', '.join(FROZEN_PARTS)}, first=N")
    return name


FrozenPart = Annotated[str, AfterValidator(_frozen_part)]
"""A part of the model that is not trained, as one of `FROZEN_PARTS` or the first N blocks (`first=N`)."""


class TrainingSpec(Spec):
    """A training job (batch, sequence length, precision, optimizer) without its parallel layout."""

    kind: Literal["training"] = "training"
    global_batch: GpuCount
    """Sequences per optimizer step, B."""
    sequence_length: LargeInt
    """Tokens per sequence, s."""
    target_length: LargeInt | None = OMITTED
    """Tokens per sequence of an encoder-decoder's decoder, where `sequence_length` is the encoder's. None:
    the same."""
    images: PositiveInt | None = OMITTED
    """Images per sequence; their tokens are part of `sequence_length`. None: the model has no vision
    tower."""
    precision: Precision = "bf16"
    """Type of weights and activations in GEMMs."""
    optimizer: OptimizerName = "adamw"
    """Name of the optimizer. `lamb` has Adam's moments, and each parameter's step is scaled by the
    parameter's norm (You et al. 2020). `adamw-8bit` keeps moments in 8 bits (Dettmers et al. 2022),
    `adamw-4bit` in 4 (Li et al. 2023). Paged ones move to host memory when the device is full: they count as
    device memory, and the moves are not priced. `lion` has one moment (Chen et al. 2023), `adafactor` sums of
    rows and columns (Shazeer & Stern 2018), `muon` one moment of a block's parameters and Adam's of embedding
    and head (Jordan et al. 2024)."""
    optimizer_in_backward: bool = Field(default=False, exclude_if=lambda on: not on)
    """Whether each parameter is updated as soon as its gradient exists, which is then freed. Only one
    gradient exists at a time, so none is clipped by the norm of all, and a step is one microbatch (Lv et al.
    2023, LOMO, arXiv 2306.09782)."""
    gradient_dtype: StateDtype | None = None
    """Type in which gradients are accumulated and reduced. None: the stack's default."""
    state_dtype: StateDtype = "fp32"
    """Type of each optimizer moment and of the updated weights. These are a master copy, or the weights
    themselves."""
    moment_dtype: StateDtype | None = None
    """Type of each optimizer moment, where it differs from the type of the master weights. None:
    `state_dtype`."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0, allow_inf_nan=False)
    """Probability of dropping a hidden activation. Above 0 masks are kept for the backward pass. None: the
    stack's default."""
    recompute: tuple[Recompute, ...] = Field(default=RECOMPUTE_POLICIES, min_length=1)
    """Recompute policies that the search may use."""
    tokens: float | None = Field(default=None, gt=0, le=LARGEST, allow_inf_nan=False)
    """Total number of tokens of the training job, from which its duration in days follows."""
    tuning: TuningSpec | None = OMITTED
    """Adapters that are trained on a frozen model. None: every parameter is trained."""
    freeze: tuple[FrozenPart, ...] = Field(default=(), exclude_if=lambda freeze: not freeze)
    """Parts of the model that are not trained. tower, projector and language (embedding, decoder, head) of a
    model with a vision tower, embedding, or first=N, the first N blocks of a model or its decoder."""

    reference: Reference | None = OMITTED
    """Place of the frozen reference model when preferences between two sequences are trained (DPO, Rafailov
    et al. 2023, arXiv 2305.18290). `resident`: runs forward in every step (with adapters it is the model
    without them); `host`: the same, with the weights of one block after another copied from host memory;
    `computed`: ran once before training. None: no preferences."""
    reward: bool = Field(default=False, exclude_if=lambda reward: not reward)
    """Whether the job trains a reward model on pairs of sequences, with one output instead of the
    vocabulary."""
    lengths: LengthsSpec | None = OMITTED
    """Distribution of the document lengths in sequences. None: each sequence is one document."""
    answers: Annotated[PositiveFloat, Field(le=1)] | None = OMITTED
    """Share of the tokens that enter the loss because they belong to answers and not to prompts. None: all
    tokens."""

    @field_validator("lengths")
    @classmethod
    def _check_document_lengths(cls, lengths: LengthsSpec | None, info: ValidationInfo) -> LengthsSpec | None:
        """Raise ValueError if a document is longer than a sequence."""
        longest = max(lengths.documents, default=0) if lengths else 0
        if longest > (sequence := info.data.get("sequence_length", longest)):
            text = f"a document of {longest:,} tokens is longer than a sequence of {sequence:,}"
            raise ValueError(f"{text}: write `sequence_length: {longest}`, or cut it")
        return lengths

    def trains(self, part: UntrainedPart) -> bool:
        """Whether the job trains the parameters of `part` of a model whose blocks are all of one kind. Always
        False with adapters."""
        return self.tuning is None or (self.tuning.left is not None and part not in self.tuning.left)

    @property
    def runs_forward_only(self) -> bool:
        """Whether the job runs the blocks in forward passes only, because nothing in or before them is
        trained; for a model whose blocks are all of one kind."""
        return self.tuning is not None and "still" in (self.tuning.left or ())

    @property
    def first_frozen(self) -> int:
        """Number of blocks that are not trained because `freeze` has `first=N`: N, or 0."""
        return max((int(one.removeprefix("first=")) for one in self.freeze if one[:6] == "first="), default=0)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Lengths in tokens of the sequences in a sample: of the encoder and of the decoder, or of the only
        one."""
        return (self.sequence_length, *([self.target_length] if self.target_length else []))

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens in one optimizer step, without padding."""
        return round(self.global_batch * self.tokens_counted)

    @property
    def tokens_counted(self) -> float:
        """Mean number of tokens per sequence without padding, encoder and decoder together."""
        if self.lengths is not None:
            sample = sequences_of(self.lengths, self.sequence_length)
            return float(sample.documents.sum()) / sample.number
        return self.sequence_length + (self.target_length or 0)

    @property
    def in_words(self) -> str:
        """Batch size as text: sequences per step x tokens per sequence ("256 x 512"); for an encoder-decoder
        with the decoder's tokens added ("256 x 512 + 114")."""
        target = f" + {self.target_length:,}" if self.target_length else ""
        return f"{self.global_batch:,} x {self.sequence_length:,}{target}"

    @property
    def tokens_per_sample(self) -> float:
        """Mean number of tokens per sample. A sample is a document or sequence; in preference or reward
        training, a pair of these."""
        longest, lengths = self.sequence_length, self.lengths
        sequence = longest if lengths is None else sequences_of(lengths, longest).mean
        return sequence if self.reference is None and not self.reward else 2 * sequence

    @property
    def wide_precision(self) -> Precision:
        """Precision of the operators that fp8 and fp4 training runs in 16 bits: attention, router, output
        matrix and element-wise operators. In other training it is the training precision."""
        return "bf16" if self.casts_operands else self.precision

    @property
    def casts_operands(self) -> bool:
        """Whether training casts the operands of a block's products to fewer bits (fp8, fp4) than weights and
        activations have."""
        return self.precision in NARROW

    @property
    def element_bytes(self) -> float:
        """Bytes of one weight or activation in memory and in messages. In fp8 and fp4 training these have 16
        bits."""
        return _ELEMENT_BYTES[self.precision]

    @property
    def operand_bytes(self) -> float:
        """Bytes per element of the operands of a block's GEMMs."""
        return _OPERAND_BYTES.get(self.precision, self.element_bytes)


CHANGE_WORDS = ("parallel-block", "window=N", "lamb")
"""Words of `--allow`, each a change of the model's mathematics, in the order in which messages list them."""
_WINDOW = re.compile(r"window=(\d{1,12})$", re.ASCII)


def is_change(word: str) -> bool:
    """Whether a word of `--allow` starts with the name of a known change of the mathematics; its value may be
    invalid."""
    return word.partition("=")[0] in {known.partition("=")[0] for known in CHANGE_WORDS}


ModelAndJob = tuple[TransformerSpec, TrainingSpec]


def apply_changes(model: TransformerSpec, training: TrainingSpec, words: Sequence[str]) -> ModelAndJob:
    """Copy of a model and a job with the changes of the mathematics that the words of `--allow` request.

    Raises:
        InputError: words that cannot be read, or that change nothing of this model and this job; all of them at once.
    """
    complaints = [(word, _change_error(model, training, word, words)) for word in words]
    if problems := [Problem(f"--allow {word}", what) for word, what in complaints if what]:
        raise InputError("what is allowed cannot be had", problems=problems)
    if "lamb" in words:
        training = training.model_copy(update={"optimizer": "lamb"})
    named_changes = tuple(word for word in dict.fromkeys(words) if word != "lamb")
    if not named_changes:
        return model, training
    spec = model.model_copy(update=dict(map(_model_field, named_changes)) | {"changed": named_changes})
    if spec.contradiction:
        raise InputError(f"--allow {','.join(named_changes)}: {spec.contradiction}")
    return spec, training


def changes_of(model: TransformerSpec, training: TrainingSpec) -> tuple[str, ...]:
    """Words of `--allow` for the changes of the mathematics (parallel block, window, LAMB) that a model and a
    job have."""
    return (*model.changed, *(["lamb"] if training.optimizer == "lamb" else []))


def undo_change(model: TransformerSpec, training: TrainingSpec, word: str) -> ModelAndJob:
    """Copy of a changed model and job without the change that the word `word` of `--allow` names."""
    if word == "lamb":
        return model, training.model_copy(update={"optimizer": "adamw"})
    name, _ = _model_field(word)
    undone = {name: TransformerSpec.model_fields[name].default}
    remaining = tuple(one for one in model.changed if one != word)
    return model.model_copy(update=undone | {"changed": remaining}), training


def _model_field(word: str) -> tuple[str, bool | int]:
    """Field of the model that a word of `--allow` sets, and its new value."""
    match = _WINDOW.match(word)
    return ("attention_window", int(match[1])) if match else ("parallel_block", True)


def _change_error(model: TransformerSpec, training: TrainingSpec, word: str, words: Sequence[str]) -> str:
    """Reason why a word of `--allow` cannot be applied to the model and the job; empty if it can. Else empty."""
    if word == "lamb":
        return "is what the job says already" * (training.optimizer == "lamb")
    if word == "parallel-block":
        return f"`{model.name}` has parallel blocks already" * model.parallel_block
    length, window, tokens = training.sequence_length, model.attention_window, _WINDOW.match(word)
    if tokens is None or int(tokens[1]) == 0:
        names, guess = ", ".join(CHANGE_WORDS), did_you_mean(word, CHANGE_WORDS)
        return f"is none of {names}{guess}; a window is written `window=1024`"
    if sum(one.startswith("window") for one in dict.fromkeys(words)) > 1:
        return "there are several windows"
    if window is not None:
        return f"`{model.name}` has windows of {grouped(window)} tokens of its own"
    return f"hides nothing of sequences of {grouped(length)} tokens" * (int(tokens[1]) >= length)
