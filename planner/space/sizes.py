"""Numbers of GPUs to choose from (parsing of `--gpus`, numbers that a cluster can have, the question at
each), and families of models of growing size.

A family is one shape at every size: deeper, wider or for longer sequences, step by step. By depth a size is a
number of blocks of the family's base. By width it is a number of heads, with as many blocks as the published
ladder of models has at that width (interpolated and extrapolated), and an MLP in the base's proportion. By
sequence the model is fixed, and a size is a number of `SEQUENCE_STEP` tokens per sequence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, product
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.base import MAX_GPUS, MAX_LAYERS
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.operators.parameters import total_parameters
from cost_models.question import Question
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.transformer import TransformerSpec
from planner.placement.patterns import MOST_SMALLER
from planner.rules.legality import legal_rows
from planner.rules.stack import FP8_SIDE
from planner.space.axes import divisors
from planner.space.limits import tensor_degrees

Q = TypeVar("Q", Question, RecommenderQuestion)
AnyQuestion = Question | RecommenderQuestion

MOST_SIZES = 1000
"""Maximum number of sizes in one question."""
SYNTAX = "write it like 64,128 or 64..1024 (doublings), 64..1024:64 (every 64th) or 64..1024x20 (20 of them)"
"""Hint that shows how the numbers of GPUs are written."""
_WORD = re.compile(r"(\d{1,12})(?:\.\.(\d{1,12})(?::(\d{1,12})|x(\d{1,4}))?)?$", re.ASCII)


def parse_sizes(text: str, question: AnyQuestion, *, skip_impossible: bool = False) -> tuple[int, ...]:
    """Parse the numbers of GPUs of `--gpus`, words between commas, into rising order.

    `64` is itself, `64..1024` doubles from the first to the last, `64..1024:64` takes every 64th, and `64..1024x20`
    takes 20 in even ratios, each moved to the whole number of nodes near it with most layouts of equal stages. With
    `skip_impossible`, sizes that the cluster cannot have are left out.

    Raises:
        InputError: every word that cannot be read, and every size the cluster cannot have.
    """
    problems: list[Problem] = []
    sizes: set[int] = set()
    for word in text.split(","):
        match = _WORD.match(word.strip())
        first, last, step, points = (int(group or -1) for group in match.groups()) if match else (0, 0, 0, 0)
        if complaint := _out_of_range(word.strip(), first, last, step, points):
            problems.append(Problem("--gpus", f"`{word}` {complaint}"))
        elif step > 0:
            sizes.update(range(first, last + 1, step))
        elif points > 0:
            sizes.update(_in_even_ratios(question, first, last, points))
        else:
            doublings = (first * 2**power for power in range((max(last, first) // first).bit_length()))
            sizes.update(doublings, [max(last, first)])
    if problems:
        raise InputError("the numbers of GPUs cannot be read", problems=problems, hint=SYNTAX)
    if skip_impossible:
        return tuple(sorted(size for size in sizes if is_possible_size(size, question.cluster)))
    require_possible(question.cluster, sorted(sizes))
    return tuple(sorted(sizes))


def _out_of_range(word: str, first: int, last: int, step: int, points: int) -> str:
    """Complaint about impossible numbers in one word of `--gpus` (-1 stands for a missing number); empty if
    the numbers are possible."""
    if first == 0:
        return "is not a number of GPUs"
    if word.startswith("0"):
        return "begins with a zero; commas stand between several numbers, so write 1024, not 1,024"
    if max(first, last) > MAX_GPUS:
        return f"is more than there are; {MAX_GPUS:,} are the most"
    if 0 <= last < first:
        return f"runs from {first} down to {last}"
    if step == 0 or points == 0:
        return "takes steps of nothing"
    count = (last - first) // step + 1 if step > 0 else points
    return f"names {count:,} sizes; {MOST_SIZES:,} are the most" if count > MOST_SIZES else ""


def _in_even_ratios(question: AnyQuestion, first: int, last: int, points: int) -> list[int]:
    """Choose numbers of GPUs near the geometric series `first · (last / first)^(i / (points − 1))`. Near
    each, the number with most layouts of equal stages is taken."""
    unit = question.cluster.gpus_per_node if first >= question.cluster.gpus_per_node else 1
    targets = np.geomspace(first, last, max(points, 2))[: max(points, 1)]
    spread = (last / first) ** (0.5 / max(points - 1, 1))
    picks: list[int] = []
    for target in targets.tolist():
        low, high = math.ceil(target / spread / unit), math.floor(target * spread / unit)
        around = range(max(low, 1), max(high, round(target / unit)) + 1)
        sizes = [count * unit for count in around if first <= count * unit <= last]
        offers = {size: plain_layouts(question, size) for size in sizes if size not in picks}
        best = max(offers, key=lambda size: (*offers[size], -abs(math.log(size / target))), default=0)
        if best and offers[best][1]:
            picks.append(best)
    return picks


def plain_layouts(question: AnyQuestion, gpus: int) -> tuple[int, int]:
    """Number of legal plain pipelines on `gpus` GPUs with equal stages, and number with any stages. A plain
    pipeline has no ZeRO, and `mbs1` or one microbatch.

    For a recommender 1 if the GPUs divide its batch, else 0.
    """
    if isinstance(question, RecommenderQuestion):
        even = int(question.training.global_batch % gpus == 0)
        return even, even
    sized = resized(question, gpus)
    plain = [
        Layout(tp=tp, pp=pp, dp=dp, mbs=mbs)
        for tp in tensor_degrees(sized.cluster)
        for pp in range(1, sized.model.num_layers + 1)
        if gpus % (tp * pp) == 0 and sized.training.global_batch % (dp := gpus // (tp * pp)) == 0
        for mbs in {1, sized.training.global_batch // dp}
    ]
    legal = compress(plain, legal_rows(sized, LayoutColumns.of(plain)))
    pipelines = {(layout.tp, layout.pp) for layout in legal}
    return sum(sized.model.num_layers % pp == 0 for _, pp in pipelines), len(pipelines)


def is_possible_size(count: int, cluster: ClusterSpec) -> bool:
    """Whether a cluster can have a number of GPUs: a part of a node, or complete nodes that links connect."""
    per_node, connected = cluster.gpus_per_node, cluster.links.inter_node is not None
    whole_nodes = connected and count % per_node == 0 and not cluster.building_problem(count // per_node)
    return count <= per_node or whole_nodes


def require_possible(cluster: ClusterSpec, counts: Sequence[int]) -> None:
    """Raise InputError unless the cluster can have each of the given numbers of GPUs.

    Raises:
        InputError: names the numbers that it cannot have.
    """
    reason = "more than a node, and nodes are not connected"
    if cluster.buildings or cluster.links.inter_node:
        reason = "no whole number of nodes" + " or buildings" * bool(cluster.buildings)
    complaint = f"GPUs are {reason}; a node has {cluster.gpus_per_node}"
    problems = [
        Problem("", f"{count:,} {complaint}") for count in counts if not is_possible_size(count, cluster)
    ]
    if problems:
        raise InputError(f"`{cluster.name}` cannot have these numbers of GPUs", problems=problems)


def on_whole_nodes(question: Q) -> Q:
    """Copy of the question on one complete node, if its cluster is part of a node of a catalogue cluster;
    else the question itself."""
    cluster = question.cluster
    if cluster.nodes > 1 or cluster.name == LOCAL or cluster.name not in catalog.names("clusters"):
        return question
    original = catalog.load_cluster(cluster.name)
    fits = original.gpu.name == cluster.gpu.name and original.gpus_per_node >= cluster.gpus_per_node
    node = {"gpus_per_node": original.gpus_per_node if fits else cluster.gpus_per_node}
    return replace(question, cluster=cluster.model_copy(update=node))


def resized(question: Q, gpus: int, global_batch: int | None = None) -> Q:
    """Copy of the question with another number of GPUs, and another global batch if given."""
    cluster = question.cluster
    per_node = min(gpus, cluster.gpus_per_node)
    batch = {} if global_batch is None else {"global_batch": global_batch}
    sized = cluster.model_copy(update={"gpus_per_node": per_node, "nodes": gpus // per_node})
    return replace(question, cluster=sized, training=question.training.model_copy(update=batch))


By = Literal["depth", "width", "sequence"]
"""Dimension that grows from size to size."""
WAYS: tuple[By, ...] = get_args(By)
MLP_MULTIPLE = 256
"""Multiple to which the width of a gated MLP is rounded up (Touvron et al. 2023, the released code)."""
MAX_HEADS = 1024
"""Largest size by width, in heads."""
_PIECES = 2
"""Maximum number of pieces of a context rank's tokens, which give causal attention equal work."""
SEQUENCE_STEP = 256
"""Tokens by which a sequence grows from one size of a family to the next."""
MAX_SEQUENCE = 2**24
"""Maximum length of a sequence, in tokens, if positions are not learned."""


_LLAMA = ("llama3.2-1b", "llama3.2-3b", "llama-7b", "llama-13b", "llama-30b", "llama-65b", "llama3.1-405b")
_GPT = [f"megatron-{size}" for size in ("1.7b", "3.6b", "7.5b", "18b", "39b", "76b", "145b", "310b", "1t")]
LADDERS = {"llama": ("llama2-7b", _LLAMA), "gpt": ("megatron-7.5b", (*_GPT,))}
"""Catalogue model with the shape of each family, and models whose widths and depths the family's sizes
by width follow, narrowest first."""


@dataclass(frozen=True)
class Family:
    """Family of transformers of the sizes 1, 2, 3 and so on; with the size grows their depth, width or
    sequence length."""

    name: str
    base: TransformerSpec
    by: By
    published: tuple[TransformerSpec, ...] = ()
    """Models whose widths and depths its sizes by width follow, narrowest first."""

    @property
    def largest_size(self) -> int:
        """Largest size of the family, in blocks, heads or steps of `SEQUENCE_STEP` tokens."""
        if self.by == "sequence":
            learned = self.base.positions == "learned"
            return (self.base.max_positions if learned else MAX_SEQUENCE) // SEQUENCE_STEP
        return MAX_LAYERS if self.by == "depth" else MAX_HEADS

    @property
    def base_size(self) -> int:
        """Size of the family's base model, in blocks, heads or steps of `SEQUENCE_STEP` tokens."""
        if self.by == "sequence":
            return max(1, min(self.largest_size, self.base.max_positions // SEQUENCE_STEP))
        return self.base.num_layers if self.by == "depth" else self.base.hidden_size // self.base.head_dim

    def sequence(self, size: int) -> int | None:
        """Tokens of a sequence at one size of the family; None where depth or width grows."""
        return size * SEQUENCE_STEP if self.by == "sequence" else None

    def question_of_size(self, question: Question, size: int) -> Question:
        """Copy of the question with the model or the sequence length of one size of the family."""
        if (length := self.sequence(size)) is None:
            return replace(question, model=self.model(size))
        return replace(question, training=question.training.model_copy(update={"sequence_length": length}))

    @cached_property
    def _measures(self) -> tuple[Ints, Ints, Ints]:
        """Quantities that parallel degrees must divide, for each size of the family: heads (or tokens of a
        sequence), MLP width and blocks, (N,) each. Zeros where a quantity does not grow."""
        size = np.arange(1, self.largest_size + 1)
        if self.by == "sequence":
            return size * SEQUENCE_STEP, 0 * size, 0 * size
        if self.by == "depth":
            return 0 * size, 0 * size, size
        widths = (size * self.base.head_dim).tolist()
        return size, np.array([*map(self._inner, widths)]), np.array([*map(self._layers, widths)])

    def divisible_sizes(self, question: Question) -> Iterator[Bools]:
        """Yield, for every set of degrees that the GPUs allow, a mask (N,) of the sizes that are divisible by
        the degrees. A layout that is legal at one of these sizes is legal at every smaller one, with no more
        memory.
        """
        tokens_N, inner_N, layers_N = self._measures
        gpus, side = question.cluster.num_gpus, FP8_SIDE if question.training.precision == "fp8" else 1
        tokens = _PIECES * side * gpus if self.by == "sequence" else gpus
        splits = divisors(tokens) if tokens_N.any() else [1]
        inner_splits = divisors(side * gpus) if inner_N.any() else [1]
        stages = [1, *(2 * pp for pp in divisors(gpus) if pp > 1 and layers_N.any())]
        for split, inner, chunks in product(splits, inner_splits, stages):
            yield (tokens_N % split == 0) & (inner_N % inner == 0) & (-layers_N % chunks <= MOST_SMALLER)

    def model(self, size: int) -> TransformerSpec:
        """Transformer of one size of the family."""
        if self.by == "sequence":
            return self.base
        base, layers, hidden = self.base, size, self.base.hidden_size
        grown: dict[str, Any] = {}
        if self.by == "width":
            hidden = size * base.head_dim
            layers = self._layers(hidden)
            grown = {"hidden_size": hidden, "num_heads": size, "ffn_hidden_size": self._inner(hidden)}
            grown["num_kv_heads"] = max(1, size * base.num_kv_heads // base.num_heads)
        if base.has_experts:
            grown["num_moe_layers"] = max(0, layers - (base.num_layers - base.num_moe_layers))
        grown |= {"name": f"{self.name}-{layers}x{hidden}", "num_layers": layers}
        return TransformerSpec.model_validate(base.model_dump(mode="json") | grown)

    def parameters(self, size: int) -> int:
        """Number of parameters of the transformer of one size."""
        return total_parameters(self.model(size))

    def _inner(self, hidden: int) -> int:
        """MLP width at a hidden size, in the base model's proportion and rounded."""
        unit = MLP_MULTIPLE if self.base.gated_mlp else 1
        inner = round(self.base.ffn_hidden_size / self.base.hidden_size * hidden)
        return -(-inner // unit) * unit

    def _layers(self, hidden: int) -> int:
        """Number of blocks at a hidden size, interpolated or extrapolated from the published models."""
        widths = [model.hidden_size for model in self.published]
        depths = [model.num_layers for model in self.published]
        if widths[0] < hidden < widths[-1]:
            return round(float(np.interp(hidden, widths, depths)))
        nearest = 0 if hidden <= widths[0] else -1
        return max(1, round(depths[nearest] * hidden / widths[nearest]))


def family_named(name: str, by: By) -> Family | None:
    """Find the family of models called `name` in `LADDERS`, which grows in `by` (depth, width or sequence);
    None if the name is unknown."""
    if name not in LADDERS:
        return None
    base, published = LADDERS[name]
    models = tuple(map(catalog.load_model, published))
    return Family(name=name, base=catalog.load_model(base), by=by, published=models)
