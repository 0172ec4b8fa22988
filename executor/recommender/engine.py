"""A sharded recommender on this rank: tables, dense network, and one optimizer step of both.

Gradients of the dense network are added up in a group of ranks of their own, beside what the tables do:

    stage 4  dense network       ▇▇▇▇▇▇▇
    stage 5  backward exchange          ▇▇▇▇▇▇▇▇▇▇      shares of the sum travel
    stage 6  update of rows                       ▇▇▇▇▇▇▇   sums of the shares travel, then the dense network's update
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import Sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.data.clicks import Clicks
from executor.embeddings.bags import cut
from executor.embeddings.collection import Embeddings
from executor.embeddings.exchanges import Peers, Places, Summing
from executor.mesh import make_groups
from executor.models.recommender import DenseNetwork, click_loss, initialise_dense
from executor.run_config import EngineOptions

DENSE_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-2, foreach=False),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2, foreach=False),
    "adam": partial(torch.optim.Adam, lr=1e-2, foreach=False),
}
"""Optimizers of the dense network; each step sets its rate."""


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
        """Ranks as which this one process adds up gradients."""
        self.seed = options.seed
        self.embeddings = Embeddings(model, sharding, training, places, device, seed=self.seed, peers=peers)
        dense_group = make_groups(torch.arange(places.ranks)[None]) if places.ranks > 1 else None
        self.dense_peers = peers(self.embeddings.sent, dense_group)
        """The ranks once more: what they add up here waits for no exchange of the tables."""
        with torch.device("meta"):
            network = DenseNetwork(model)
        self.network = network.to_empty(device=device)
        self.dense_optimizer = DENSE_OPTIMIZERS[training.dense_optimizer](self.network.parameters())
        self.rate = 0.0
        self.filled = False
        """Whether tables and network have values."""
        if filled:
            self.fill()

    def fill(self) -> None:
        """Give tables and network their initial values: of tables a rank draws its own rows and columns."""
        for holding in self.embeddings.holdings.values():
            holding.fill()
        initialise_dense(self.network, self.seed)
        self.filled = True

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the updates to come."""
        self.rate = rate
        for group in self.dense_optimizer.param_groups:
            group["lr"] = rate

    def step(self, clicks: Clicks) -> tuple[float, float]:
        """One optimizer step: (this rank's share of the mean loss, norm of the dense network's gradient)."""
        _, _, _, loss, _, norm = [stage() for stage in self.stages(clicks)]
        return loss, norm

    def stages(self, clicks: Clicks) -> list[Callable[[], Any]]:
        """The six stages of one step, to be called one after another."""
        first = (partial(self.index_exchange, clicks), self.lookup, self.forward_exchange)
        return [*first, self.dense, self.backward_exchange, self.update]

    def scores(self, clicks: Clicks) -> Tensor:
        """(b, tasks) logits of samples that nothing is learned from."""
        self.index_exchange(clicks)
        self.embeddings.lookup(learn=False)
        self.forward_exchange()
        with torch.no_grad():
            logits: Tensor = self.network(clicks.dense, self._vectors).float().cpu()
        return logits

    def index_exchange(self, clicks: Clicks) -> None:
        """Stage 1: ids go where their rows are."""
        self._clicks = clicks
        with self.embeddings.sent.stage("index exchange"):
            self.embeddings.index_exchange(clicks.ids)

    def lookup(self) -> None:
        """Stage 2: rows are read."""
        self.embeddings.lookup()

    def forward_exchange(self) -> None:
        """Stage 3: vectors come to the ranks of their samples."""
        with self.embeddings.sent.stage("forward exchange"):
            self._vectors = [one.detach().requires_grad_() for one in self.embeddings.forward_exchange()]

    def dense(self) -> float:
        """Stage 4: forward and backward through the dense network; this rank's share of the mean loss."""
        clicks, shares = self._clicks, self.shares
        total = torch.zeros((), device=self.device)
        vectors = [_cut(one, shares) for one in self._vectors]
        samples = zip(_cut(clicks.dense, shares), _cut(clicks.labels, shares), strict=True)
        for index, (dense, labels) in enumerate(samples):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.training.precision == "bf16"):
                logits = self.network(dense, [one[index] for one in vectors])
            loss = click_loss(logits, labels, self.training.global_batch)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return float(total)

    def backward_exchange(self) -> None:
        """Stage 5: gradients of vectors go back; those of the dense network set out beside them."""
        with self.embeddings.sent.stage("update"):
            self._sums = Summing(self.dense_peers, self._taken_gradients())
        gradients = [one.grad if one.grad is not None else torch.zeros_like(one) for one in self._vectors]
        with self.embeddings.sent.stage("backward exchange"):
            self.embeddings.backward_exchange(gradients)
        self._vectors = []

    def update(self) -> float:
        """Stage 6: rows are updated, and the dense network; the norm of its gradient."""
        self.gather_sums()
        self.update_rows()
        return self.update_dense()

    def _taken_gradients(self) -> Tensor:
        """Gradients of the dense network in one, padded to a share for every rank; parameters keep none."""
        parameters = list(self.network.parameters())
        parts = [(torch.zeros_like(one) if one.grad is None else one.grad).view(-1) for one in parameters]
        number = sum(one.numel() for one in parts)
        flat = torch.cat([*parts, parts[0].new_zeros(-number % self.dense_peers.size)])
        self.dense_optimizer.zero_grad(set_to_none=True)
        return flat

    def update_rows(self) -> None:
        """The tables' part of the update."""
        with self.embeddings.sent.stage("update"):
            self.embeddings.update(self.rate)

    def gather_sums(self) -> None:
        """Shares of the dense network's gradients that came are added up, and their sums set out."""
        with self.embeddings.sent.stage("update"):
            self._sums.gather()

    def update_dense(self) -> float:
        """The dense network's part of the update, by gradients of all ranks; their norm, before it is clipped."""
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
    """The samples of each share, in memory of their own as a rank has them: some products round by their alignment."""
    parts = samples.chunk(shares)
    return parts if shares == 1 else tuple(one.clone() for one in parts)
