"""All tables of a recommender as this rank holds them, stage by stage of a step.

    index exchange → lookup → forward exchange → (dense network) → backward exchange → update

Each stage is called for itself, so that it can be timed, and ends before the next begins on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.embeddings.bags import Bags, RowGradients, cut, row_gradients
from executor.embeddings.copies import CopyExchange
from executor.embeddings.exchanges import Alone, Peers, Router, Sent
from executor.embeddings.holding import Holding, HostLink
from executor.embeddings.places import Places, Slice
from executor.embeddings.slicing import all_slices
from executor.embeddings.updating import RowOptimizer
from executor.embeddings.ways import Exchange, squares_of_rows
from executor.mesh import make_groups

AT_ONCE = 8
"""Gradients of rows that are gathered, or updated with, at once: as many as so many ranks' samples have vectors."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(slots=True)
class _Step:
    """State of a step between its stages."""

    lengths: dict[int, Tensor] = field(default_factory=dict)
    """Ids of each bag of this rank's samples, of tables whose vectors are averaged."""
    bags: dict[Slice, Bags] = field(default_factory=dict)
    """Ids to look up here."""
    vectors: dict[Slice, Tensor] = field(default_factory=dict)
    """Of copies: others are where their exchange sends them from."""
    gradients: dict[Slice, Tensor] = field(default_factory=dict)
    """As they came, samples of all ranks in their order."""
    summed: dict[Slice, list[RowGradients]] = field(default_factory=dict)
    """Gradients of rows of copies, in pieces."""


class Embeddings:
    """The tables of a model, sharded.

    Every rank makes one, with its number of samples, and calls the stages of each step in their order.
    """

    def __init__(
        self,
        model: RecommenderSpec,
        sharding: Sharding,
        training: RecommenderTraining,
        places: Places,
        device: torch.device,
        *,
        seed: int,
        peers: type[Peers] = Peers,
    ) -> None:
        self.model, self.device, self.places = model, device, places
        self.tables = [model.classes[index] for index in model.class_of_table]
        self.samples = training.global_batch // places.ranks
        self.optimizer = RowOptimizer(training.optimizer)
        self.table_dtype = DTYPES[training.table_dtype]
        self.exchange_dtype = exchange_dtype(training)
        empty = torch.empty(0, dtype=self.exchange_dtype, device=device)
        self.steps = 0
        """Updates that were made."""
        self.sent, self.link = Sent(), HostLink(device)
        self.peers = peers(self.sent)
        self.slices = all_slices(self.tables, sharding, places)
        placed = [one for one in self.slices if one.rank is not None]
        self.router = Router(self.peers, placed, self.samples)
        self.copies = [one for one in self.slices if one.rank is None]
        self.copy_exchange = CopyExchange(self.peers, self.exchange_dtype, AT_ONCE * self.samples)
        self._columns = self._of("column")
        alone = Alone(self.sent)
        self._exchanges = [
            Exchange(alone, self.peers, self._of("whole", "column"), self.samples, empty),
            Exchange(self.peers, alone, self._of("row"), self.samples, empty),
        ]
        if nodes := self._of("node-row"):
            among = _node_peers(peers, self.sent, places)
            self._exchanges.append(Exchange(*among, nodes, self.samples, empty))
        self.held = {
            one: Holding(
                one,
                name=model.table_names[one.table],
                rows=self.tables[one.table].rows,
                width=self.tables[one.table].width,
                seed=seed,
                dtype=self.table_dtype,
                optimizer=self.optimizer,
                link=self.link,
            )
            for one in self.slices
            if one.rank in (None, self.peers.rank)
        }
        self._step = _Step()

    def index_exchange(self, ids: Sequence[Bags]) -> None:
        """Send ids of this rank's samples, by table, to the ranks of their rows."""
        self._step = _Step()
        parts = self._parts(ids)
        self._step.bags = {one: parts[one.table, one.first] for one in self.copies}
        self._step.bags |= self.router.exchange(parts)

    def lookup(self, *, learn: bool = True) -> None:
        """Rows are read and added up by bag, each slice's where it is sent from; `learn`: a key that is new gets a
        row."""
        rooms = {one: room for exchange in self._exchanges for one, room in exchange.room().items()}
        for one, bags in self._step.bags.items():
            found = self.held[one].lookup(bags, learn=learn)
            if (room := rooms.get(one)) is None:
                self._step.vectors[one] = found.to(self.exchange_dtype)
            else:
                room.copy_(found.view(room.shape))

    def forward_exchange(self) -> list[Tensor]:
        """The vectors of each table for this rank's samples: (b, D), or with `concat` (b, ids, D)."""
        came, self._step.vectors = self._step.vectors, {}
        for exchange in self._exchanges:
            came |= exchange.forward()
        return [self._output(table, came) for table in range(len(self.tables))]

    def backward_exchange(self, outputs: Sequence[Tensor]) -> None:
        """Send gradients of the vectors of `forward_exchange` to the ranks of their rows."""
        gradients = {}
        for table, gradient in enumerate(outputs):
            flat = gradient.reshape(-1, self.tables[table].width)
            if (lengths := self._step.lengths.get(table)) is not None:
                flat = flat / lengths[:, None]
            gradients[table] = flat.to(self.exchange_dtype)
        every = {one: gradients[one.table][:, one.begin : one.end] for one in self.slices}
        for exchange in self._exchanges:
            self._step.gradients |= exchange.backward(every)
        mine = {one: row_gradients(self._step.bags[one], every[one].float()) for one in self.copies}
        self._step.summed = self.copy_exchange.summed(mine)

    def update(self, rate: float) -> None:
        """Add up the gradients of each row, and update the rows that the batch used."""
        self.steps += 1
        summed = self._step.summed
        for one, gradient in self._step.gradients.items():
            mine = row_gradients(self._step.bags[one], gradient.float().reshape(-1, one.width))
            summed[one] = mine.pieces(AT_ONCE * self.samples * one.bags)
        squares = self._squares(summed) if self.optimizer.by_row else {}
        for one, pieces in summed.items():
            for gradients, mean in zip(pieces, squares.get(one, [None] * len(pieces)), strict=True):
                self.held[one].update(gradients, mean, rate, self.steps)
        self._step = _Step()

    def _of(self, *forms: str) -> list[Slice]:
        return [one for one in self.slices if one.form in forms]

    def _parts(self, ids: Sequence[Bags]) -> dict[tuple[int, int], Bags]:
        """Ids of each part of a table: one part, or hot rows and the rest."""
        parts: dict[tuple[int, int], Bags] = {}
        for one in self.slices:
            key = one.table, one.first
            if key in parts:
                continue
            table, bags = self.tables[one.table], ids[one.table]
            if table.combiner == "mean":
                self._step.lengths[one.table] = bags.lengths.clamp(min=1)
            parts[key] = ids_of_part(one, table, bags)
        return parts

    def _output(self, table: int, came: dict[Slice, Tensor]) -> Tensor:
        """Columns side by side, sums over some of the rows added up, means taken."""
        spec = self.tables[table]
        parts: dict[tuple[int, int], list[Slice]] = {}
        for one in came:
            if one.table == table:
                parts.setdefault((one.first, one.residue), []).append(one)
        sums = [
            torch.cat([came[one] for one in sorted(of, key=lambda one: one.begin)], dim=1).float()
            for _, of in sorted(parts.items())
        ]
        total = sums[0]
        for more in sums[1:]:
            total = total + more
        if (lengths := self._step.lengths.get(table)) is not None:
            total = total / lengths[:, None]
        return total.view(self.samples, -1, spec.width) if spec.combiner == "concat" else total

    def _squares(self, summed: dict[Slice, list[RowGradients]]) -> dict[Slice, list[Tensor]]:
        """(U,) mean of the squares of each row's gradient, in fp64 so that no split of the columns shows; by piece."""
        sums = {
            one: torch.cat([piece.values.double().square().sum(1) for piece in pieces])
            for one, pieces in summed.items()
        }
        if self._columns:
            mine = {one: sums[one] for one in self._columns if one in sums}
            sums |= squares_of_rows(self.peers, self._columns, mine, self.device)
        means = {one: (total / self.tables[one.table].width).float() for one, total in sums.items()}
        return {
            one: list(cut(mean, [len(piece.rows) for piece in summed[one]])) for one, mean in means.items()
        }


def ids_of_part(one: Slice, table: TableSpec, bags: Bags) -> Bags:
    """The ids of a table's samples that fall into a slice's part of the table, as row numbers in that part."""
    if table.combiner == "concat":
        bags = bags.concatenated(one.bags)
    if one.rows == table.rows:
        return bags
    inside = (bags.values >= one.first) & (bags.values < one.first + one.rows)
    return bags.where(inside).moved(one.first)


def exchange_dtype(training: RecommenderTraining) -> torch.dtype:
    """Type of exchanged vectors: that of the dense network's products by default."""
    return DTYPES[training.exchange_dtype or ("fp32" if training.precision == "fp32" else "bf16")]


def _node_peers(peers: type[Peers], sent: Sent, places: Places) -> tuple[Peers, Peers]:
    """(the ranks of this node, the ranks at this one's place in all nodes)."""
    nodes = torch.arange(places.ranks).reshape(places.nodes, places.per_node)
    inside, across = make_groups(nodes), make_groups(nodes.T)
    return peers(sent, inside), peers(sent, across)
