"""Expert parallelism: which experts a rank holds, and how copies of tokens get to the ranks of their experts and back.

Shape legend: E experts, L of them on this rank, e expert-parallel ranks, t ranks that share an expert, D model,
R copies (of this rank's tokens, or of those that its experts work on).

A copy goes to the rank of its expert by an all-to-all over the e ranks; where an expert is split, its t ranks then
gather one another's copies and scatter the sums. As many as there are: nothing is dropped, nothing padded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from cost_models.specs.transformer import TransformerSpec
from executor.axes.axis import Axis
from executor.axes.data import Copies, how_sharded
from executor.models.experts import ExpertPlace, Run, reorder, routers
from executor.models.transformer import Transformer


def expert_place(model: TransformerSpec, experts: DeviceMesh) -> ExpertPlace:
    """Place of this rank's experts: a run of all experts, each whole or one part of its inner width."""
    count = model.num_experts // experts["ep"].size()
    return ExpertPlace(
        first=experts["ep"].get_local_rank() * count,
        count=count,
        part=experts["etp"].get_local_rank(),
        parts=experts["etp"].size(),
    )


class ExpertAxis(Axis):
    """Expert parallelism on one rank: connects MoE layers with the ranks that hold other experts."""

    def apply(self, part: Transformer, stage: int) -> None:
        """Give each router of a model slice the groups that it communicates in, and the weight of its balance loss."""
        rank, layout, experts = self.rank, self.rank.layout, self.rank.experts
        exchange = None
        if experts is not None and (layout.ep > 1 or layout.expert_tp > 1):
            exchange = Exchange(experts["ep"].get_group(), experts["etp"].get_group())
        for routed in routers(part):
            routed.exchange = exchange
            routed.balance_share = 1 / rank.share.mean_microbatches
            routed.tensor_group = rank.mesh["tp"].get_group() if layout.tp > 1 else None
            routed.context_group = rank.context_group

    def shard(self, part: Transformer, on_host: Collection[str]) -> None:
        """Under ZeRO-2 and 3, shard routed experts over the ranks that hold them, before all other parameters.

        A rank's gradients come from the tokens of all ranks that exchange copies with it, so the mean is over the ranks
        that hold the same of the rest of the model, as it is for that.
        """
        layout, experts = self.rank.layout, self.rank.experts
        if layout.zero < 2 or experts is None:
            return
        mesh = experts["copy", "shard"] if experts["copy"].size() > 1 else experts["shard"]
        away = {id(routed) for name in on_host for routed in routers(part.blocks[name])}
        for routed in routers(part):
            fully_shard(routed.experts, mesh=mesh, **how_sharded(self.rank, on_host=id(routed) in away))
            assert isinstance(routed.experts, FSDPModule)
            routed.experts.set_gradient_divide_factor(layout.data_ranks)
            # gloo cannot scale as it adds; with one rank it would divide twice
            if experts["shard"].size() > 1:
                routed.experts.set_force_sum_reduction_for_comms(True)


class ExpertParameters:
    """Parameters of the routed experts on this rank, and the groups of ranks over which they are divided."""

    def __init__(self, parts: Sequence[Transformer], experts: DeviceMesh) -> None:
        modules = [routed.experts for part in parts for routed in routers(part)]
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        self.copies = Copies.of(experts["shard"], experts["copy"])
        self._experts = experts["ep"].get_group()
        self._parts = experts["etp"].get_group()
        self._parameter_ids = {id(parameter) for parameter in self.parameters}
        self._unsplit_biases = {id(module.down_bias) for module in modules if module.down_bias is not None}

    def contains(self, parameter: Tensor) -> bool:
        """Whether a parameter belongs to a routed expert."""
        return id(parameter) in self._parameter_ids

    def square_sum(self, gradients: Sequence[tuple[nn.Parameter, Tensor]], *, sharded: bool) -> Tensor:
        """Sum of squares of the gradients of all experts of this pipeline stage, (), each element counted once.

        Biases behind an expert's last matrix are whole on the ranks that share it; `sharded` says that this rank has
        only its ZeRO share.
        """
        sums = torch.zeros(2, device=self.parameters[0].device if self.parameters else "cpu")
        for parameter, gradient in gradients:
            sums[int(id(parameter) in self._unsplit_biases)] += gradient.float().square().sum()
        split, unsplit = sums[:1], sums[1:]
        shares = [(self.copies.shard, sums)] * sharded
        for group, part in ((self._experts, sums), (self._parts, split), *shares):
            if dist.get_world_size(group) > 1:
                dist.all_reduce(part, group=group)
        return (split + unsplit).squeeze(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSizes:
    """Rows that one exchange sends to and receives from each rank."""

    sent_rows: list[int]
    """Token copies sent to each of the e ranks."""
    received: list[int]
    """Token copies received from each of the e ranks."""
    share_rows: list[int]
    """Rows that each of the t ranks which share an expert receives."""
    expert_rows: list[int]
    """Token copies for each expert of this rank."""
    order: Tensor
    """Permutation (R,) that sorts received rows by expert."""
    back: Tensor
    """Inverse permutation, (R,)."""

    @staticmethod
    def of(sent_rows: list[int], arriving_teL: Tensor, place: int, device: torch.device) -> ExchangeSizes:
        """Exchange sizes, from the rows that arrive at each of the t ranks from each of the e ranks for each expert."""
        # from (t, e, L) order to the order of experts, and back
        experts = torch.arange(arriving_teL.shape[-1]).repeat(arriving_teL.shape[0] * arriving_teL.shape[1])
        order = experts.repeat_interleave(arriving_teL.flatten()).argsort(stable=True)
        return ExchangeSizes(
            sent_rows=sent_rows,
            received=arriving_teL[place].sum(-1).tolist(),
            share_rows=arriving_teL.sum((1, 2)).tolist(),
            expert_rows=arriving_teL.sum((0, 1)).tolist(),
            order=order.to(device),
            back=order.argsort().to(device),
        )


class Exchange:
    """All-to-all of expert parallelism: sends token copies to the ranks of their experts and results back."""

    def __init__(self, across: dist.ProcessGroup, inside: dist.ProcessGroup) -> None:
        """`across`: the e ranks with other experts; `inside`: the t ranks that share this rank's experts."""
        self.across, self.inside = across, inside
        self.ranks, self.parts = dist.get_world_size(across), dist.get_world_size(inside)
        self.place = dist.get_rank(inside)

    def __call__(self, rows_RD: Tensor, counts_E: Tensor, run: Run) -> Tensor:
        """Run remote experts: token copies (R, D) ordered by expert, counts (E,) → results (R, D) in the same order."""
        sizes = self._exchange_sizes(rows_RD, counts_E)
        share_rows, own_rows = sizes.share_rows, sizes.share_rows[self.place]
        rows_RD = _all_to_all(rows_RD, sizes.received, sizes.sent_rows, self.across)
        if self.parts > 1:
            rows_RD, sizes_sent = rows_RD.repeat(self.parts, 1), [len(rows_RD)] * self.parts
            rows_RD = _all_to_all(rows_RD, share_rows, sizes_sent, self.inside)
        rows_RD = reorder(rows_RD, sizes.order, sizes.back)
        rows_RD = run(rows_RD, sizes.expert_rows)
        rows_RD = reorder(rows_RD, sizes.back, sizes.order)
        if self.parts > 1:
            rows_RD = _all_to_all(rows_RD, [own_rows] * self.parts, share_rows, self.inside)
            rows_RD = rows_RD.view(self.parts, own_rows, rows_RD.shape[-1]).sum(0)  # where own_rows is 0, too
        return _all_to_all(rows_RD, sizes.sent_rows, sizes.received, self.across)

    def _exchange_sizes(self, rows_RD: Tensor, counts_E: Tensor) -> ExchangeSizes:
        """Exchange the numbers of rows that ranks will send, so that each rank knows what it receives.

        What comes to its experts is (t, e, L): to each of the t ranks that share them, from each of the e ranks, for
        each expert.
        """
        counts_eL = counts_E.view(self.ranks, -1)
        arriving_eL = torch.empty_like(counts_eL)
        dist.all_to_all_single(arriving_eL, counts_eL.contiguous(), group=self.across)
        arriving_teL = arriving_eL.unsqueeze(0)
        if self.parts > 1:
            gathered = arriving_eL.new_empty(self.parts * self.ranks, arriving_eL.shape[1])
            dist.all_gather_into_tensor(gathered, arriving_eL, group=self.inside)
            arriving_teL = gathered.view(self.parts, self.ranks, -1)
        counts = torch.cat([counts_eL.sum(-1), arriving_teL.flatten()]).cpu()  # the device is waited for once
        sent_rows, arriving_teL = counts[: self.ranks].tolist(), counts[self.ranks :].view(arriving_teL.shape)
        return ExchangeSizes.of(sent_rows, arriving_teL, self.place, rows_RD.device)


def _all_to_all(rows: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send runs of rows to each rank of a group and receive runs from each; gradients travel the other way."""
    return all_to_all_single_autograd(rows.contiguous(), received, sent, group)
