"""Limits of a search: kinds of legal layouts that it leaves out, as named limits with sentences. Covered
layouts are legal and within all limits.

The search's space respects them by construction; obstacles, `--why-not` and an enumerator check given
layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, USUAL_RING, Layout
from cost_models.axes.offload.residency import named_blocks, offloads
from cost_models.axes.rule import Rule, objections
from cost_models.axes.stages import ENDS
from cost_models.axes.words import EVERY
from cost_models.communication.topology import levels_of
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, SCHEDULES
from cost_models.specs.cluster import ClusterSpec
from planner.placement.patterns import covers
from planner.rules.legality import overflows_hosts
from planner.space.axes import CLOSED, countable, divisors
from planner.space.restrictions import Restrictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One kind of legal layouts that a search does not try, as a named limit with a sentence for the user."""

    name: str
    covered: str
    """Phrase for what is covered, in a sentence on the space; empty if only redundant layouts are left
    out."""
    beyond: Callable[[Question, Restrictions, LayoutColumns], Bools]
    """(N,) whether layouts lie beyond the limit, within restrictions that may request them."""
    what: str
    """Sentence on a layout beyond it, a template of `layout`, `question` and `model`."""
    matters: Callable[[Question, Restrictions], bool] = lambda question, limits: True
    """Whether the limit leaves out any layout of a question within some restrictions."""

    def rule(self, limits: Restrictions) -> Rule:
        """Rule that layouts break if they lie beyond the search limit, within some restrictions."""
        return Rule(self.name, lambda q, x: self.beyond(q, limits, x), self.what)


NEARLY_AS_FAST = 0.5
"""Share of the intra-node bandwidth from which a search spreads tensor groups over nodes by default: below it
their messages take over twice as long, which no published run accepted."""


def tensor_degrees(cluster: ClusterSpec) -> list[int]:
    """Tensor-parallel degrees that a search tries on a cluster. They are divisors of the GPUs of a node or,
    over fast enough links, of all GPUs."""
    levels = levels_of(cluster)
    inside, across = ([at.bandwidth for at in levels if at.network == far] for far in (False, True))
    is_slow = not across or min(across) < NEARLY_AS_FAST * min(inside)
    return divisors(cluster.gpus_per_node if is_slow else cluster.num_gpus)


def tried_tensor_degrees(question: Question, limits: Restrictions) -> list[int]:
    """Tensor-parallel degrees that a search tries or the user names, as far as the restrictions permit them and
    they divide the GPUs."""
    gpus, requested = question.cluster.num_gpus, limits.only.get("tp", frozenset())
    degrees = [tp for tp in sorted({*tensor_degrees(question.cluster), *requested}) if gpus % tp == 0]
    permitted = limits.permits("tp", np.array(degrees, dtype=np.int64))
    return [*compress(degrees, permitted.tolist())]


def _spread(question: Question, limits: Restrictions, x: LayoutColumns) -> Bools:
    spread: Bools = ~np.isin(x.tp, [*tensor_degrees(question.cluster), *limits.only.get("tp", ())])
    return spread


def _uneven(question: Question, limits: Restrictions, x: LayoutColumns) -> Bools:
    blocks, stages_N = question.model.num_layers, x.pp * x.vpp
    shapes = zip(x.schedule.tolist(), stages_N.tolist(), strict=True)
    covered = [covers(SCHEDULES[schedule], blocks, stages) for schedule, stages in shapes]
    return (stages_N <= blocks + ENDS) & ~np.array(covered, dtype=np.bool_)


def _closed(question: Question, limits: Restrictions, x: LayoutColumns) -> Bools:
    is_closed = np.zeros(len(x), dtype=np.bool_)
    for name in CLOSED:
        if not limits.opens(name):
            for column, word in AXES[name].columns(name).items():
                is_closed |= getattr(x, column) != word.simplest
    return is_closed


def _redundant(question: Question, limits: Restrictions, x: LayoutColumns) -> Bools:
    is_redundant: Bools = (x.zero > 0) & (x.shard == 1)
    is_redundant |= (x.cp > 1) & (x.context == CONTEXTS.index(question.stack.context_parallel))
    return is_redundant | needless_rows(question, limits, x)


def needless_rows(question: Question, limits: Restrictions, columns: LayoutColumns) -> Bools:
    """For each layout, whether it keeps data on the drive that host memory would hold, though no restriction
    names drives, (N,).

    They need as much device memory as without the drive, and no less time, so none is the only best one.
    """
    drive = columns.offload_drive > 0
    if "offload_drive" in limits.named_axes or not drive.any():
        return np.zeros(len(columns), dtype=np.bool_)
    without = replace(columns, offload_drive=np.zeros(len(columns), dtype=np.int64))
    return drive & ~overflows_hosts(question, without, question.training.recompute)


def _untried(question: Question, limits: Restrictions, x: LayoutColumns) -> Bools:
    beside = (x.offload_states > 0) | (x.offload_streamed > 0)
    whole = (x.offload_streamed >= EVERY) & (x.offload_states > 0)
    own_host = offloads(x) & (question.cluster.gpu.kind == "cpu")
    counts_all = named_blocks(x) > countable(question, x.pp)
    return own_host | counts_all | whole | ((x.offload_parked > 0) & beside)


SEARCH_LIMITS: tuple[Limit, ...] = (
    Limit(
        name="tensor groups lie on fast links",
        covered="tp within a node, or as asked for",
        beyond=_spread,
        what="`tp{layout.tp}` spreads tensor groups over nodes, on slow links: `--fix tp={layout.tp}` has it searched",
        matters=lambda q, limits: tensor_degrees(q.cluster)[-1] < q.cluster.num_gpus,
    ),
    Limit(
        name="experts are split no finer than the rest",
        covered="etp a divisor of tp, or as asked for",
        beyond=lambda q, limits, x: (x.tp % x.etp != 0) & ~np.isin(x.etp, list(limits.only.get("etp", ()))),
        what="`etp{layout.etp}` does not divide tp{layout.tp}: `--fix etp={layout.etp}` has it searched",
        matters=lambda q, limits: q.model.has_experts and q.stack.expert_tensor_parallel,
    ),
    Limit(
        name="chunks are of nearly one size",
        covered="every number of blocks on each stage or, where a rank has several chunks or split backward passes,"
        " equal stages or one or two at the ends with a block less (or none, where they are interleaved)",
        beyond=_uneven,
        what="`pp{layout.pp} vpp{layout.vpp}` makes {layout.num_stages} stages of {model.num_layers} blocks, and of"
        " several chunks a rank the search has all of one size, or one or two a block smaller",
    ),
    Limit(
        name="axes are closed unless asked for",
        covered=f"{', '.join(CLOSED)} as `--allow` opens them",
        beyond=_closed,
        what="`{layout.brief}` has what the search leaves alone unless `--allow` opens it",
    ),
    Limit(
        name="residencies go together",
        covered="of offloaded blocks parked ones beside resident ones alone, and streamed ones, unless all are,"
        " beside those with states away",
        beyond=_untried,
        what="`{layout.brief}` mixes residencies, or counts all blocks of a rank, as the search does not",
        matters=lambda q, limits: limits.opens("offload") and bool(q.stack.residencies),
    ),
    Limit(
        name="rings have the usual buffers",
        covered="a ring of two buffers, or as asked for",
        beyond=lambda q, limits, x: (
            (x.ring != USUAL_RING) & ~np.isin(x.ring, list(limits.only.get("ring", ())))
        ),
        what="`ring={layout.ring}` is searched only where `--fix ring={layout.ring}` asks for it",
        matters=lambda q, limits: limits.opens("offload") and "streamed" in q.stack.residencies,
    ),
    Limit(
        name="each meaning has one word",
        covered="",
        beyond=_redundant,
        what="`{layout.brief}` says more than it needs to: groups of one rank, the usual way, or a drive beside enough"
        " memory",
    ),
)
"""Limits in the order in which they are reported."""


def limits_in_words(question: Question, limits: Restrictions) -> str:
    """Text that describes which layouts a search covers, with a phrase for each limit that matters for the
    question."""
    return "; ".join(
        limit.covered for limit in SEARCH_LIMITS if limit.covered and limit.matters(question, limits)
    )


def beyond_limits(limits: Restrictions) -> tuple[Rule, ...]:
    """Limits of the search as rules, one for each limit, within some restrictions."""
    return tuple(limit.rule(limits) for limit in SEARCH_LIMITS)


def left_out(question: Question, limits: Restrictions, layout: Layout) -> tuple[str, ...]:
    """Sentences on the search limits by which a search does not try a legal layout; empty if the layout is tried."""
    return tuple(words.what for words in objections(beyond_limits(limits), question, layout))
