"""A recommender's training state in checkpoints: whole tables by their names, in boxes of any sharding.

weights.tables.NAME    (rows, width)     momentum.tables.NAME   (rows, width), row-wise (rows,)
exp_avg.tables.NAME    exp_avg_sq.tables.NAME                   updates.tables   how many there were
keys.tables.NAME       (rows,) of a hashed table: the key of each row
weights.dense.NAME     and the states of the dense network's optimizer
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from executor.boxes import Box
from executor.checkpoints.contents import Contents, Held, Piece, whole
from executor.checkpoints.manifest import RecommenderProgress, descent_of
from executor.embeddings.holding import Holding
from executor.embeddings.places import Slice
from executor.recommender import resharding
from executor.recommender.engine import RecommenderEngine
from executor.run_config import EngineOptions

_DENSE_STATES = {"sgd": (), "adagrad": ("step", "sum"), "adam": ("step", "exp_avg", "exp_avg_sq")}


class RecommenderState:
    """The tables and the dense network of an engine."""

    def __init__(self, engine: RecommenderEngine, options: EngineOptions) -> None:
        self.engine, self.options = engine, options
        self._updates = torch.zeros(())
        self._blocks: list[tuple[list[Slice], str, dict[Slice, Tensor]]] = []
        """Copies of rows that ranks hold in turn, to be brought back when they were loaded."""
        self._keyed: list[tuple[list[Slice], dict[Slice, resharding.Rows]]] = []
        """The same of hashed tables, with their keys."""
        self._twins: list[tuple[Tensor, Tensor]] = []
        """(what is loaded, what else on this rank is the same)."""

    @property
    def device(self) -> torch.device:
        """Where it lies; some tables are in host memory."""
        return self.engine.device

    def contents(self) -> Contents:
        """Views of what this rank holds; of rows that ranks hold in turn copies, as blocks."""
        self._blocks, self._twins, self._keyed = [], [], []
        self._updates = torch.tensor(float(self.engine.embeddings.steps))
        contents: Contents = {"updates.tables": whole(self._updates)}
        for name, parameter in self.engine.network.named_parameters():
            contents[f"weights.dense.{name}"] = whole(parameter, dist.group.WORLD)
            for kind, state in self._dense_states(parameter):
                contents[f"{kind}.dense.{name}"] = whole(state, dist.group.WORLD)
        for part in self._parts():
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
        """Nothing: no table has rows that only another sharding has."""
        assert not contents

    def spread(self) -> None:
        """Bring loaded blocks back to the ranks that hold their rows in turn."""
        embeddings = self.engine.embeddings
        for loaded, twin in self._twins:
            twin.copy_(loaded)
        for part, kind, blocks in self._blocks:
            none = self._none(part[0], kind)
            for one, rows in resharding.from_blocks(embeddings.peers, part, blocks, none).items():
                for tier, start in embeddings.held[one].tiers():
                    target = tier.weights if kind == "weights" else tier.states[kind]
                    target.copy_(rows[start : start + len(target)])
        for part, rows_of in self._keyed:
            kinds = (resharding.KEYS, "weights", *embeddings.optimizer.state_names)
            empty = {kind: self._none(part[0], kind) for kind in kinds}
            resharding.put_back(embeddings.peers, part, rows_of, embeddings.held, empty)
        embeddings.steps, self.engine.filled = int(self._updates), True
        embeddings.sent.taken()

    def reads_once(self, rate: float) -> bool:
        """Of the dense network, which is small: its ranks would open all its files."""
        return True

    def progress(self, step: int, data: str) -> RecommenderProgress:
        """The progress of the run after `step` steps on this data."""
        engine, options = self.engine, self.options
        return RecommenderProgress(
            step=step,
            seed=options.seed,
            learning_rate=options.rate.at(step),
            descent=descent_of(options),
            data=data,
            sharding=str(engine.sharding),
            ranks=engine.places.ranks,
            model=engine.model,
            training=engine.training,
        )

    def _parts(self) -> list[list[Slice]]:
        """Slices of each part of a table, all ranks' together, in the order of their numbers."""
        parts: dict[tuple[int, int], list[Slice]] = {}
        for one in self.engine.embeddings.slices:
            parts.setdefault((one.table, one.first), []).append(one)
        return list(parts.values())

    def _add_views(self, contents: Contents, part: list[Slice]) -> None:
        for one in part:
            if one not in self.engine.embeddings.held:
                continue
            holding = self.engine.embeddings.held[one]
            for tier, start in holding.tiers():
                for kind, values in {"weights": tier.weights, **tier.states}.items():
                    self._add(contents, one, kind, values, one.first + start)

    def _add_blocks(self, contents: Contents, part: list[Slice]) -> None:
        embeddings = self.engine.embeddings
        for kind in ("weights", *embeddings.optimizer.state_names):
            mine = {one: _rows(embeddings.held[one], kind) for one in part if one in embeddings.held}
            blocks = resharding.to_blocks(embeddings.peers, part, mine, self._none(part[0], kind))
            self._blocks.append((part, kind, blocks))
            for one, block in blocks.items():
                self._add(contents, one, kind, block, one.first + resharding.block_rows(one)[0])
        embeddings.sent.taken()

    def _add_keyed(self, contents: Contents, part: list[Slice]) -> None:
        held, loaded = self.engine.embeddings.held, {}
        for one in part:
            if one in held:
                kinds = {
                    kind: _rows(held[one], kind)
                    for kind in ("weights", *self.engine.embeddings.optimizer.state_names)
                }
                loaded[one] = resharding.rows_with_keys(one, held[one], kinds)
                for kind, values in loaded[one].items():
                    self._add(contents, one, kind, values, one.rows_before)
        self._keyed.append((part, loaded))

    def _add(self, contents: Contents, one: Slice, kind: str, values: Tensor, row: int) -> None:
        """Add rows from `row` on of a slice's columns."""
        table = self.engine.embeddings.tables[one.table]
        dims = values.dim()
        shape, offsets = (table.rows, table.width)[:dims], (row, one.begin)[:dims]
        name = f"{kind}.tables.{self.engine.model.table_names[one.table]}"
        held = contents.setdefault(name, Held(shape, values.dtype))
        box = Box(offsets, tuple(values.shape))
        if not box.elements:
            return
        for piece in held.pieces:
            if piece.box == box:
                self._twins.append((piece.tensor, values))
                return
        held.pieces.append(Piece(box, values))

    def _none(self, one: Slice, kind: str) -> Tensor:
        """An empty tensor with the row shape and type of a slice's `kind`."""
        embeddings = self.engine.embeddings
        if kind == resharding.KEYS:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        by_row = embeddings.optimizer.by_row and kind != "weights"
        dtype = embeddings.table_dtype if kind == "weights" else torch.float32
        return torch.empty((0,) if by_row else (0, one.width), dtype=dtype, device=self.device)

    def _dense_states(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """States of the dense network's optimizer; those that no step has made yet are made here."""
        optimizer, kind = self.engine.dense_optimizer, self.engine.training.dense_optimizer
        state = optimizer.state[parameter]
        for name in _DENSE_STATES[kind]:
            if name not in state:
                zeros = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
                state[name] = zeros
            yield name, state[name]


def _rows(holding: Holding, kind: str) -> Tensor:
    """All rows of a slice, on the device."""
    tiers = [tier.weights if kind == "weights" else tier.states[kind] for tier, _ in holding.tiers()]
    return torch.cat([one.to(holding.link.device) for one in tiers])
