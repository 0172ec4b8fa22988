"""Trains a transformer, from a checkpoint or from its start.

Names of its state in checkpoints, which no layout changes:

    weights.NAME       fp32: the master copy where weights are 16 bits wide
    exp_avg.NAME       first moment of AdamW and LAMB      exp_avg_sq.NAME  its second
    step.NAME          number of updates of the parameter
    random.PLACE.RANK  a generator's state; of use to the same layout only

NAME is the parameter's place in the whole model, as `executor.models` names it; `executor.engine.weights` says which
boxes of the whole a rank holds. Tensors that follow these rules can be resharded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.defaults import OWN_COMPILED, OWN_STACK
from cost_models.reliability import checkpoint_bytes, resume_of
from executor.checkpoints.checkpointer import Checkpointer, Contents, Piece, RankTensor, unsplit
from executor.checkpoints.manifest import Progress, progress_fields
from executor.data.batches import Batches, SharedBatches
from executor.engine.engine import Engine, mean_over_data
from executor.engine.optimizer import states_of
from executor.engine.weights import frozen, owned
from executor.faults.failures import Heartbeat
from executor.hugging_face.reading import Folder, FromTensors
from executor.hugging_face.writing import keeps_gains_less_one, save_weights
from executor.measure.memory import allocator_peak, out_of_memory_by_part
from executor.measure.parts import StepSpans, typical_waits
from executor.measure.report import (
    AllocatorPeak,
    PhaseReport,
    RankReport,
    RouterReport,
    RunReport,
    listed_steps,
    make_report,
    predicted_parts,
)
from executor.measure.slow_ranks import WORK, RankWatch
from executor.mesh import local
from executor.messages import gather_json
from executor.models.ends import original
from executor.models.experts import routers
from executor.models.initial import Values
from executor.run_config import RunConfig
from executor.steps import Curve, Stopped, Trained, Watcher, follow_steps, kept_report
from executor.timing import Lap
from executor.transformer.diagnosis import LEFT_OUT, Diagnosis, run_diagnostic_steps
from planner.plan import Plan


class TransformerState:
    """Training state of a transformer on this rank, for checkpoints: weights and optimizer states."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device = engine, engine.device

    def contents(self) -> Contents:
        """Views of all tensors that this rank updates or keeps frozen; states that no step has made are made here."""
        contents: Contents = {}
        for owner in owned(self.engine.optimizer, self.engine.names):
            piece = owner.slice
            states = {"weights": piece.updated} | states_of(piece.optimizer, piece.updated)
            for kind, state in states.items():
                tensor = local(state.detach())
                key = f"{kind}.{owner.place.name}"
                if tensor.dim() == 0:
                    contents[key] = unsplit(tensor, piece.holders)
                    continue
                contents.setdefault(key, RankTensor(owner.place.shape, tensor.dtype, holders=piece.holders))
                contents[key].pieces += [Piece(box, values) for box, values in owner.pieces(tensor)]
        if self.engine.plan.training.tuning is None:  # beside adapters they come from where they came from
            for place, box, values in frozen(self.engine.parts, self.engine.names):
                pieces = [Piece(box, values)]
                contents[f"weights.{place.name}"] = RankTensor(place.shape, values.dtype, pieces)
        return contents

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """Name of each tensor → name to load where a checkpoint lacks it: of its original, as the embedding of a
        tied head.
        """
        split = [name.partition(".") for name in contents]
        tied = self.engine.plan.model.tied_embeddings
        return {f"{kind}.{name}": f"{kind}.{original(name, tied=tied)}" for kind, _, name in split}

    def make_anew(self, contents: Contents) -> None:
        """Set rows that pad the vocabulary under this layout to initial values; their optimizer states are zero."""
        for name, rows in contents.items():
            kind, _, weight_name = name.partition(".")
            for piece in rows.pieces if kind == "weights" else ():
                self.engine.initial.fill(weight_name, rows.shape, piece.box, piece.tensor)

    def spread(self) -> None:
        """Copy loaded weights to all places where they are used."""
        self.engine.spread()

    def reads_once(self, rate: float) -> bool:
        """Whether the plan's links are faster than the storage, which each rank reads at `rate` bytes/s."""
        plan = self.engine.plan
        resume = resume_of(plan.question, plan.layout, checkpoint_bytes(plan.question))
        return resume.reads_once(rate * plan.layout.num_gpus)

    def progress(self, step: int, data: str) -> Progress:
        """Progress of the run after `step` steps on this data, as checkpoints record it."""
        plan, fields = self.engine.plan, progress_fields(self.engine.options, step, data)
        return Progress(**fields, layout=plan.layout, model=plan.model, training=plan.training)


_UNCOMPILED = (
    "parts and memory are of steps whose blocks were not compiled: torch compiles nothing that is watched"
)


@dataclass(slots=True)
class TrainedTransformer(Trained):
    """A transformer in training: its engine and its batches."""

    engine: Engine
    batches: SharedBatches
    values: Values | None = None
    """Values of the weights before training; None draws them."""
    starting_peak: AllocatorPeak | None = None
    """Peak of the GPU's allocator before the first measured step; None on a CPU."""

    def __post_init__(self) -> None:
        """Set the frozen weights, which no checkpoint has."""
        if not self.engine.filled:  # no checkpoint has what is frozen
            self.engine.fill_frozen(self.values)

    @property
    def device(self) -> torch.device:
        """Device of the engine."""
        return self.engine.device

    def begin(self) -> None:
        """Set initial values of the weights to be trained, unless a checkpoint was loaded."""
        if not self.engine.filled:
            self.engine.fill(self.values)

    def forget(self) -> None:
        """Discard counts of the warm-up; the allocator's peak up to now is stored as the start's, and reset."""
        routers_so_far(self.engine)
        self.engine.forget()
        self.starting_peak = allocator_peak(self.device)

    def watch(self) -> RankWatch | None:
        """The watch for slow ranks; None on GPUs, for a single rank, and where experts or pools make work uneven."""
        engine = self.engine
        uneven = engine.plan.model.has_experts or bool(engine.layout.replicas)
        if engine.device.type != "cpu" or uneven or dist.get_world_size() == 1:
            return None
        peers = [engine.layout.place_along("pp", rank) for rank in range(dist.get_world_size())]
        return RankWatch(WORK, peers)

    def one_step(self, step: int, curve: Curve, heart: Heartbeat) -> None:
        """Train one step: wait for the batch, run its two phases, add loss and norm to the curve."""
        engine = self.engine
        heart.beat(step, "data")
        engine.optimizer.set_rate(engine.options.rate.at(step - 1))
        batch: list[Tensor] = []

        def data() -> None:
            """Wait for the step's batch."""
            batch.extend(self.batches.take(step - 1))

        def forward_backward() -> float:
            """Run the passes of the step; returns the mean loss on this rank."""
            heart.beat(step, "forward and backward")
            return engine.forward_backward(*batch)

        def update() -> float:
            """Update the weights; returns the global gradient norm."""
            heart.beat(step, "update")
            return engine.update()

        _, value, norm = curve.clock.time(data, forward_backward, update)
        curve.losses.append(mean_over_data(value, engine))
        curve.norms.append(norm)
        engine.end_step()


def train(
    plan: Plan,
    device: torch.device,
    config: RunConfig,
    watcher: Watcher,
    stop: Callable[[], bool] = lambda: False,
) -> RunReport | Stopped:
    """Train a transformer's plan and measure it; every rank calls it and gets the report.

    Every rank calls `stop` after each step. Stopping after the last one loses only the diagnostic steps.

    Raises:
        OutOfMemoryError: this rank's memory ran out; the error says which part held what.
        InputError: data or checkpoint do not go with the plan.
        RunError: the loss is no number, or a checkpoint could not be written; on every rank. Or a step after the last
            one failed on this of several ranks, and the watcher keeps the report of what came before.
    """
    if (earlier := kept_report(watcher)) is not None:
        assert isinstance(earlier, RunReport)
        return earlier
    with out_of_memory_by_part(device) as engines:
        engine = Engine(plan, device, config.engine, filled=False)
        engines.append(engine)
        batches = Batches(
            plan.training,
            vocabulary=plan.model.vocab_size,
            seed=config.seed,
            data=config.data,
            encoder=plan.model.encoder,
            tower=plan.model.tower,
        )
        last = config.warm_up + config.steps - 1
        shared = SharedBatches(batches, engine, plan.layout.num_stages, last)
        source = None if config.weights is None else Folder(config.weights, plan.model)
        if keeps_gains_less_one(plan, source):
            engine.optimizer.decay_gains_to_one()
        values = None if source is None else FromTensors(source.names, source, engine.initial)
        trained = TrainedTransformer(engine, shared, values)
        state = TransformerState(engine)
        checkpointer = Checkpointer(state, config, batches.name) if config.checkpoint else None
        curve = follow_steps(trained, config, checkpointer, watcher, stop)
        if isinstance(curve, Stopped):
            return curve
        if config.save_weights is not None:
            save_weights(engine, config.save_weights, source)
        peaks = trained.starting_peak, allocator_peak(device)
        report = partial(_report, engine, curve, peaks, routers_so_far(engine))

        def keep(so_far: Diagnosis) -> None:
            """Keep a report with the diagnosis so far, on rank 0."""
            partial_report = report(so_far, watcher.notes)
            if dist.get_rank() == 0:
                watcher.keep(partial_report)

        keep(Diagnosis(notes=[LEFT_OUT]))
        diagnosis = run_diagnostic_steps(engine, batches, config, keep, stop)
        if dist.get_rank() == 0:
            for note in diagnosis.notes:
                watcher.note(note)
        return report(replace(diagnosis, notes=[]), watcher.notes)


def _report(
    engine: Engine,
    curve: Curve,
    peaks: tuple[AllocatorPeak | None, AllocatorPeak | None],
    routers: tuple[RouterReport, ...],
    diagnosis: Diagnosis,
    notes: Sequence[str],
) -> RunReport:
    """Report of all ranks; `peaks` are the allocator's before and in the measured steps."""
    plan, clock, steps = engine.plan, curve.clock, diagnosis.steps
    pipeline_rank = engine.mesh["pp"].get_local_rank()
    step_seconds = clock.seconds_of_all()
    listed = listed_steps(step_seconds)
    laps = [clock.steps[step] for step in listed]
    own_report = RankReport(
        rank=dist.get_rank(),
        pipeline_rank=pipeline_rank,
        wall_seconds=tuple(clock.wall_seconds[step] for step in listed),
        thread_seconds=tuple(sum(lap.thread for lap in step[1:]) for step in laps),
        process_seconds=tuple(sum(lap.process for lap in step) for step in laps),
        data_seconds=tuple(step[0].wall for step in laps),
        forward_backward=_phase(laps, steps, update=False),
        update=_phase(laps, steps, update=True),
        parts=dict(diagnosis.parts),
        passes=tuple(diagnosis.passes),
        memory=dict(diagnosis.memory),
        predicted_memory=predicted_parts(plan.prediction.rank_memory[pipeline_rank]),
        starting_peak=peaks[0],
        allocator_peak=peaks[1],
        **engine.report(diagnosis.host_bytes),
    )
    ranks = [RankReport.model_validate_json(text) for text in gather_json(own_report.model_dump_json())]
    all_notes = (*notes, *diagnosis.notes, *[_UNCOMPILED] * engine.options.compile)
    return make_report(
        plan,
        ranks,
        curve.course(engine.device, engine.options.seed, all_notes),
        stack=OWN_COMPILED if engine.options.compile else OWN_STACK,
        routers=routers,
        step_seconds=step_seconds,
        listed=listed,
    )


def _phase(steps: Sequence[tuple[Lap, ...]], watched: Sequence[StepSpans], *, update: bool) -> PhaseReport:
    """Report of one phase of a step on this rank."""
    laps = [step[1 + int(update)] for step in steps]
    waiting, waiting_thread = typical_waits(watched, update=update)
    return PhaseReport(
        wall_seconds=tuple(lap.wall for lap in laps),
        thread_seconds=tuple(lap.thread for lap in laps),
        waiting_seconds=waiting,
        waiting_thread_seconds=waiting_thread,
    )


def routers_so_far(engine: Engine) -> tuple[RouterReport, ...]:
    """Load of every MoE layer on all ranks together since the last call; every rank must call it.

    Where a block is recomputed its copies count twice, all of them alike.
    """
    model, device = engine.plan.model, engine.device
    if not model.has_experts:
        return ()
    loads = torch.zeros(model.num_layers, model.num_experts, dtype=torch.long, device=device)
    for layer, block in (entry for part in engine.parts for entry in part.blocks.items()):
        for routed in routers(block):
            loads[int(layer)] += routed.take_load().to(device)
    dist.all_reduce(loads)
    return tuple(router_reports(loads.cpu(), engine.plan.training.tokens_per_step * model.experts_per_token))


def router_reports(loads: Tensor, copies_per_step: float) -> Iterator[RouterReport]:
    """Report of each MoE layer that has any load, from `loads`, (layers, E), and the number of token copies in a
    step.
    """
    experts = loads.shape[1]
    for layer, load_E in enumerate(loads.double()):
        if load_E.sum() > 0:
            share_E = load_E / load_E.sum()
            entropy = -float(torch.special.xlogy(share_E, share_E).sum())
            yield RouterReport(
                layer=layer,
                mean_load=copies_per_step / experts,
                largest_load=float(share_E.max()) * experts,
                smallest_load=float(share_E.min()) * experts,
                entropy=entropy / math.log(experts) if experts > 1 else 1.0,
            )
