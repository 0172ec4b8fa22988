"""All tables of a model over all ranks, each sharded in its own way: whole, by rows, by columns, copied.

**Ways to shard a table**, and how vectors and gradients travel:

    whole    each table on one rank; ids go there, vectors come back in an all-to-all, uneven where tables are
    columns  each rank has some columns of every row and gets all ids; vectors travel as those of whole tables, in the
             same messages. Row-wise Adagrad keeps one number for a whole row: ranks that have columns of it add up
             their squares. (Trainers that keep one number a slice train another model than with the table whole.)
    rows     row r on rank r mod W, so that those used most are spread; partial sums travel in a reduce-scatter,
             gradients in an all-gather
    nodes    rows inside a node, tables whole between nodes: partial sums are added in the node that has the table, over
             its fast links, and travel between nodes in an all-to-all among ranks of the same place in their nodes
    copies   every rank has all rows and looks its own samples up; gradients of the rows used travel in an all-gather,
             and each rank adds them up, a piece after another where they are many

So one exchange serves all but copies.

**Slices** of all tables are the same list on every rank. Hot rows, the first of a table, are copied on every rank; the
rest is sharded as its option says. A sum over a bag is the sum over its hot ids and the one over its others, so both
parts are tables of their own.

**Stages of a step:**

    index exchange → lookup → forward exchange → (dense network) → backward exchange → update

Each stage is called for itself, so that it can be timed, and ends before the next begins on this rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import torch
from torch import Tensor

from cost_models.errors import InputError, Problem
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Form, Sharding, TablePlacement
from cost_models.specs.recommender.training import RecommenderTraining
from executor.embeddings.bags import Bags, RowGradients, cut, row_gradients
from executor.embeddings.exchanges import Peers, Places, Router, SentBytes, SingleRank, Slice
from executor.embeddings.holding import Holding, HostLink, InitialRows, RowOptimizer
from executor.mesh import make_groups


class CopyExchange:
    """Exchange of gradients of rows that are copied on every rank, for all such tables together."""

    def __init__(self, peers: Peers, dtype: torch.dtype, at_once: int) -> None:
        """Send gradients as `dtype`, in messages of about `at_once` rows for each bag of a sample."""
        self.peers, self.dtype, self.at_once = peers, dtype, at_once

    def summed(self, own_gradients: Mapping[Slice, RowGradients]) -> dict[Slice, list[RowGradients]]:
        """Gradients of the copied rows that any rank's samples use, given those of this rank's samples. They are added
        in the order of ranks; returned are the pieces of each slice, one after another.
        """
        if self.peers.size == 1 or not own_gradients:
            return {piece: [gradients] for piece, gradients in own_gradients.items()}
        rows_of_ranks = self.rows_of_ranks([gradients.rows for gradients in own_gradients.values()])
        rows_of = dict(zip(own_gradients, zip(*rows_of_ranks, strict=True), strict=True))
        pieces = {part: _pieces(rows, self.at_once * part.bags) for part, rows in rows_of.items()}
        own_values = {}
        for part, of_part in pieces.items():
            values, sizes = own_gradients[part].values, [len(rows[self.peers.rank]) for rows in of_part]
            own_values[part] = [values] if len(sizes) == 1 else cut(values, sizes)
        sums: dict[Slice, list[RowGradients]] = {part: [] for part in own_gradients}
        for nth in range(max(map(len, pieces.values()))):
            rows = {part: of_part[nth] for part, of_part in pieces.items() if nth < len(of_part)}
            for part, gradients in self._added_up(
                {part: own_values[part][nth] for part in rows}, rows
            ).items():
                sums[part].append(gradients)
        return sums

    def _added_up(
        self, gradients: Mapping[Slice, Tensor], rows_of: Mapping[Slice, Sequence[Tensor]]
    ) -> dict[Slice, RowGradients]:
        """Gradients of one piece of each slice, summed over ranks, given this rank's and the rows of each rank's."""
        slices = rows_of.items()
        sizes = [[len(rows[rank]) * part.width for part, rows in slices] for rank in range(self.peers.size)]
        message = torch.cat([values.to(self.dtype).view(-1) for values in gradients.values()])
        received = self.peers.all_gather_uneven(message, list(map(sum, sizes)))
        values = [cut(chunk, lengths) for chunk, lengths in zip(received, sizes, strict=True)]
        sums = {}
        for place, (part, rows) in enumerate(slices):
            addends = torch.cat([chunk[place].view(-1, part.width) for chunk in values]).float()
            all_rows = torch.cat(list(rows))
            sums[part] = row_gradients(Bags(all_rows, torch.ones_like(all_rows, dtype=torch.int32)), addends)
        return sums

    def rows_of_ranks(self, own_rows: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Rows of each slice that the samples of each rank use, by rank, then by slice."""
        counts = torch.tensor([len(rows) for rows in own_rows], device=own_rows[0].device)
        of_ranks = self.peers.all_gather(counts).tolist()
        rows = self.peers.all_gather_uneven(torch.cat(list(own_rows)), list(map(sum, of_ranks)))
        return [cut(rank_rows, sizes) for rank_rows, sizes in zip(rows, of_ranks, strict=True)]


def _pieces(rows_of: Sequence[Tensor], max_rows: int) -> list[Sequence[Tensor]]:
    """Pieces of the rows (ascending) that the samples of each rank use, by piece, then by rank, with about `max_rows`
    gradients of all ranks or fewer. Gradients of one row stay together.
    """
    sizes = [len(rows) for rows in rows_of]
    if sum(sizes) <= max_rows:
        return [rows_of]
    borders = torch.cat(list(rows_of)).sort().values[max_rows::max_rows].contiguous()
    inner = torch.stack([torch.searchsorted(rows, borders) for rows in rows_of], dim=1)
    ends = pairwise([[0] * len(sizes), *inner.tolist(), sizes])
    return [[rows[a:b] for rows, a, b in zip(rows_of, *piece, strict=True)] for piece in ends]


class Exchange:
    """Exchange of partial sums inside each node and then between nodes, and of their gradients back.

    Whole tables have nothing to add up: every rank is a node of its own. Rows on all ranks lie in one node of them all.
    """

    def __init__(self, node: Peers, across: Peers, slices: list[Slice], samples: int, empty: Tensor) -> None:
        """`empty` is a tensor without elements that has the type and device of messages."""
        self.node, self.across, self.empty = node, across, empty
        tables = [part for part in slices if part.residue % node.size == 0]
        ranks_of = [range(first, first + node.size) for first in range(0, across.size * node.size, node.size)]
        self.by_node = [[part for part in tables if part.rank in ranks] for ranks in ranks_of]
        own_rank = across.rank * node.size + node.rank
        self.own_slices = [part for part in slices if part.rank == own_rank]
        self.sizes = [[samples * part.bags * part.width for part in group] for group in self.by_node]
        self.counts = list(map(sum, self.sizes))
        self.my_sizes = self.sizes[across.rank]
        self._message = empty

    def room(self) -> dict[Slice, Tensor]:
        """Memory in which this rank writes sums for samples of all ranks, by slice: (nodes, places, b · bags · D).

        Samples of ranks that have the same place in their nodes are summed by the rank at that place in this node.
        """
        self._message = self.empty.new_empty(self.node.size, self.across.size, sum(self.my_sizes))
        parts = cut(_in_order(self._message), self.my_sizes, dim=2)
        return dict(zip(self.own_slices, parts, strict=True))

    def forward(self) -> dict[Slice, Tensor]:
        """Exchange the sums in `room` into vectors of this rank's samples, (b · bags, D) by slice."""
        if not any(self.counts):
            return {}
        message, self._message = self._message, self.empty
        sums = self.node.reduce_scatter(message.view(self.node.size, -1))
        received = self.across.exchange(sums, [sum(self.my_sizes)] * self.across.size, self.counts)
        slices, parts = chain(*self.by_node), cut(received, [*chain(*self.sizes)])
        return {piece: part.view(-1, piece.width) for piece, part in zip(slices, parts, strict=True)}

    def backward(self, gradients: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """Exchange gradients (b · bags, D) back to the slices of this rank: (nodes, places, b · bags · D) by slice."""
        if not any(self.counts):
            return {}
        parts = (gradients[part].reshape(-1) for part in chain.from_iterable(self.by_node))
        message = torch.cat([self.empty, *parts])
        received = self.across.exchange(message, self.counts, [sum(self.my_sizes)] * self.across.size)
        node = self.node.all_gather(received).view(self.node.size, self.across.size, -1)
        return dict(zip(self.own_slices, cut(_in_order(node), self.my_sizes, dim=2), strict=True))


def _in_order(message: Tensor) -> Tensor:
    """Message of (places, nodes, n) as (nodes, places, n), the order of ranks."""
    return message if 1 in message.shape[:2] else message.transpose(0, 1)


def squares_of_rows(
    peers: Peers, slices: Sequence[Slice], squares: Mapping[Slice, Tensor], device: torch.device
) -> dict[Slice, Tensor]:
    """Sums of squares over whole rows, (U,) by slice, given those over the columns of this rank's slices."""
    groups = [group for group in parts_of_tables(slices) if any(part in squares for part in group)]
    rows = {part: len(squares[own]) for group in groups for own in group if own in squares for part in group}
    shared = [
        [group for group in groups if rank in {part.rank for part in group}] for rank in range(peers.size)
    ]
    none = torch.empty(0, dtype=torch.float64, device=device)
    sends = [torch.cat([none, *(squares[one] for one in chain(*of) if one in squares)]) for of in shared]
    senders = [[part for part in chain(*of) if part.rank == rank] for rank, of in enumerate(shared)]
    sizes = [[rows[part] for part in parts] for parts in senders]
    received = peers.all_to_all(sends, [*map(sum, sizes)])
    parts = dict(zip(chain(*senders), chain(*map(cut, received, sizes)), strict=True))
    totals: dict[Slice, Tensor] = {}
    for group in groups:
        total = sum((parts[part] for part in group[1:]), parts[group[0]])
        totals |= {part: total for part in group if part.rank == peers.rank}
    return totals


def parts_of_tables(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices, on all ranks, of each part of a table (hot rows or the rest), in the order of their numbers."""
    parts: dict[tuple[int, int], list[Slice]] = {}
    for piece in slices:
        parts.setdefault((piece.table, piece.first), []).append(piece)
    return list(parts.values())


def all_slices(tables: Sequence[TableSpec], sharding: Sharding, places: Places) -> list[Slice]:
    """Every slice of every table on all ranks, by table.

    Raises:
        InputError: places that are not there, or more slices than columns or rows; all problems at once.
    """
    placements = list(enumerate(zip(tables, sharding.tables, strict=True)))
    obstacles = {index: _impossible(*of_table, places) for index, of_table in placements}
    if problems := [Problem(f"table:{index}", what) for index, what in obstacles.items() if what]:
        raise InputError("the sharding does not go with these ranks", problems=problems)
    return [part for index, of_table in placements for part in _slices(index, *of_table, places)]


def _slices(index: int, table: TableSpec, placement: TablePlacement, places: Places) -> list[Slice]:
    """Slices of one table: a copy of its hot rows on every rank, then those of its other rows."""
    share = 1.0 if placement.option.tier == "device" else placement.option.cached  # of a slice's rows
    bags = int(table.pooling) if table.combiner == "concat" else 1
    size = {"rows": table.rows, "end": table.width, "bags": bags}
    complete = Slice(table=index, form=placement.option.form, **size, cached=share, hashed=table.hashed)
    hot = min(round(table.rows * placement.option.hot), table.rows - 1)  # never all of them
    if not hot:
        return slices_of(complete, placement, places)
    copy = replace(complete, form="copy", rows=hot, cached=1.0)
    return [copy, *slices_of(replace(complete, first=hot, rows=table.rows - hot), placement, places)]


def slices_of(table: Slice, placement: TablePlacement, places: Places) -> list[Slice]:
    """Slices of a table, or of its rows that are not hot, under the sharding option of its placement."""
    at, shards = placement.at, placement.option.shards
    match placement.option.form:
        case "copy":
            return [table]
        case "whole":
            return [replace(table, rank=at[0])]
        case "column":  # side by side, of nearly equal width
            borders = [table.end * index // shards for index in range(shards + 1)]
            columns = zip(at, borders, borders[1:], strict=False)
            return [replace(table, rank=rank, begin=begin, end=end) for rank, begin, end in columns]
        case "row":
            ranks: Sequence[int] = at or range(places.ranks)
        case "node-row":
            ranks = [node * places.per_node + place for node in at for place in range(places.per_node)]
    named = placement.option.form == "row" and at  # rows on ranks that are named travel as whole tables do
    form: Form = "whole" if named else table.form
    shared = replace(table, form=form, ways=len(ranks))
    return [replace(shared, rank=rank, residue=residue) for residue, rank in enumerate(ranks)]


def _impossible(table: TableSpec, placement: TablePlacement, places: Places) -> str:
    """Reason why a table cannot be placed as the sharding says; empty if it can."""
    form = placement.option.form
    count = places.nodes if form == "node-row" else places.ranks
    missing = [place for place in placement.at if place >= count]
    if missing:
        return f"there is no {'node' if form == 'node-row' else 'GPU'} {missing[0]}; the last is {count - 1}"
    if form == "column" and placement.option.shards > table.width:
        return f"{placement.option.shards} slices of {table.width} columns"
    if table.hashed and placement.option.hot:
        return "nobody knows which keys are hot before they come; `hot` is for row numbers"
    return ""


AT_ONCE = 8
"""Gradients of rows that are gathered or applied at a time, as a multiple of the vectors of one rank's samples."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(slots=True)
class _Step:
    """State of one training step of a recommender between its stages."""

    lengths: dict[int, Tensor] = field(default_factory=dict)
    """Number of ids of each bag of this rank's samples, for tables whose vectors are averaged."""
    bags: dict[Slice, Bags] = field(default_factory=dict)
    """Ids to look up in each slice on this rank."""
    vectors: dict[Slice, Tensor] = field(default_factory=dict)
    """Vectors of copied tables; vectors of other tables are in the memory of their exchange."""
    gradients: dict[Slice, Tensor] = field(default_factory=dict)
    """Gradients of vectors that this rank's slices received, samples of all ranks in order."""
    summed: dict[Slice, list[RowGradients]] = field(default_factory=dict)
    """Gradients of the rows of each slice, in pieces, to be applied by `update`."""


class Embeddings:
    """All embedding tables of a recommender, sharded over ranks.

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
        self.device = device
        self.tables = [model.classes[index] for index in model.class_of_table]
        self.samples = training.global_batch // places.ranks
        self.optimizer = RowOptimizer(training.optimizer)
        self.table_dtype = DTYPES[training.table_dtype]
        dense_dtype = "fp32" if training.precision == "fp32" else "bf16"
        self.exchange_dtype = DTYPES[training.exchange_dtype or dense_dtype]
        """Type of exchanged vectors; by default that of the dense network's matrix products."""
        empty = torch.empty(0, dtype=self.exchange_dtype, device=device)
        self.steps = 0
        """Number of updates made so far."""
        self.traffic, self.link = SentBytes(), HostLink(device)
        self.peers = peers(self.traffic)
        self.slices = all_slices(self.tables, sharding, places)
        placed_slices = [part for part in self.slices if part.rank is not None]
        self.router = Router(self.peers, placed_slices, self.samples)
        self.copies = [part for part in self.slices if part.rank is None]
        self.copy_exchange = CopyExchange(self.peers, self.exchange_dtype, AT_ONCE * self.samples)
        self._columns = self._with_form("column")
        single = SingleRank(self.traffic)
        self._exchanges = [
            Exchange(single, self.peers, self._with_form("whole", "column"), self.samples, empty),
            Exchange(self.peers, single, self._with_form("row"), self.samples, empty),
        ]
        if nodes := self._with_form("node-row"):
            of_nodes = torch.arange(places.ranks).reshape(places.nodes, places.per_node)
            inside, across = (peers(self.traffic, make_groups(ranks)) for ranks in (of_nodes, of_nodes.T))
            self._exchanges.append(Exchange(inside, across, nodes, self.samples, empty))
        initial = [
            InitialRows(name=name, rows=table.rows, width=table.width, seed=seed)
            for name, table in zip(model.table_names, self.tables, strict=True)
        ]
        self.holdings = {
            part: Holding(part, initial[part.table], self.table_dtype, self.optimizer, self.link)
            for part in self.slices
            if part.rank in (None, self.peers.rank)
        }
        self._step = _Step()

    def index_exchange(self, ids: Sequence[Bags]) -> None:
        """Step stage: send ids of this rank's samples, by table, to the ranks that hold their rows."""
        self._step = _Step()
        parts = self._parts(ids)
        self._step.bags = {part: parts[part.table, part.first] for part in self.copies}
        self._step.bags |= self.router.exchange(parts)

    def lookup(self, *, learn: bool = True) -> None:
        """Step stage: sum the rows of each bag into the exchanges' memory; with `learn` a new key gets a row."""
        rooms = {part: room for exchange in self._exchanges for part, room in exchange.room().items()}
        for part, bags in self._step.bags.items():
            sums = self.holdings[part].lookup(bags, learn=learn)
            if (room := rooms.get(part)) is None:
                self._step.vectors[part] = sums.to(self.exchange_dtype)
            else:
                room.copy_(sums.view(room.shape))

    def forward_exchange(self) -> list[Tensor]:
        """Step stage: exchange sums into this rank's vectors by table, (b, D), or with `concat` (b, ids, D)."""
        vectors, self._step.vectors = self._step.vectors, {}
        for exchange in self._exchanges:
            vectors |= exchange.forward()
        return [self._output(table, vectors) for table in range(len(self.tables))]

    def backward_exchange(self, outputs: Sequence[Tensor]) -> None:
        """Step stage: send gradients of the vectors of `forward_exchange` to the ranks that hold their rows."""
        gradients = {}
        for table, gradient in enumerate(outputs):
            flat = gradient.reshape(-1, self.tables[table].width)
            if (lengths := self._step.lengths.get(table)) is not None:
                flat = flat / lengths[:, None]
            gradients[table] = flat.to(self.exchange_dtype)
        by_slice = {part: gradients[part.table][:, part.begin : part.end] for part in self.slices}
        for exchange in self._exchanges:
            self._step.gradients |= exchange.backward(by_slice)
        copies = {part: row_gradients(self._step.bags[part], by_slice[part].float()) for part in self.copies}
        self._step.summed = self.copy_exchange.summed(copies)

    def update(self, rate: float) -> None:
        """Step stage: sum the gradients of each row, and update the rows that the batch used."""
        self.steps += 1
        summed = self._step.summed
        for part, gradient in self._step.gradients.items():
            row_gradient = row_gradients(self._step.bags[part], gradient.float().reshape(-1, part.width))
            summed[part] = row_gradient.pieces(AT_ONCE * self.samples * part.bags)
        squares = self._squares(summed) if self.optimizer.by_row else {}
        for part, pieces in summed.items():
            for gradients, mean in zip(pieces, squares.get(part, [None] * len(pieces)), strict=True):
                self.holdings[part].update(gradients, mean, rate, self.steps)
        self._step = _Step()

    def _with_form(self, *forms: str) -> list[Slice]:
        """Slices, on all ranks, of these sharding forms."""
        return [one for one in self.slices if one.form in forms]

    def _parts(self, ids: Sequence[Bags]) -> dict[tuple[int, int], Bags]:
        """Ids of this rank's samples for each part of each table: the whole table, or its hot rows and the rest."""
        parts: dict[tuple[int, int], Bags] = {}
        for part, *_ in parts_of_tables(self.slices):
            table, bags = self.tables[part.table], ids[part.table]
            if table.combiner == "mean":
                self._step.lengths[part.table] = bags.lengths.clamp(min=1)
            parts[part.table, part.first] = ids_of_part(part, table, bags)
        return parts

    def _output(self, table: int, vectors: dict[Slice, Tensor]) -> Tensor:
        """Vectors of one table: columns joined, sums over parts of the rows added, means taken."""
        spec = self.tables[table]
        parts: dict[tuple[int, int], list[Slice]] = {}
        for part in vectors:
            if part.table == table:
                parts.setdefault((part.first, part.residue), []).append(part)
        sums = [
            torch.cat([vectors[part] for part in sorted(slices, key=lambda part: part.begin)], dim=1).float()
            for _, slices in sorted(parts.items())
        ]
        total = sums[0]
        for partial in sums[1:]:
            total = total + partial
        if (lengths := self._step.lengths.get(table)) is not None:
            total = total / lengths[:, None]
        return total.view(self.samples, -1, spec.width) if spec.combiner == "concat" else total

    def _squares(self, summed: dict[Slice, list[RowGradients]]) -> dict[Slice, list[Tensor]]:
        """Mean of the squares of each row's gradient, (U,) by piece of each slice."""
        sums = {}
        for part, pieces in summed.items():
            sums[part] = torch.cat([piece.values.double().square().sum(1) for piece in pieces])
        if self._columns:
            own_sums = {part: sums[part] for part in self._columns if part in sums}
            sums |= squares_of_rows(self.peers, self._columns, own_sums, self.device)
        means = {part: (total / self.tables[part.table].width).float() for part, total in sums.items()}
        sizes = {part: [len(piece.rows) for piece in pieces] for part, pieces in summed.items()}
        return {part: list(cut(mean, sizes[part])) for part, mean in means.items()}


def ids_of_part(part: Slice, table: TableSpec, bags: Bags) -> Bags:
    """Ids of a table's samples that fall into a slice's part of the table, as row numbers in that part."""
    if table.combiner == "concat":
        bags = bags.concatenated(part.bags)
    if part.rows == table.rows:
        return bags
    inside = (bags.values >= part.first) & (bags.values < part.first + part.rows)
    bags = bags.masked(inside)
    return Bags(bags.values - part.first, bags.lengths)
