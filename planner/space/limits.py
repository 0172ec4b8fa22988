"""Limits of a search: named rules with sentences, each of which excludes some legal layouts from the search.
Covered layouts are legal and within all limits.

The search's space respects them by construction; obstacles, `--why-not` and an enumerator check given
layouts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, USUAL_RING, Layout
from cost_models.axes.offload.residency import named_blocks, offloads
from cost_models.axes.rule import Row, Rule, objections, rules
from cost_models.axes.stages import ENDS
from cost_models.axes.words import EVERY
from cost_models.communication.topology import levels_of
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, SCHEDULES
from cost_models.specs.cluster import ClusterSpec
from planner.placement.patterns import covers
from planner.rules.legality import overflows_hosts
from planner.space.axes import CLOSED, divisors, max_counted_blocks
from planner.space.restrictions import Restrictions

NEARLY_AS_FAST = 0.5
"""Minimum share of the intra-node bandwidth at which a search spreads tensor groups over nodes by default.
Below it their messages take over twice as long, which no published run accepted."""


def tensor_degrees(cluster: ClusterSpec) -> list[int]:
    """Tensor-parallel degrees that a search tries on a cluster: divisors of the GPUs of a node or, if links
    between nodes are fast enough, of all GPUs."""
    levels = levels_of(cluster)
    inside, across = ([at.bandwidth for at in levels if at.network == far] for far in (False, True))
    is_slow = not across or min(across) < NEARLY_AS_FAST * min(inside)
    return divisors(cluster.gpus_per_node if is_slow else cluster.num_gpus)


def tried_tensor_degrees(question: Question, limits: Restrictions) -> list[int]:
    """Tensor-parallel degrees that a search tries or the user names, if the restrictions permit them and they
    divide the number of GPUs."""
    degrees = {*tensor_degrees(question.cluster), *limits.only.get("tp", ())}
    return limits.permitted("tp", [tp for tp in sorted(degrees) if question.cluster.num_gpus % tp == 0])


def needless_rows(question: Question, limits: Restrictions, columns: LayoutColumns) -> Bools:
    """Whether each layout keeps data on the drive although host memory would hold it, (N,); False if a
    restriction names drives.

    They need as much device memory as without the drive, and no less time, so none is the only best one.
    """
    drive = columns.offload_drive > 0
    if "offload_drive" in limits.named_axes or not drive.any():
        return np.zeros(len(columns), dtype=np.bool_)
    without = replace(columns, offload_drive=np.zeros(len(columns), dtype=np.int64))
    return drive & ~overflows_hosts(question, without, question.training.recompute)


def _uneven(question: Question, x: LayoutColumns) -> Bools:
    """Whether each layout has stages of unequal size that the search does not cover, (N,)."""
    blocks, stages_N = question.model.num_layers, x.pp * x.vpp
    shapes = zip(x.schedule.tolist(), stages_N.tolist(), strict=True)
    covered = [covers(SCHEDULES[schedule], blocks, stages) for schedule, stages in shapes]
    return (stages_N <= blocks + ENDS) & ~np.array(covered, dtype=np.bool_)


def _untried(question: Question, x: LayoutColumns) -> Bools:
    """Whether each layout combines offloaded blocks in a way that the search does not try, (N,)."""
    with_states = (x.offload_states > 0) | (x.offload_streamed > 0)
    streams_all = (x.offload_streamed >= EVERY) & (x.offload_states > 0)
    own_host = offloads(x) & (question.cluster.gpu.kind == "cpu")
    counts_all = named_blocks(x) > max_counted_blocks(question, x.pp)
    return own_host | counts_all | streams_all | ((x.offload_parked > 0) & with_states)


def _redundant(question: Question, limits: Restrictions, x: LayoutColumns) -> Bools:
    """Whether each layout has an equivalent under another name, or uses a drive needlessly, (N,)."""
    is_redundant: Bools = (x.zero > 0) & (x.shard == 1)
    is_redundant |= (x.cp > 1) & (x.context == CONTEXTS.index(question.stack.context_parallel))
    return is_redundant | needless_rows(question, limits, x)


def beyond_limits(limits: Restrictions) -> tuple[Rule, ...]:
    """Create the rules that layouts beyond a limit of the search break, in the order in which they are
    reported. Restrictions may request values beyond a limit."""
    explicit = {axis: [*limits.only.get(axis, ())] for axis in ("tp", "etp", "ring")}
    shut = [AXES[name].columns(name).items() for name in CLOSED if not limits.opens(name)]
    table: dict[str, Row] = {
        "tensor groups lie on fast links": (
            lambda q, x: ~np.isin(x.tp, [*tensor_degrees(q.cluster), *explicit["tp"]]),
            "`tp{layout.tp}` spreads tensor groups over nodes, on slow links: `--fix tp={layout.tp}` has it searched",
        ),
        "experts are split no finer than the rest": (
            lambda q, x: (x.tp % x.etp != 0) & ~np.isin(x.etp, explicit["etp"]),
            "`etp{layout.etp}` does not divide tp{layout.tp}: `--fix etp={layout.etp}` has it searched",
        ),
        "chunks are of nearly one size": (
            _uneven,
            "`pp{layout.pp} vpp{layout.vpp}` makes {layout.num_stages} stages of {model.num_layers} blocks, and of"
            " several chunks a rank the search has all of one size, or one or two a block smaller",
        ),
        "axes are closed unless asked for": (
            lambda q, x: np.any([getattr(x, name) != word.simplest for name, word in chain(*shut)], axis=0),
            "`{layout.brief}` has what the search leaves alone unless `--allow` opens it",
        ),
        "residencies go together": (
            _untried,
            "`{layout.brief}` mixes residencies, or counts all blocks of a rank, as the search does not",
        ),
        "rings have the usual buffers": (
            lambda q, x: (x.ring != USUAL_RING) & ~np.isin(x.ring, explicit["ring"]),
            "`ring={layout.ring}` is searched only where `--fix ring={layout.ring}` asks for it",
        ),
        "each meaning has one word": (
            lambda q, x: _redundant(q, limits, x),
            "`{layout.brief}` says more than it needs to: groups of one rank, the usual way, or a drive beside enough"
            " memory",
        ),
    }
    return rules(table)


def limits_in_words(question: Question, limits: Restrictions) -> str:
    """Text on the limits of a search, with a phrase for each limit that leaves out layouts of the question,
    except redundant layouts."""
    offloads, has = limits.opens("offload"), question.stack.residencies
    splits_experts = question.model.has_experts and question.stack.expert_tensor_parallel
    phrases = {
        "tp within a node, or as asked for": tensor_degrees(question.cluster)[-1] < question.cluster.num_gpus,
        "etp a divisor of tp, or as asked for": splits_experts,
        "every number of blocks on each stage or, where a rank has several chunks or split backward passes,"
        " equal stages or one or two at the ends with a block less (or none, where they are interleaved)": True,
        f"{', '.join(CLOSED)} as `--allow` opens them": True,
        "of offloaded blocks parked ones beside resident ones alone, and streamed ones, unless all are,"
        " beside those with states away": offloads and bool(has),
        "a ring of two buffers, or as asked for": offloads and "streamed" in has,
    }
    return "; ".join(phrase for phrase, matters in phrases.items() if matters)


def left_out(question: Question, limits: Restrictions, layout: Layout) -> tuple[str, ...]:
    """Sentences on the search limits that exclude a legal layout from the search; empty if the search covers
    it."""
    return tuple(words.what for words in objections(beyond_limits(limits), question, layout))
