"""One optimizer step over all parts of a rank: synchronise, measure the global gradient norm, clip, update.

**LAMB**: the step of each parameter is proportional to its norm, in Adam's direction (You et al. 2020, algorithm 2).

    r = m̂ / (√v̂ + ε) + λx        x ← x − η · ‖x‖ / ‖r‖ · r

The norms are those of *whole* parameters, as the model names them. Tensor parallelism, ZeRO and expert parallelism give
a rank slices, so the squares of all slices are added up first, in one all-reduce for all parameters of a stage. Norms
of slices would train another model under every layout (ColossalAI 22).

r overwrites the gradient, which is not needed any more, so it takes no buffer (as in Apex's FusedLAMB). Where x or r is
zero, the ratio is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from executor.axes.axis import Bucket, Gradient, Rank, Shards, Slice, moments_of
from executor.axes.data import Copies, FlatParameters, settle
from executor.axes.expert import ExpertParameters
from executor.mesh import as_part, held, local, make_group_over, settle_gradient
from executor.models.ends import held_by_several, is_gain

_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.1
_AT_ONCE = 64
"""Parameters of one fused update, as torch looks through all `DTensor`s of an update for each of them at the first."""


class Optimizer:
    """The plan's optimizer for all parameters that this rank trains."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.mesh, self.options, self.plan = rank, rank.mesh, rank.options, rank.plan
        trained = (one for part in rank.parts for one in part.parameters() if one.requires_grad)
        self.parameters = list({id(parameter): parameter for parameter in trained}.values())
        self._replicas = Copies.of(self.mesh["shard"], self.mesh["copy"])
        self.experts = None if rank.experts is None else ExpertParameters(rank.parts, rank.experts)
        self.flats: list[FlatParameters] = []
        self.sharded: list[Shards] = []
        """Shards of parameters under ZeRO-2 and 3, of one fused update each."""
        self._order = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self._name = "sgd" if self.options.sgd else self.plan.training.optimizer
        buckets = {shard: bucket for axis in rank.axes for shard, bucket in axis.buckets().items()}
        groups: dict[tuple[Bucket, Copies], list[nn.Parameter]] = {(None, self._replicas): []}
        for parameter in self.parameters:
            key = buckets.get(id(parameter)), self._copies_of(parameter)
            groups.setdefault(key, []).append(parameter)
        for (bucket, copies), group in groups.items():
            if self.plan.layout.zero <= 1:
                self.flats += [self._flat(group, bucket, copies)] if group else []
                continue
            for kind in _by_kind(group):
                shards = (axis.shards(bucket, kind, self._make) for axis in rank.axes)
                found = next((one for one in shards if one is not None), None)
                self.sharded.append(found or Shards(kind, self._make))
        for axis in rank.axes:
            axis.connect()
        self._updating: list[FlatParameters | Shards] = [*self.flats, *self.sharded]
        self.optimizers = [one.optimizer for one in self._updating]
        self._over_tp = {id(one): _split_over(one, "tp") for one in self.parameters}
        self._over_replicas = {id(one): _split_over(one, "shard") for one in self.parameters}
        stages_by_name = held_by_several(self.plan.model, rank.layout.layers)
        self.counted_elsewhere = {
            id(shard)
            for name, copies in rank.copies.items()
            for stage, shard in copies.items()
            if stage != stages_by_name[name][0]
        }
        self._whole_norms = self._connect_lamb() if self._name == "lamb" else None

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Gradient that this rank has accumulated for a parameter, as a plain tensor; None if it has none."""
        for flat in self.flats:
            if flat.contains(parameter):
                return flat.gradient(parameter)
        return None if parameter.grad is None else local(parameter.grad)

    def take_gradients(self) -> None:
        """Move gradients that came without a hook's call into the flat buffers, if there are any."""
        for flat in self.flats:
            flat.take_gradients()

    def settle(self) -> None:
        """Add up the gradients of each parameter that several pipeline stages hold, after the backward pass.

        Under ZeRO-2 and 3, gradients of parameters that all tensor ranks hold are added up first; under ZeRO-0 and 1
        `step` does so, once the flat buffers are reduced.
        """
        if not self.flats:
            for parameter in self.parameters:
                settle_gradient(parameter)
        self._join(self.gradient)

    def _join(self, gradient: Gradient) -> None:
        """Have axes add up the gradients of parameters that several pipeline stages hold."""
        for axis in self.rank.axes:
            axis.join(gradient)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of all updates that follow."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def step(self) -> float:
        """Update every parameter; returns the gradient norm of the whole model before clipping."""
        for axis in self.rank.axes:
            axis.before_reduce()
        for flat in self.flats:
            flat.reduce()
        settle(self.flats)
        norm = self._norm()
        if self.options.clip is not None and norm > self.options.clip:
            self._scale(self.options.clip / norm)
        for updating in self._updating:
            updating.begin_update()
        if self._whole_norms is not None:  # blocks that are not on the device find theirs when they are
            resident = [one.optimizer for one in self._updating if one.resident]
            self._whole_norms.find([lamb for lamb in resident if isinstance(lamb, Lamb)], tied=True)
        for updating in self._updating:
            updating.finish_update()
        return norm

    def spread(self) -> None:
        """Copy loaded weights to all places where they are used."""
        for updating in self._updating:
            updating.spread()

    def slices(self) -> Iterator[Slice]:
        """Yield the elements of each parameter that this rank updates."""
        for flat in self.flats:
            yield from flat.slices
        for shards in self.sharded:
            for parameter, updated in zip(shards.parameters, shards.updated, strict=True):
                run = 0, local(updated.detach()).numel()
                holders = self._copies_of(parameter).groups
                yield Slice(parameter, 0, updated, *run, shards.optimizer, holders)

    def _copies_of(self, parameter: Tensor) -> Copies:
        """Groups of the ranks that hold the same of a parameter; routed experts have other groups."""
        return self.experts.copies if self.experts and self.experts.contains(parameter) else self._replicas

    def _flat(self, parameters: Sequence[nn.Parameter], bucket: Bucket, copies: Copies) -> FlatParameters:
        """Flat buffers of a bucket's parameters that the same ranks hold."""
        layout, routed = self.plan.layout, copies is not self._replicas
        how: dict[str, Any] = {"sharded": layout.zero == 1, "mean_over": layout.data_ranks}
        how["make"] = self._make
        buffers = (axis.buffer(bucket, parameters, copies, routed=routed, **how) for axis in self.rank.axes)
        found = next((one for one in buffers if one is not None), None)
        return found or FlatParameters(parameters, copies, **how)

    def _connect_lamb(self) -> WholeNorms:
        """Tell this rank's LAMB optimizers which parameters their elements belong to; every rank must call it."""
        layout = self.plan.layout
        axes = ("copy", "shard", "tp") if self.experts else ("shard", "tp") if layout.zero else ("tp",)
        tensor_group = self.mesh["tp"].get_group() if axes == ("tp",) and layout.tp > 1 else None
        group = tensor_group or make_group_over(layout, axes)
        norms = WholeNorms(self.parameters, group, self._join, self.mesh.device_type)
        slices = list(self.slices())
        for optimizer in self.optimizers:
            assert isinstance(optimizer, Lamb)
            optimizer.connect(norms, [one for one in slices if one.optimizer is optimizer])
        return norms

    def decay_gains_to_one(self) -> None:
        """Have AdamW's weight decay pull gains of norms towards 1, not 0, as where gains are stored less one.

        With rate η and decay λ an update makes x (1 − ηλ) of x, less its step, and of x + ηλ / (1 − ηλ) that and ηλ.
        """
        entries = (entry for part in self.rank.parts for entry in part.named_parameters())
        gains = {id(parameter) for name, parameter in entries if is_gain(name)}
        slices = [piece for piece in self.slices() if id(piece.parameter) in gains]
        for optimizer in self.optimizers:
            gain_slices = [piece for piece in slices if piece.optimizer is optimizer]
            if gain_slices and isinstance(optimizer, torch.optim.AdamW):
                optimizer.register_step_pre_hook(partial(_raise_gains, gain_slices))

    def _make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Torch optimizer of the plan's kind for these parameters."""
        rate = self.options.rate.peak
        if self._name == "sgd":
            return torch.optim.SGD(parameters, lr=rate, foreach=False)
        if self._name == "lamb":
            return Lamb(parameters, rate=rate)
        return torch.optim.AdamW(parameters, lr=rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True)

    def _norm(self) -> float:
        """Global gradient norm, each element counted once: squares are summed over the ranks that share a parameter."""
        kinds: dict[tuple[int, int], list[Tensor]] = {}  # by (split over tp, over replicas)
        routed: list[tuple[nn.Parameter, Tensor]] = []
        for parameter, gradient, norm, over_replicas in self._norms():
            if self.experts is not None and self.experts.contains(parameter):
                routed.append((parameter, gradient))
            elif id(parameter) not in self.counted_elsewhere:
                kinds.setdefault((self._over_tp[id(parameter)], over_replicas), []).append(norm)
        sums = torch.zeros(2, 2, device=self.mesh.device_type)
        for kind, norms in kinds.items():
            sums[kind] = torch.stack([norm.to(sums.device) for norm in norms]).square().sum()
        if self.plan.layout.tp > 1:
            dist.all_reduce(part := sums[1].clone(), group=self.mesh["tp"].get_group())
            sums[1] = part
        if self.plan.layout.shard_group > 1:
            dist.all_reduce(part := sums[:, 1].clone(), group=self.mesh["shard"].get_group())
            sums[:, 1] = part
        total = sums.sum()
        if self.experts is not None:
            total = total + self.experts.square_sum(routed, sharded=self.plan.layout.zero > 0)
        if self.plan.layout.pp > 1:
            dist.all_reduce(total, group=self.mesh["pp"].get_group())
        return float(total.sqrt())

    def _norms(self) -> list[tuple[nn.Parameter, Tensor, Tensor, int]]:
        """List (parameter, gradient, norm, 1 if sharded over replicas else 0) of this rank, in a fixed order."""
        entries: list[tuple[nn.Parameter, Tensor, Tensor, int]] = []
        for flat in self.flats:
            split = int(flat.shards > 1)
            for (parameter, gradient), norm in zip(flat.reduced, flat.norms(), strict=True):
                entries.append((parameter, gradient, norm, split))
        for gradients in self._shards_by_device():  # those of streamed blocks are on the host
            norms = torch._foreach_norm([gradient for _, gradient in gradients], dtype=torch.float32)
            for (parameter, gradient), norm in zip(gradients, norms, strict=True):
                entries.append((parameter, gradient, norm, self._over_replicas[id(parameter)]))
        return sorted(entries, key=lambda entry: self._order[id(entry[0])])

    def _shards_by_device(self) -> list[list[tuple[nn.Parameter, Tensor]]]:
        """Each parameter outside flat buffers with this rank's gradient, grouped by device."""
        shards: dict[torch.device, list[tuple[nn.Parameter, Tensor]]] = {}
        for parameter in [] if self.flats else self.parameters:
            if parameter.grad is not None:
                gradient = local(parameter.grad)
                shards.setdefault(gradient.device, []).append((parameter, gradient))
        return list(shards.values())

    def _scale(self, factor: float) -> None:
        """Multiply all gradients by `factor`."""
        for flat in self.flats:
            flat.scale(factor)
        for gradients in self._shards_by_device():
            torch._foreach_mul_([gradient for _, gradient in gradients], factor)


def _raise_gains(slices: Sequence[Slice], optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Hook before AdamW's step that makes its weight decay pull these gains towards 1."""
    group = optimizer.param_groups[0]
    decay = group["lr"] * group["weight_decay"]
    for piece in slices:
        if piece.updated.grad is not None:
            piece.of(piece.updated).add_(decay / (1 - decay))


def _by_kind(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters in groups for one fused update each: plain tensors, or DTensors of one mesh."""
    kinds: dict[int, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = hash(parameter.device_mesh) if isinstance(parameter, DTensor) else 0
        kinds.setdefault(key, []).append(parameter)
    return [kind[at : at + _AT_ONCE] for kind in kinds.values() for at in range(0, len(kind), _AT_ONCE)]


def _split_over(parameter: Tensor, axis: str) -> int:
    """1 if a parameter is sharded over this mesh axis, 0 if not."""
    if not isinstance(parameter, DTensor):
        return 0
    names = parameter.device_mesh.mesh_dim_names or ()
    placements = dict(zip(names, parameter.placements, strict=True))
    return int(axis in placements and not placements[axis].is_replicate())


def states_of(optimizer: torch.optim.Optimizer, updated: nn.Parameter) -> dict[str, Tensor]:
    """States that an optimizer has of a parameter; if there are none, zeros, as its first step makes them."""
    state, moments = optimizer.state[updated], moments_of(optimizer)
    if moments and not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=updated.device)
        state |= {moment: as_part(torch.zeros_like(held(updated)), updated) for moment in moments}
    return {kind: state[kind] for kind in ("step", *moments) if kind in state}


_EPSILON = 1e-6
_CHUNK = 2**22
"""Elements that LAMB works on at a time, which bounds its temporaries."""


class Lamb(torch.optim.Optimizer):
    """LAMB optimizer of this rank's slices of some parameters; call `connect` before its first step."""

    def __init__(self, updated: Sequence[nn.Parameter], *, rate: float) -> None:
        super().__init__(updated, {"lr": rate})
        self._updated, self._betas, self._decay = list(updated), _BETAS, _WEIGHT_DECAY
        self._norms: WholeNorms | None = None
        self._slices: list[Slice] = []
        self._ratios: list[Tensor] | None = None

    def connect(self, norms: WholeNorms, slices: Iterable[Slice]) -> None:
        """Set the slices that this optimizer updates, and the source of their parameters' norms."""
        self._norms, self._slices = norms, list(slices)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update this rank's slices by their directions and trust ratios. If `take` has not set the ratios, find them
        first.
        """
        if self._ratios is None:
            assert self._norms is not None
            self._norms.find([self])
        assert self._ratios is not None
        (group,) = self.param_groups
        for piece, ratio in zip(self._slices, self._ratios, strict=True):
            assert piece.updated.grad is not None
            piece.of(piece.updated).addcmul_(piece.of(piece.updated.grad), ratio, value=-group["lr"])
        self._ratios = None

    def begin(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Update the moments and overwrite each gradient by LAMB's direction r. Returns, for each slice, its
        parameter and the squared norms of its weights x and of r.
        """
        for updated in self._updated:
            self._direct(updated)
        weights = [one.of(one.updated) for one in self._slices]
        ways = [one.of(one.updated.grad) for one in self._slices if one.updated.grad is not None]
        if not weights:
            return []
        norms = torch._foreach_norm([*weights, *ways], dtype=torch.float32)
        squares = torch.stack(norms).view(2, -1).square().unbind(1)
        return [(one.parameter, square) for one, square in zip(self._slices, squares, strict=True)]

    def take(self, ratios: Sequence[Tensor]) -> None:
        """Set the trust ratio ‖x‖ / ‖r‖ of each slice's parameter for the next step."""
        self._ratios = list(ratios)

    def _direct(self, updated: nn.Parameter) -> None:
        """Update the moments of one tensor, and overwrite its gradient by the direction r."""
        state = states_of(self, updated)
        if updated.grad is None:  # a part of a whole that others have gradients of
            updated.grad = torch.zeros_like(updated)
        state["step"] += 1
        first, second = (1 - beta ** state["step"] for beta in self._betas)
        all_of_it = (updated, updated.grad, state["exp_avg"], state["exp_avg_sq"])
        flat = [local(one.detach()).view(-1) for one in all_of_it]
        for x, g, m, v in zip(*(torch.split(one, _CHUNK) for one in flat), strict=True):
            m.lerp_(g, 1 - self._betas[0])
            v.mul_(self._betas[1]).addcmul_(g, g, value=1 - self._betas[1])
            spread = (v / second).sqrt_().add_(_EPSILON)
            torch.div(m, spread, out=g).div_(first).add_(x, alpha=self._decay)


class WholeNorms:
    """Norms of whole parameters for LAMB: sums squares of all slices over the ranks of a pipeline stage."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup | None,
        join_tied: Callable[[Gradient], None],
        device: torch.device | str,
    ) -> None:
        """The ranks of `group` together hold each parameter, every element on equally many ranks; None: this rank
        holds all.

        `join_tied` sums over the copies of a matrix that several stages hold; sums are made on `device`.
        """
        self._place = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._group, self._join_tied, self._device = group, join_tied, device

    def find(self, optimizers: Sequence[Lamb], *, tied: bool = False) -> None:
        """Begin each optimizer's update and set the trust ratio of every parameter, with one all-reduce for all. The
        ratio is the norm of the weight over the norm of the update.
        """
        squares_of = [optimizer.begin() for optimizer in optimizers]
        sums = torch.zeros(len(self._place), 2, device=self._device)
        for parameter, squares in chain.from_iterable(squares_of):
            # one slice of each, as a flat buffer has it in one piece
            sums[self._place[id(parameter)]] = squares
        if self._group is not None:
            dist.all_reduce(sums, group=self._group)  # several times where ranks hold copies: the ratio stays
        if tied:  # twice the squares of both norms: their ratio stays, to the bit the same on both stages
            by_parameter = {key: sums[place] for key, place in self._place.items()}
            self._join_tied(lambda parameter: by_parameter.get(id(parameter)))
        x, r = sums.unbind(1)
        ratios = torch.where((x > 0) & (r > 0), (x / r).sqrt(), 1.0).unbind()
        for optimizer, pairs in zip(optimizers, squares_of, strict=True):
            optimizer.take([ratios[self._place[id(parameter)]] for parameter, _ in pairs])
