"""The dense network of a recommender: bottom network, interaction, top network (Naumov et al. 2019; Wang et al. 2021).

Shape legend: b samples, F vectors of a sample, D width, X elements of a sample side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.recommender.model import Interaction, Layers, RecommenderSpec, TableSpec


class Perceptron(nn.Module):
    """Linear layers with ReLU between them, and after the last one where `active`."""

    def __init__(self, inputs: int, layers: Layers, *, active: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise((inputs, *layers)))
        self.active = active

    def forward(self, x_bX: Tensor) -> Tensor:
        """(b, inputs) → (b, outputs)"""
        for place, layer in enumerate(self.layers):
            x_bX = layer(x_bX)
            if self.active or place < len(self.layers) - 1:
                x_bX = x_bX.relu()
        return x_bX


class CrossLayers(nn.Module):
    """x ← x₀ ∘ (U(V x) + c) + x, with U and V of low rank (Wang et al. 2021, DCN V2)."""

    def __init__(self, width: int, interaction: Interaction) -> None:
        super().__init__()
        rank = interaction.rank
        count = range(interaction.layers)
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in count)
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in count)

    def forward(self, x_bX: Tensor) -> Tensor:
        """(b, X) → (b, X)"""
        first = x_bX
        for down, up in zip(self.down, self.up, strict=True):
            x_bX = first * up(down(x_bX)) + x_bX
        return x_bX


class DenseNetwork(nn.Module):
    """Everything of a recommender but its tables, whose vectors it takes."""

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
        """(b, dense features) and each table's vectors, the wide half's last → (b, tasks) logits."""
        deep, wide_vectors = vectors[: self.num_deep], vectors[self.num_deep :]
        bottom_bX = dense_bF if self.bottom is None else self.bottom(dense_bF)
        logits: Tensor = self.top(self._interaction(bottom_bX, deep))
        for table_vectors in wide_vectors:
            logits = logits + table_vectors.reshape(len(table_vectors), -1, logits.shape[1]).sum(1)
        return logits

    def _interaction(self, bottom_bX: Tensor, deep: Sequence[Tensor]) -> Tensor:
        if self.model.interaction.kind == "dot":
            return self._dot(bottom_bX, deep)
        features = torch.cat([bottom_bX, *(one.flatten(1).to(bottom_bX.dtype) for one in deep)], dim=1)
        return features if self.cross is None else self.cross(features)

    def _dot(self, bottom_bX: Tensor, deep: Sequence[Tensor]) -> Tensor:
        """The bottom network's output, and the products of all pairs of vectors."""
        width = self.model.tables[0].width
        vectors = [one.reshape(len(one), -1, width).to(bottom_bX.dtype) for one in deep]
        if self.bottom is not None:
            vectors = [bottom_bX[:, None], *vectors]
        x_bFD = torch.cat(vectors, dim=1)
        products_bFF = x_bFD @ x_bFD.transpose(1, 2)
        count = x_bFD.shape[1]
        row, column = torch.tril_indices(count, count, offset=-1, device=x_bFD.device)
        return torch.cat([bottom_bX, products_bFF[:, row, column]], dim=1)


def click_loss(logits_bT: Tensor, labels_bT: Tensor, samples: int) -> Tensor:
    """This rank's share of the mean binary cross-entropy of `samples` samples of all ranks, in fp32."""
    total = F.binary_cross_entropy_with_logits(logits_bT.float(), labels_bT, reduction="sum")
    return total / (samples * prod(labels_bT.shape[1:]))


def initialise_dense(network: DenseNetwork, seed: int) -> None:
    """Fill every parameter in place: normal with the variances of the reference implementation of DLRM."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            fans = sum(parameter.shape) if parameter.dim() > 1 else len(parameter)
            scale = (2.0 / fans) ** 0.5 if parameter.dim() > 1 else (1.0 / fans) ** 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def _elements(table: TableSpec) -> int:
    return int(table.outputs) * table.width
