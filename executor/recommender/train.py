"""Trains a recommender's plan on this rank, inside an initialised process group, and measures it.

Measured are steps, stages, bytes sent, memory of device and host, and the area under the curve (AUC) of clicks.

**State in checkpoints**, for the same sharding or another.

**Order of rows.** Rows that ranks hold in turn are saved as blocks of consecutive rows. Of w slices of a part of a
table slice ρ holds rows ρ, ρ + w, ρ + 2w, ...; in its place as many rows are saved, behind those of slices before it.

Rows of hashed tables are saved with their keys. Slices of a part lie one after another in the tensors of the whole
table, in the order of their residues, rows in the order in which their keys came; of a copy, which every rank fills in
another order, by key. Rows without a key are zero.

**Names.** Checkpoints have whole tables by their names, in boxes of any sharding:

weights.tables.NAME    (rows, width)     momentum.tables.NAME   (rows, width), row-wise (rows,)
exp_avg.tables.NAME    exp_avg_sq.tables.NAME                   updates.tables   how many there were
keys.tables.NAME       (rows,) of a hashed table: the key of each row
weights.dense.NAME     and the states of the dense network's optimizer
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.arrays import Array, Bools
from cost_models.recommender.options import STAGES
from executor.boxes import Box
from executor.checkpoints.checkpointer import Checkpointer, Contents, Piece, RankTensor, Saved, unsplit
from executor.checkpoints.manifest import RecommenderProgress, progress_fields
from executor.data.batches import Ahead
from executor.data.clicks import Clicks, MadeUpClicks, RecordedClicks
from executor.embeddings.collection import parts_of_tables
from executor.embeddings.exchanges import Peers, Places, Slice, sent_bytes
from executor.embeddings.holding import EMPTY, KEYS, Holding
from executor.faults.failures import Heartbeat
from executor.measure.memory import HOST, OTHER_PART, StorageTracker
from executor.measure.report import listed_steps
from executor.messages import gather_json
from executor.recommender.engine import RecommenderEngine
from executor.recommender.training import RecommenderReport, SharedRank
from executor.run_config import RANDOM, TEXT, EngineOptions, RunConfig
from executor.steps import Curve, Stopped, Trained, Watcher, follow_steps, kept_report
from executor.timing import StepClock
from planner.recommender.plan import RecommenderPlan

Rows = dict[str, Tensor]
"""Values of rows by kind: `KEYS` (keys, or row numbers in a part of a table), `weights` and optimizer states."""


def numbered_rows(part: Slice, holding: Holding) -> Rows:
    """All rows of a slice, on the device, with their keys or row numbers; those of a copy are sorted by these."""
    keys = torch.arange(part.held_rows, device=holding.link.device)
    keys = keys if holding.keys is None else holding.keys.by_row()
    rows = {KEYS: torch.where(keys == EMPTY, EMPTY, part.residue + part.ways * keys)}
    for kind in holding.optimizer.kinds:
        rows[kind] = torch.cat([tier.tensors[kind].to(keys.device) for tier, _ in holding.tiers()])
    return in_order(rows) if part.rank is None else rows


def in_order(rows: Rows) -> Rows:
    """Rows in ascending order of their keys or numbers."""
    order = rows[KEYS].argsort()
    return {kind: values[order] for kind, values in rows.items()}


def regrouped(
    peers: Peers,
    siblings: Sequence[Slice],
    rows: Mapping[Slice, Rows],
    owner_of: Callable[[Tensor], Tensor],
    none: Rows,
) -> dict[Slice, Rows]:
    """Rows of this rank's slices after each row was sent to the slice that owns it; they come in the order of ranks.

    `owner_of` gives the residues of the owning slices for keys or row numbers. `siblings` are all slices of the part of
    a table, by residue; every rank calls it, with `none` of such rows, as it may have no slice.
    """
    rank_of = torch.tensor([part.rank for part in siblings], device=none[KEYS].device)
    joined = {kind: torch.cat([empty, *(of[kind] for of in rows.values())]) for kind, empty in none.items()}
    to_rank = rank_of[owner_of(joined[KEYS])]
    order, sizes = to_rank.argsort(stable=True), to_rank.bincount(minlength=peers.size)
    counts = peers.all_gather(sizes)[:, peers.rank]
    received: Rows = {}
    for kind, values in joined.items():
        width = prod(values.shape[1:])
        lengths = ((width * sizes).tolist(), (width * counts).tolist())
        received[kind] = peers.exchange(values[order].view(-1), *lengths).view(-1, *values.shape[1:])
    owner = owner_of(received[KEYS])
    return {
        part: {kind: values[owner == part.residue] for kind, values in received.items()}
        for part in siblings
        if part.rank == peers.rank
    }


class RecommenderState(Saved):
    """Training state of a recommender on this rank, for checkpoints: tables, dense network, optimizer states."""

    def __init__(self, engine: RecommenderEngine, options: EngineOptions) -> None:
        self.engine, self.options = engine, options
        self._updates = torch.zeros(())
        self._copied: list[tuple[list[Slice], dict[Slice, Rows]]] = []
        """Copies of rows with keys, or that ranks hold in turn; `spread` sends loaded ones to the owning slices."""
        self._twins: list[tuple[Tensor, Tensor]] = []
        """Tensors that are loaded, each with another tensor of this rank that must equal it."""

    @property
    def device(self) -> torch.device:
        """Device of the engine, although some tables are in host memory."""
        return self.engine.device

    def contents(self) -> Contents:
        """Views of all tensors that this rank saves; of rows with keys, or that ranks hold in turn, copies."""
        self._copied, self._twins = [], []
        self._updates = torch.tensor(float(self.engine.embeddings.steps))
        contents: Contents = {"updates.tables": unsplit(self._updates)}
        for name, parameter in self.engine.network.named_parameters():
            contents[f"weights.dense.{name}"] = unsplit(parameter, dist.group.WORLD)
            for kind, state in self._dense_states(parameter):
                contents[f"{kind}.dense.{name}"] = unsplit(state, dist.group.WORLD)
        for part in parts_of_tables(self.engine.embeddings.slices):
            if part[0].hashed or part[0].ways > 1:
                self._add_copies(contents, part)
            else:
                self._add_views(contents, part)
        return contents

    def spread(self) -> None:
        """Send rows that were loaded as copies to the slices that own them."""
        embeddings = self.engine.embeddings
        for loaded, twin in self._twins:
            twin.copy_(loaded)
        for part, rows_of in self._copied:
            ways, hashed = part[0].ways, part[0].hashed
            for piece, rows in rows_of.items() if hashed else ():
                used = rows[KEYS] != EMPTY
                rows_of[piece] = {kind: values[used] for kind, values in rows.items()}
            if ways > 1:
                owner_of = partial(torch.remainder, other=ways)
                rows_of = regrouped(embeddings.peers, part, rows_of, owner_of, self._none(part[0]))
            for piece, rows in rows_of.items():
                rows[KEYS] = rows[KEYS].div(ways, rounding_mode="floor")
                embeddings.holdings[piece].take(rows if hashed else in_order(rows))
        embeddings.steps, self.engine.filled = int(self._updates), True
        embeddings.traffic.take()

    def reads_once(self, rate: float) -> bool:
        """True: one rank reads for all others, as else every rank would open all files for the small dense network."""
        return True

    def progress(self, step: int, data: str) -> RecommenderProgress:
        """Progress of the run after `step` steps on this data, as checkpoints record it."""
        engine = self.engine
        return RecommenderProgress(
            **progress_fields(self.options, step, data),
            sharding=str(engine.sharding),
            ranks=engine.places.ranks,
            model=engine.model,
            training=engine.training,
        )

    def _add_views(self, contents: Contents, part: list[Slice]) -> None:
        """Add views of the rows of this rank's slices of a part to the contents."""
        for piece, holding in self._held(part).items():
            for tier, start in holding.tiers():
                for kind, values in tier.tensors.items():
                    self._add(contents, piece, kind, values, piece.first + start)

    def _add_copies(self, contents: Contents, part: list[Slice]) -> None:
        """Add copies of the rows of a part to the contents: with their keys, or in blocks of consecutive rows."""
        embeddings = self.engine.embeddings
        rows_of = {piece: numbered_rows(piece, holding) for piece, holding in self._held(part).items()}
        if not part[0].hashed:
            borders = torch.tensor([piece.rows_before for piece in part[1:]], device=self.device)
            owner_of = partial(torch.bucketize, boundaries=borders, right=True)
            rows_of = regrouped(embeddings.peers, part, rows_of, owner_of, self._none(part[0]))
            rows_of = {piece: in_order(rows) for piece, rows in rows_of.items()}
            embeddings.traffic.take()
        self._copied.append((part, rows_of))
        for piece, rows in rows_of.items():
            for kind in rows if piece.hashed else embeddings.optimizer.kinds:
                self._add(contents, piece, kind, rows[kind], piece.first + piece.rows_before)

    def _held(self, part: list[Slice]) -> dict[Slice, Holding]:
        """Slices of a part that this rank holds, with their rows."""
        holdings = self.engine.embeddings.holdings
        return {piece: holdings[piece] for piece in part if piece in holdings}

    def _add(self, contents: Contents, owner: Slice, kind: str, values: Tensor, row: int) -> None:
        """Add `values`, rows from `row` on of a slice's columns, to the contents."""
        table = self.engine.embeddings.tables[owner.table]
        dims = values.dim()
        shape, offsets = (table.rows, table.width)[:dims], (row, owner.begin)[:dims]
        name = f"{kind}.tables.{self.engine.model.table_names[owner.table]}"
        entry = contents.setdefault(name, RankTensor(shape, values.dtype))
        box = Box(offsets, tuple(values.shape))
        if not box.elements:
            return
        for piece in entry.pieces:
            if piece.box == box:
                self._twins.append((piece.tensor, values))
                return
        entry.pieces.append(Piece(box, values))

    def _none(self, piece: Slice) -> Rows:
        """Empty tensors with the shape and type of a slice's rows, by kind."""
        embeddings = self.engine.embeddings
        weights = torch.empty(0, piece.width, dtype=embeddings.table_dtype, device=self.device)
        keys = torch.empty(0, dtype=torch.int64, device=self.device)
        return {KEYS: keys} | embeddings.optimizer.tier(weights).tensors

    def _dense_states(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the dense optimizer's states of a parameter, made here if no step has made them."""
        state = self.engine.dense_optimizer.state[parameter]
        if self.engine.training.dense_optimizer == "adam" and not state:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state.update(step=torch.zeros(()), **moments)
        yield from state.items()


_UNSEEN = 10**6
"""First step of the made-up samples that are never trained on, and are kept for the score."""
_SCORED = 8
"""Number of steps whose samples are scored."""


def clicks_of(plan: RecommenderPlan, config: RunConfig) -> MadeUpClicks | RecordedClicks:
    """Clicks on which a run trains; raises InputError where a file does not fit the model."""
    if config.data in (TEXT, RANDOM):
        return MadeUpClicks(plan.model, plan.training.global_batch, seed=config.seed)
    return RecordedClicks(Path(config.data), plan.model, plan.training.global_batch)


@dataclass(slots=True)
class _Run(Trained):
    """A recommender in training: its engine, its clicks and the flags of the run."""

    engine: RecommenderEngine
    clicks: MadeUpClicks | RecordedClicks
    config: RunConfig
    ahead: Ahead[Clicks] = field(init=False)

    def __post_init__(self) -> None:
        """Start to draw batches ahead."""
        self.ahead = Ahead(self.batch, self.device, self.config.warm_up + self.config.steps)

    @property
    def device(self) -> torch.device:
        """Device of the engine."""
        return self.engine.device

    def begin(self) -> None:
        """Initialise tables and dense network, if no checkpoint was loaded."""
        if not self.engine.filled:
            self.engine.fill()

    def batch(self, step: int) -> Clicks:
        """Samples of this rank in a step, on the device; steps count from 1."""
        return self.clicks.slice(step - 1, dist.get_rank(), dist.get_world_size()).to(self.device)

    def one_step(self, step: int, curve: Curve, heart: Heartbeat) -> None:
        """Train one step: wait for the batch, run all stages, add loss and norm to the curve."""
        heart.beat(step, "data")
        self.engine.set_rate(self.config.rate.at(step - 1))
        batch: list[Clicks] = []

        def data() -> None:
            """Wait for the step's batch."""
            batch.append(self.ahead.take(step))

        def train() -> float:
            """Run the stages of the step; returns this rank's share of the loss."""
            heart.beat(step, "step")
            loss, self.norm = self.engine.step(*batch)
            return loss

        _, loss = curve.clock.time(data, train)
        total = torch.tensor([loss], device=self.device)
        curve.losses.append(float(self.engine.embeddings.peers.sum_in_order(total)))
        curve.norms.append(self.norm)

    norm: float = field(default=0.0)


def train(
    plan: RecommenderPlan,
    device: torch.device,
    config: RunConfig,
    watcher: Watcher,
    stop: Callable[[], bool] = lambda: False,
) -> RecommenderReport | Stopped:
    """Train a recommender's plan and measure it; every rank calls it and gets the report.

    Raises:
        InputError: data or checkpoint do not go with the plan.
        RunError: the loss is no number, or a checkpoint could not be written; on every rank.
    """
    if (earlier := kept_report(watcher)) is not None:
        assert isinstance(earlier, RecommenderReport)
        return earlier
    places = Places(dist.get_world_size(), plan.cluster.gpus_per_node)
    parts = plan.model, plan.sharding, plan.training
    engine = RecommenderEngine(*parts, places, device, options=config.engine, filled=False)
    run = _Run(engine, clicks_of(plan, config), config)
    state = RecommenderState(engine, config.engine)
    checkpointer = Checkpointer(state, config, run.clicks.name) if config.checkpoint else None
    curve = follow_steps(run, config, checkpointer, watcher, stop)
    if isinstance(curve, Stopped):
        return curve
    return _report(plan, run, curve, watcher)


def _report(plan: RecommenderPlan, run: _Run, curve: Curve, watcher: Watcher) -> RecommenderReport:
    """Measure stages, bytes and memory in separate steps, and make the report of all ranks."""
    engine, config = run.engine, run.config
    last = config.warm_up + config.steps
    stages, formula = _stage_seconds(run, last)
    sent_bytes, copied = engine.embeddings.traffic.take(), engine.embeddings.link.counts.take()
    memory = peak_memory(engine, run.batch(last + 1)) if config.measure_memory else {}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    unseen = [run.clicks.slice(_UNSEEN + step, rank, ranks) for step in range(_SCORED)]
    auc = area_under_curve(engine, unseen) if isinstance(run.clicks, MadeUpClicks) else None
    step_seconds = curve.clock.seconds_of_all()
    listed, steps = listed_steps(step_seconds), max(1, config.waiting_steps)
    own_report = SharedRank(
        rank=rank,
        wall_seconds=tuple(curve.clock.wall_seconds[step] for step in listed),
        data_seconds=tuple(curve.clock.steps[step][0].wall for step in listed),
        stage_seconds=stages,
        sent_bytes={name: sent_bytes[name] // steps for name in STAGES} if stages else {},
        formula_bytes={name: size // steps for name, size in formula.items()},
        **{name: copied[name] // steps for name in ("up_bytes", "down_bytes", "lookups", "hits")},
        memory=memory,
        predicted_memory={name: each[rank] for name, each in plan.prediction.device_parts.items()},
        host_bytes=held_on_host(engine),
    )
    reports = gather_json([own_report.model_dump_json(), run.clicks.strays])
    strays = run.clicks.stray_sentences([counts for _, counts in reports])
    for sentence in strays if rank == 0 else ():
        watcher.note(sentence)
    course = curve.course(engine.device, config.seed, tuple(dict.fromkeys((*watcher.notes, *strays))))
    all_reports = [SharedRank.model_validate_json(text) for text, _ in reports]
    median_seconds = statistics.median(step_seconds)
    return RecommenderReport(
        **course,
        model=plan.model.name,
        step_seconds=median_seconds,
        quickest_step_seconds=min(step_seconds),
        sharding=plan.layout,
        auc=auc,
        samples_per_second=plan.training.global_batch / median_seconds,
        stage_seconds={name: max(one.stage_seconds[name] for one in all_reports) for name in stages},
        ranks=tuple(all_reports),
        plan=plan,
    )


def _stage_seconds(run: _Run, last: int) -> tuple[dict[str, float], dict[str, int]]:
    """Median seconds, and bytes by the formula, of each stage of a recommender's step."""
    engine, embeddings, formula = run.engine, run.engine.embeddings, Counter[str]()
    if not run.config.waiting_steps:
        return {}, {}
    seconds: dict[str, list[float]] = {name: [] for name in STAGES}
    clock = StepClock(engine.device)
    embeddings.traffic.take()
    embeddings.link.counts.take()
    for step in range(run.config.waiting_steps):
        batch = run.batch(last + 1 + step)
        formula.update(
            sent_bytes(
                embeddings.slices,
                engine.places,
                dist.get_rank(),
                samples=embeddings.samples,
                element_bytes=embeddings.exchange_dtype.itemsize,
                dense_parameters=sum(one.numel() for one in engine.network.parameters()),
                ids=[one.values for one in batch.ids],
            )
        )
        for name, stage in zip(STAGES, engine.stages(batch), strict=True):
            clock.time(stage)
            seconds[name].append(clock.wall_seconds[-1])
    return {name: statistics.median(each) for name, each in seconds.items()}, dict(formula)


PARTS = ("tables", "optimizer", "dense", OTHER_PART)


def peak_memory(engine: RecommenderEngine, clicks: Clicks) -> dict[str, int]:
    """Bytes of each part of device memory at the peak of one training step of a recommender."""
    tracker = StorageTracker()
    for name in (*PARTS, HOST):
        tracker.name(name, ())
    for holding in engine.embeddings.holdings.values():
        index = [] if holding.keys is None else [holding.keys.keys, holding.keys.places]
        tracker.name("tables", [holding.device.weights, *index])
        tracker.name("optimizer", holding.device.states.values())
        if holding.host is not None:
            tracker.name(HOST, holding.host.tensors.values())
    tracker.name("dense", engine.network.parameters())
    for state in engine.dense_optimizer.state.values():
        tracker.name("dense", state.values())
    ids = [part for bags in clicks.ids for part in (bags.values, bags.lengths)]
    tracker.name(OTHER_PART, [clicks.dense, clicks.labels, *ids])
    with tracker:
        engine.step(clicks)
    return {name: tracker.peak.get(name, 0) for name in PARTS}


def held_on_host(engine: RecommenderEngine) -> int:
    """Bytes of a recommender's rows and optimizer states in host memory."""
    return sum(one.host.nbytes for one in engine.embeddings.holdings.values() if one.host is not None)


def area_under_curve(engine: RecommenderEngine, samples: Sequence[Clicks]) -> float:
    """Probability that a clicked sample of this rank scores above an unclicked one; ½ is guessing. Trains nothing.

    Every rank calls it, as rows of others are looked up.
    """
    scores = torch.cat([engine.scores(one).flatten() for one in samples]).double().numpy()
    return area_of(scores, torch.cat([one.labels.flatten() for one in samples]).numpy() > 0.5)


def area_of(scores: Array, labels: Bools) -> float:
    """Area under the curve, U / (clicked · not), from the ranks of scores; ties count half (Mann & Whitney 1947)."""
    ranks = pd.Series(scores).rank().to_numpy()
    clicked, unclicked = int(labels.sum()), int((~labels).sum())
    if not clicked or not unclicked:
        return float("nan")
    return float((ranks[labels].sum() - clicked * (clicked + 1) / 2) / (clicked * unclicked))
