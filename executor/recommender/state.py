"""State of a recommender in checkpoints, for the same sharding or another.

**Order of rows.** Rows that ranks hold in turn are saved as blocks of consecutive rows. Of w slices of a part of a
table slice ρ holds rows ρ, ρ + w, ρ + 2w, ...; block k is the k-th w-th of the part.

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

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from executor.boxes import Box
from executor.checkpoints.contents import Contents, Piece, RankTensor, unsplit
from executor.checkpoints.manifest import RecommenderProgress, progress_fields
from executor.embeddings.collection import parts_of_tables
from executor.embeddings.exchanges import Peers, Slice, exchanged_rows
from executor.embeddings.holding import EMPTY, Holding
from executor.recommender.engine import RecommenderEngine
from executor.run_config import EngineOptions


def block_rows(part: Slice) -> tuple[int, int]:
    """The block in a slice's place: its first row in the part, and the end."""
    size = -(-part.rows // part.ways)
    return min(part.residue * size, part.rows), min((part.residue + 1) * size, part.rows)


def to_blocks(
    peers: Peers, siblings: Sequence[Slice], own_rows: Mapping[Slice, Tensor], none: Tensor
) -> dict[Slice, Tensor]:
    """(held rows, ...) of this rank's slices of a part → (block's rows, ...) in their places.

    `siblings` are all slices of the part; every rank calls it, with `none` of such rows where it has no slice.
    """
    sends = {
        (sibling, at): rows[slice(*_shared(sibling, at))]
        for sibling, rows in own_rows.items()
        for at in siblings
    }
    incoming = {(sibling, at): _shared_rows(sibling, at) for sibling in siblings for at in own_rows}
    came = exchanged_rows(peers, sends, incoming, none)
    blocks = {}
    for at in own_rows:
        begin, end = block_rows(at)
        block = none.new_empty(end - begin, *none.shape[1:])
        for sibling in siblings:
            block[(sibling.residue - begin) % sibling.ways :: sibling.ways] = came[sibling, at]
        blocks[at] = block
    return blocks


def from_blocks(
    peers: Peers, siblings: Sequence[Slice], blocks: Mapping[Slice, Tensor], none: Tensor
) -> dict[Slice, Tensor]:
    """Convert blocks of embedding tables, as `to_blocks` returns them, back into rows of this rank's slices."""
    sends = {
        (at, sibling): block[(sibling.residue - block_rows(at)[0]) % sibling.ways :: sibling.ways]
        for at, block in blocks.items()
        for sibling in siblings
    }
    incoming = {(at, sibling): _shared_rows(sibling, at) for at in siblings for sibling in blocks}
    came = exchanged_rows(peers, sends, incoming, none)
    return {sibling: torch.cat([came[at, sibling] for at in siblings]) for sibling in blocks}


def _shared(part: Slice, at: Slice) -> tuple[int, int]:
    """Range of a slice's rows that lie in a block."""
    begin, end = (max(0, -(-(border - part.residue) // part.ways)) for border in block_rows(at))
    return min(begin, part.held_rows), min(end, part.held_rows)


def _shared_rows(part: Slice, at: Slice) -> int:
    begin, end = _shared(part, at)
    return end - begin


KEYS = "keys"
"""Kind of the tensor that has the keys."""
Rows = dict[str, Tensor]
"""Kind → values of all rows of a slice: `keys`, `weights`, states."""


def rows_with_keys(part: Slice, holding: Holding) -> Rows:
    """A slice's rows as a checkpoint has them, with their keys."""
    assert holding.keys is not None
    keys = holding.keys.by_row()
    order = keys.argsort() if part.rank is None else torch.arange(len(keys), device=keys.device)
    used = keys[order] != EMPTY
    full_keys = torch.where(used, keys[order] * part.ways + part.residue, EMPTY)
    return {KEYS: full_keys} | {kind: _rows(holding, kind)[order] for kind in holding.optimizer.kinds}


def put_back(
    peers: Peers,
    siblings: Sequence[Slice],
    loaded: Mapping[Slice, Rows],
    holdings: Mapping[Slice, Holding],
    none: Rows,
) -> None:
    """Give rows that were loaded, in whatever order, to the slices of their keys.

    `siblings` are all slices of the part; every rank calls it, with `none` of such rows by kind.
    """
    ways = siblings[0].ways
    rows_by_slice = {
        part: {kind: values[rows[KEYS] != EMPTY] for kind, values in rows.items()}
        for part, rows in loaded.items()
    }
    if ways > 1:
        rows_by_slice = _keyed_exchanged(peers, siblings, rows_by_slice, none)
    for part, rows in rows_by_slice.items():
        holdings[part].take(torch.div(rows[KEYS], ways, rounding_mode="floor"), rows)


def _keyed_exchanged(
    peers: Peers, siblings: Sequence[Slice], rows_by_slice: Mapping[Slice, Rows], none: Rows
) -> dict[Slice, Rows]:
    """Rows of each slice's block → rows whose keys lie in it, from all blocks in their order."""
    ways = len(siblings)
    order = sorted(siblings, key=lambda part: (part.rank, part.residue))
    owner = {source: rows[KEYS] % ways for source, rows in rows_by_slice.items()}
    sent_counts = torch.zeros(ways, ways, dtype=torch.int64, device=none[KEYS].device)
    for source, residues in owner.items():
        sent_counts[source.residue] = residues.bincount(minlength=ways)
    counts = peers.all_gather(sent_counts.view(-1)).view(peers.size, ways, ways).sum(0).tolist()
    own_slices = [part for part in order if part.rank == peers.rank]
    incoming = {(source, to): counts[source.residue][to.residue] for source in order for to in own_slices}
    received: dict[Slice, Rows] = {part: {} for part in own_slices}
    for kind, empty in none.items():
        sends = {
            (source, to): rows_by_slice[source][kind][owner[source] == to.residue]
            for source in own_slices
            for to in order
        }
        came = exchanged_rows(peers, sends, incoming, empty)
        for to in own_slices:
            received[to][kind] = torch.cat([empty, *(came[source, to] for source in order)])
    return received


_DENSE_STATES = {"sgd": (), "adagrad": ("step", "sum"), "adam": ("step", "exp_avg", "exp_avg_sq")}


class RecommenderState:
    """The tables and the dense network of an engine."""

    def __init__(self, engine: RecommenderEngine, options: EngineOptions) -> None:
        self.engine, self.options = engine, options
        self._updates = torch.zeros(())
        self._blocks: list[tuple[list[Slice], str, dict[Slice, Tensor]]] = []
        """Copies of rows that ranks hold in turn, to be brought back when they were loaded."""
        self._keyed: list[tuple[list[Slice], dict[Slice, Rows]]] = []
        """Loaded rows of hashed tables, with their keys, to be brought back."""
        self._twins: list[tuple[Tensor, Tensor]] = []
        """Tensors that are loaded, each with another tensor of this rank that must equal it."""

    @property
    def device(self) -> torch.device:
        """Device of the engine; some tables are in host memory."""
        return self.engine.device

    def contents(self) -> Contents:
        """Views of what this rank holds; of rows that ranks hold in turn copies, as blocks."""
        self._blocks, self._twins, self._keyed = [], [], []
        self._updates = torch.tensor(float(self.engine.embeddings.steps))
        contents: Contents = {"updates.tables": unsplit(self._updates)}
        for name, parameter in self.engine.network.named_parameters():
            contents[f"weights.dense.{name}"] = unsplit(parameter, dist.group.WORLD)
            for kind, state in self._dense_states(parameter):
                contents[f"{kind}.dense.{name}"] = unsplit(state, dist.group.WORLD)
        for part in parts_of_tables(self.engine.embeddings.slices):
            if part[0].hashed:
                self._add_keyed(contents, part)
            elif part[0].ways == 1:
                self._add_views(contents, part)
            else:
                self._add_blocks(contents, part)
        return contents

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """No substitutes: every tensor has its own name."""
        return {}

    def make_anew(self, contents: Contents) -> None:
        """Do nothing: no table has rows that only another sharding has."""
        assert not contents

    def spread(self) -> None:
        """Bring loaded blocks back to the ranks that hold their rows in turn."""
        embeddings = self.engine.embeddings
        for loaded, twin in self._twins:
            twin.copy_(loaded)
        for part, kind, blocks in self._blocks:
            none = self._none(part[0], kind)
            for owner, rows in from_blocks(embeddings.peers, part, blocks, none).items():
                for tier, start in embeddings.holdings[owner].tiers():
                    target = tier.tensors[kind]
                    target.copy_(rows[start : start + len(target)])
        for part, rows_of in self._keyed:
            empty = {kind: self._none(part[0], kind) for kind in (KEYS, *embeddings.optimizer.kinds)}
            put_back(embeddings.peers, part, rows_of, embeddings.holdings, empty)
        embeddings.steps, self.engine.filled = int(self._updates), True
        embeddings.sent.take_counts()

    def reads_once(self, rate: float) -> bool:
        """Whether one rank reads for all: true, as the small dense network's ranks would open all its files."""
        return True

    def progress(self, step: int, data: str) -> RecommenderProgress:
        """The progress of the run after `step` steps on this data."""
        engine = self.engine
        return RecommenderProgress(
            **progress_fields(self.options, step, data),
            sharding=str(engine.sharding),
            ranks=engine.places.ranks,
            model=engine.model,
            training=engine.training,
        )

    def _add_views(self, contents: Contents, part: list[Slice]) -> None:
        for piece, holding in self._held(part).items():
            for tier, start in holding.tiers():
                for kind, values in tier.tensors.items():
                    self._add(contents, piece, kind, values, piece.first + start)

    def _add_blocks(self, contents: Contents, part: list[Slice]) -> None:
        embeddings = self.engine.embeddings
        for kind in embeddings.optimizer.kinds:
            own_rows = {piece: _rows(holding, kind) for piece, holding in self._held(part).items()}
            blocks = to_blocks(embeddings.peers, part, own_rows, self._none(part[0], kind))
            self._blocks.append((part, kind, blocks))
            for piece, block in blocks.items():
                self._add(contents, piece, kind, block, piece.first + block_rows(piece)[0])
        embeddings.sent.take_counts()

    def _add_keyed(self, contents: Contents, part: list[Slice]) -> None:
        loaded = {}
        for piece, holding in self._held(part).items():
            loaded[piece] = rows_with_keys(piece, holding)
            for kind, values in loaded[piece].items():
                self._add(contents, piece, kind, values, piece.rows_before)
        self._keyed.append((part, loaded))

    def _held(self, part: list[Slice]) -> dict[Slice, Holding]:
        """Slices of a part that this rank holds."""
        holdings = self.engine.embeddings.holdings
        return {piece: holdings[piece] for piece in part if piece in holdings}

    def _add(self, contents: Contents, owner: Slice, kind: str, values: Tensor, row: int) -> None:
        """Add rows from `row` on of a slice's columns."""
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

    def _none(self, piece: Slice, kind: str) -> Tensor:
        """An empty tensor with the row shape and type of a slice's `kind`."""
        embeddings = self.engine.embeddings
        if kind == KEYS:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        by_row = embeddings.optimizer.by_row and kind != "weights"
        dtype = embeddings.table_dtype if kind == "weights" else torch.float32
        return torch.empty((0,) if by_row else (0, piece.width), dtype=dtype, device=self.device)

    def _dense_states(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """States of the dense network's optimizer; those that no step has made yet are made here."""
        optimizer, kind = self.engine.dense_optimizer, self.engine.training.dense_optimizer
        state = optimizer.state[parameter]
        for name in _DENSE_STATES[kind]:
            if name not in state:
                state[name] = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
            yield name, state[name]


def _rows(holding: Holding, kind: str) -> Tensor:
    """All rows of a slice, on the device."""
    return torch.cat([tier.tensors[kind].to(holding.link.device) for tier, _ in holding.tiers()])
