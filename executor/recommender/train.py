"""Train a recommender's plan on this rank, inside an initialised process group, and measure it.

Measured are steps, stages, bytes sent, memory of device and host, and the area under the curve (AUC) of clicks.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from cost_models.arrays import Array, Bools
from cost_models.recommender.options import STAGES
from executor.data.batches import Ahead
from executor.data.clicks import Clicks, MadeUpClicks, RecordedClicks
from executor.embeddings.exchanges import Places, sent_bytes
from executor.faults.failures import Heartbeat
from executor.measure.any_report import listed_steps
from executor.measure.memory import HOST, OTHER_PART, StorageTracker
from executor.messages import gather_json
from executor.recommender.engine import RecommenderEngine
from executor.recommender.state import RecommenderState
from executor.recommender.training import RecommenderReport, SharedRank, make_report
from executor.run_config import RANDOM, TEXT, RunConfig
from executor.steps import Curve, Stopped, Trained, Watcher, kept_report, train_to_end
from executor.timing import StepClock
from planner.recommender.plan import RecommenderPlan

_UNSEEN = 10**6
"""Steps before which made-up samples are trained on; those after it are kept for the score."""
_SCORED = 8
"""Steps' worth of samples that are scored."""


def clicks_of(plan: RecommenderPlan, config: RunConfig) -> MadeUpClicks | RecordedClicks:
    """The samples of the run. Raises InputError where a file does not fit the model."""
    if config.data in (TEXT, RANDOM):
        return MadeUpClicks(plan.model, plan.training.global_batch, seed=config.seed)
    return RecordedClicks(Path(config.data), plan.model, plan.training.global_batch)


@dataclass(slots=True)
class _Run(Trained):
    """An engine, its clicks, and the bytes that its steps sent."""

    engine: RecommenderEngine
    clicks: MadeUpClicks | RecordedClicks
    config: RunConfig
    ahead: Ahead[Clicks] = field(init=False)

    def __post_init__(self) -> None:
        self.ahead = Ahead(self.batch, self.device, self.config.warm_up + self.config.steps)

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def begin(self) -> None:
        if not self.engine.filled:
            self.engine.fill()

    def forget(self) -> None:
        """Do nothing: only the clock counts."""

    def watch(self) -> None:
        """Tables make the work of ranks uneven."""

    def batch(self, step: int) -> Clicks:
        """The samples of this rank in a step, on the device."""
        return self.clicks.slice(step - 1, dist.get_rank(), dist.get_world_size()).to(self.device)

    def one_step(self, step: int, curve: Curve, heart: Heartbeat) -> None:
        heart.beat(step, "data")
        self.engine.set_rate(self.config.rate.at(step - 1))
        batch: list[Clicks] = []

        def data() -> None:
            batch.append(self.ahead.take(step))

        def train() -> float:
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
    """Train and measure a plan; every rank calls it and gets the answer.

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
    curve = train_to_end(run, state, run.clicks.name, config, watcher, stop)
    if isinstance(curve, Stopped):
        return curve
    return _report(plan, run, curve, watcher)


def _report(plan: RecommenderPlan, run: _Run, curve: Curve, watcher: Watcher) -> RecommenderReport:
    """Measure stages, bytes and memory in separate steps; then the report of all ranks."""
    engine, config = run.engine, run.config
    last = config.warm_up + config.steps
    stages, formula = _stage_seconds(run, last)
    sent_bytes, link = engine.embeddings.sent.take_counts(), engine.embeddings.link
    traffic = link.take_counts()
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
        sent_bytes={name: sent_bytes.get(name, 0) // steps for name in STAGES} if stages else {},
        formula_bytes={name: size // steps for name, size in formula.items()},
        up_bytes=traffic.up_bytes // steps,
        down_bytes=traffic.down_bytes // steps,
        lookups=traffic.lookups // steps,
        hits=traffic.hits // steps,
        memory=memory,
        predicted_memory={name: each[rank] for name, each in plan.prediction.device_parts.items()},
        host_bytes=held_on_host(engine),
    )
    reports = gather_json([own_report.model_dump_json(), run.clicks.counted()])
    strays = run.clicks.stray_sentences([counted for _, counted in reports])
    for sentence in strays if rank == 0 else ():
        watcher.note(sentence)
    return make_report(
        plan,
        [SharedRank.model_validate_json(text) for text, _ in reports],
        curve.course(engine.device, config.seed, tuple(dict.fromkeys((*watcher.notes, *strays)))),
        auc=auc,
        step_seconds=step_seconds,
    )


def _stage_seconds(run: _Run, last: int) -> tuple[dict[str, float], dict[str, int]]:
    """(median seconds of each stage, which all ranks begin together; bytes that they send by the formula)."""
    engine, formula = run.engine, Counter[str]()
    if not run.config.waiting_steps:
        return {}, {}
    seconds: dict[str, list[float]] = {name: [] for name in STAGES}
    clock = StepClock(engine.device)
    engine.embeddings.sent.take_counts()
    engine.embeddings.link.take_counts()
    for step in range(run.config.waiting_steps):
        batch = run.batch(last + 1 + step)
        formula.update(_formula(engine, batch))
        for name, stage in zip(STAGES, engine.stages(batch), strict=True):
            clock.time(stage)
            seconds[name].append(clock.wall_seconds[-1])
    return {name: statistics.median(each) for name, each in seconds.items()}, dict(formula)


def _formula(engine: RecommenderEngine, batch: Clicks) -> dict[str, int]:
    embeddings = engine.embeddings
    return sent_bytes(
        embeddings.slices,
        engine.places,
        dist.get_rank(),
        samples=embeddings.samples,
        element_bytes=embeddings.exchange_dtype.itemsize,
        dense_parameters=sum(one.numel() for one in engine.network.parameters()),
        ids=[one.values for one in batch.ids],
    )


PARTS = ("tables", "optimizer", "dense", OTHER_PART)


def peak_memory(engine: RecommenderEngine, clicks: Clicks) -> dict[str, int]:
    """Bytes on the device by part at the peak of one training step, without host memory."""
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
    """Bytes of rows and states in host memory."""
    return sum(one.host.nbytes for one in engine.embeddings.holdings.values() if one.host is not None)


def area_under_curve(engine: RecommenderEngine, samples: Sequence[Clicks]) -> float:
    """Probability that a clicked sample of this rank scores above an unclicked one; ½ is guessing. Trains nothing.

    Every rank calls it, as rows of others are looked up.
    """
    scores = torch.cat([engine.scores(one).flatten() for one in samples]).double().numpy()
    return area_of(scores, torch.cat([one.labels.flatten() for one in samples]).numpy() > 0.5)


def area_of(scores: Array, labels: Bools) -> float:
    """U / (clicked · not), by ranks of scores; equal scores share the mean of theirs, so that a tie counts half (Mann
    & Whitney 1947)."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[places]
    clicked, unclicked = int(labels.sum()), int((~labels).sum())
    if not clicked or not unclicked:
        return float("nan")
    return float((ranks[labels].sum() - clicked * (clicked + 1) / 2) / (clicked * unclicked))
