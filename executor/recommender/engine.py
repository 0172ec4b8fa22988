"""A sharded recommender on this rank: embedding tables, dense network, and one optimizer step of both.

Gradients of the dense network are added up in a group of ranks of their own, beside what the tables do:

    stage 4  dense network       ▇▇▇▇▇▇▇
    stage 5  backward exchange          ▇▇▇▇▇▇▇▇▇▇      shares of the sum travel
    stage 6  update of rows                       ▇▇▇▇▇▇▇   sums of the shares travel, then the dense network's update

The dense network has a bottom network, interaction and top network (Naumov et al. 2019; Wang et al. 2021).

Shape legend: b samples, F vectors of a sample, D width, X elements of a sample side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.recommender.model import Interaction, Layers, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.data.clicks import Clicks
from executor.embeddings.bags import cut
from executor.embeddings.collection import Embeddings
from executor.embeddings.exchanges import Peers, Places, Summing
from executor.mesh import make_groups
from executor.run_config import EngineOptions


class Perceptron(nn.Module):
    """Linear layers with ReLU between them, and after the last layer if `active`."""

    def __init__(self, inputs: int, layers: Layers, *, active: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise((inputs, *layers)))
        self.active = active

    def forward(self, x_bX: Tensor) -> Tensor:
        """Outputs (b, outputs) of inputs (b, inputs)."""
        for place, layer in enumerate(self.layers):
            x_bX = layer(x_bX)
            if self.active or place < len(self.layers) - 1:
                x_bX = x_bX.relu()
        return x_bX


class CrossLayers(nn.Module):
    """Cross layers of DCN V2: x ← x₀ ∘ (U(V x) + c) + x, with U and V of low rank (Wang et al. 2021)."""

    def __init__(self, width: int, interaction: Interaction) -> None:
        super().__init__()
        rank = interaction.rank
        count = range(interaction.layers)
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in count)
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in count)

    def forward(self, x_bX: Tensor) -> Tensor:
        """Outputs (b, X) of inputs (b, X)."""
        first = x_bX
        for down, up in zip(self.down, self.up, strict=True):
            x_bX = first * up(down(x_bX)) + x_bX
        return x_bX


class DenseNetwork(nn.Module):
    """Dense part of a recommender, which takes the vectors of its embedding tables."""

    def __init__(self, model: RecommenderSpec) -> None:
        super().__init__()
        self.model = model
        self.num_deep = sum(one.count for one in model.tables)
        features = model.dense_features
        self.bottom = Perceptron(features, model.bottom_mlp, active=True) if model.bottom_mlp else None
        width = model.bottom_mlp[-1] if model.bottom_mlp else features
        side_by_side = width + sum(one.count * _elements(one) for one in model.tables)
        self.cross: CrossLayers | None = None
        if model.interaction.kind == "dcn-v2":
            self.cross = CrossLayers(side_by_side, model.interaction)
        if model.interaction.kind == "dot":
            vectors = sum(int(one.outputs) * one.count for one in model.tables) + bool(model.bottom_mlp)
            side_by_side = width + vectors * (vectors - 1) // 2
        self.top = Perceptron(side_by_side, model.top_mlp, active=False)

    def forward(self, dense_bF: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Logits (b, tasks) of dense features (b, features) and each table's vectors, tables of the wide half last."""
        deep, wide_vectors = vectors[: self.num_deep], vectors[self.num_deep :]
        bottom_bX = dense_bF if self.bottom is None else self.bottom(dense_bF)
        if self.model.interaction.kind == "dot":
            features = self._dot(bottom_bX, deep)
        else:
            features = torch.cat([bottom_bX, *(one.flatten(1).to(bottom_bX.dtype) for one in deep)], dim=1)
            features = features if self.cross is None else self.cross(features)
        logits: Tensor = self.top(features)
        for table_vectors in wide_vectors:
            logits = logits + table_vectors.reshape(len(table_vectors), -1, logits.shape[1]).sum(1)
        return logits

    def _dot(self, bottom_bX: Tensor, deep: Sequence[Tensor]) -> Tensor:
        """Output of the bottom network, concatenated with the dot products of all pairs of a sample's vectors."""
        width = self.model.tables[0].width
        vectors = [one.reshape(len(one), -1, width).to(bottom_bX.dtype) for one in deep]
        if self.bottom is not None:
            vectors = [bottom_bX[:, None], *vectors]
        x_bFD = torch.cat(vectors, dim=1)
        products_bFF = x_bFD @ x_bFD.transpose(1, 2)
        count = x_bFD.shape[1]
        row, column = torch.tril_indices(count, count, offset=-1, device=x_bFD.device)
        return torch.cat([bottom_bX, products_bFF[:, row, column]], dim=1)


def initialise_dense(network: DenseNetwork, seed: int) -> None:
    """Fill every parameter in place: normal, with the variances of DLRM's reference implementation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            fans = sum(parameter.shape) if parameter.dim() > 1 else len(parameter)
            scale = (2.0 / fans) ** 0.5 if parameter.dim() > 1 else (1.0 / fans) ** 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def _elements(table: TableSpec) -> int:
    """Number of elements in the vectors that one sample gets from a table."""
    return int(table.outputs) * table.width


DENSE_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-2, foreach=False),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2, foreach=False),
    "adam": partial(torch.optim.Adam, lr=1e-2, foreach=False),
}
"""Optimizers of the dense network by name; each step sets the learning rate."""


class RecommenderEngine:
    """A recommender on one rank: its slices of the tables, the dense network, and the steps of both.

    Both have their initial values, unless they are not to be `filled`, as they will be loaded.
    `options` clip the dense network's gradient.
    """

    def __init__(
        self,
        model: RecommenderSpec,
        sharding: Sharding,
        training: RecommenderTraining,
        places: Places,
        device: torch.device,
        *,
        options: EngineOptions | None = None,
        peers: type[Peers] = Peers,
        filled: bool = True,
    ) -> None:
        self.model, self.sharding, self.training, self.places = model, sharding, training, places
        options = options or EngineOptions()
        self.device, self.clip = device, options.clip
        self.shares = 1
        """Number of ranks in whose place this single process adds up gradients."""
        self.seed = options.seed
        self.embeddings = Embeddings(model, sharding, training, places, device, seed=self.seed, peers=peers)
        dense_group = make_groups(torch.arange(places.ranks)[None]) if places.ranks > 1 else None
        self.dense_peers = peers(self.embeddings.traffic, dense_group)
        """A second group of all ranks, whose sums wait for no exchange of the tables."""
        with torch.device("meta"):
            network = DenseNetwork(model)
        self.network = network.to_empty(device=device)
        self.dense_optimizer = DENSE_OPTIMIZERS[training.dense_optimizer](self.network.parameters())
        self.rate = 0.0
        self.filled = False
        """Whether tables and dense network have values."""
        if filled:
            self.fill()

    def fill(self) -> None:
        """Set tables and dense network to their initial values; a rank draws its own rows and columns of tables."""
        for holding in self.embeddings.holdings.values():
            holding.fill()
        initialise_dense(self.network, self.seed)
        self.filled = True

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of all updates that follow."""
        self.rate = rate
        for group in self.dense_optimizer.param_groups:
            group["lr"] = rate

    def step(self, clicks: Clicks) -> tuple[float, float]:
        """Train one step; returns this rank's share of the mean loss, and the gradient norm of the dense network."""
        _, _, _, loss, _, norm = [stage() for stage in self.stages(clicks)]
        return loss, norm

    def stages(self, clicks: Clicks) -> list[Callable[[], Any]]:
        """Calls of the six stages of a recommender's step, in order."""
        first = (partial(self.index_exchange, clicks), self.embeddings.lookup, self.forward_exchange)
        return [*first, self.dense, self.backward_exchange, self.update]

    def scores(self, clicks: Clicks) -> Tensor:
        """Logits (b, tasks) of samples from which nothing is learned."""
        self.index_exchange(clicks)
        self.embeddings.lookup(learn=False)
        self.forward_exchange()
        with torch.no_grad():
            logits: Tensor = self.network(clicks.dense, self._vectors).float().cpu()
        return logits

    def index_exchange(self, clicks: Clicks) -> None:
        """Stage 1 of a step: send ids to the ranks that hold their rows."""
        self._clicks = clicks
        self.embeddings.traffic.stage = "index exchange"
        self.embeddings.index_exchange(clicks.ids)

    def forward_exchange(self) -> None:
        """Stage 3 of a step: send vectors to the ranks of their samples."""
        self.embeddings.traffic.stage = "forward exchange"
        self._vectors = [one.detach().requires_grad_() for one in self.embeddings.forward_exchange()]

    def dense(self) -> float:
        """Stage 4 of a step: run the dense network forward and backward; returns this rank's share of the mean loss."""
        clicks, shares = self._clicks, self.shares
        total = torch.zeros((), device=self.device)
        vectors = [_cut(one, shares) for one in self._vectors]
        samples = zip(_cut(clicks.dense, shares), _cut(clicks.labels, shares), strict=True)
        for index, (dense, labels) in enumerate(samples):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.training.precision == "bf16"):
                logits = self.network(dense, [one[index] for one in vectors])
            loss = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
            loss = loss / (self.training.global_batch * prod(labels.shape[1:]))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return float(total)

    def backward_exchange(self) -> None:
        """Stage 5 of a step: send gradients of vectors back, and begin to send those of the dense network."""
        self.embeddings.traffic.stage = "update"
        self._sums = Summing(self.dense_peers, self._taken_gradients())
        gradients = [one.grad if one.grad is not None else torch.zeros_like(one) for one in self._vectors]
        self.embeddings.traffic.stage = "backward exchange"
        self.embeddings.backward_exchange(gradients)
        self._vectors = []

    def update(self) -> float:
        """Stage 6 of a step: update rows and dense network; returns the gradient norm of the dense network."""
        self.gather_sums()
        self.update_rows()
        return self.update_dense()

    def _taken_gradients(self) -> Tensor:
        """Flat gradients of the dense network, padded so that ranks share them evenly; the parameters' own are
        removed.
        """
        parameters = list(self.network.parameters())
        parts = [(torch.zeros_like(one) if one.grad is None else one.grad).view(-1) for one in parameters]
        number = sum(one.numel() for one in parts)
        flat = torch.cat([*parts, parts[0].new_zeros(-number % self.dense_peers.size)])
        self.dense_optimizer.zero_grad(set_to_none=True)
        return flat

    def update_rows(self) -> None:
        """Update the rows of the tables, as part of stage 6."""
        self.embeddings.update(self.rate)

    def gather_sums(self) -> None:
        """Add up this rank's share of the dense network's gradients, and begin to send the sums to all ranks."""
        self.embeddings.traffic.stage = "update"
        self._sums.gather()

    def update_dense(self) -> float:
        """Update the dense network by the gradients of all ranks; returns their norm before clipping."""
        parameters = list(self.network.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        flat = self._sums.result()[: sum(sizes)]
        del self._sums
        norm = float(flat.norm())
        if self.clip is not None and norm > self.clip:
            flat = flat * (self.clip / norm)
        for parameter, part in zip(parameters, cut(flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        self.dense_optimizer.step()
        self.dense_optimizer.zero_grad(set_to_none=True)
        return norm


def _cut(samples: Tensor, shares: int) -> tuple[Tensor, ...]:
    """Samples cut into shares, each in memory of its own as on a rank, since alignment changes how products round."""
    parts = samples.chunk(shares)
    return parts if shares == 1 else tuple(one.clone() for one in parts)
