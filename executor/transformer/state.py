"""A transformer's training state in checkpoints, under names that no layout changes.

    weights.NAME       fp32: the master copy where weights are 16 bits wide
    exp_avg.NAME       first moment of AdamW and LAMB      exp_avg_sq.NAME  its second
    step.NAME          number of updates of the parameter
    random.PLACE.RANK  a generator's state; of use to the same layout only

NAME is the parameter's place in the whole model, as `executor.models` names it. A `DTensor` knows which part of the
whole it is; for parameters that are parts without being a `DTensor` their module answers `parts_of_wholes()`; any other
is taken to be whole on every rank that has it. Tensors that follow these rules can be resharded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from executor.checkpoints.contents import Box, Contents, Held, Piece, boxes_of_range, whole
from executor.checkpoints.manifest import Progress, descent_of
from executor.engine.engine import Engine
from executor.engine.lamb import Lamb
from executor.mesh import local
from executor.models.transformer import TIED

_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    Lamb: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),
}
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


class TransformerState:
    """The weights and optimizer states of an engine; make it right after the engine, before the first step."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._names = engine, parameter_names(engine.parts)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.engine.device

    def contents(self) -> Contents:
        """Views of what this rank holds."""
        return training_state(self.engine, self._names)

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """A tied head that was not saved is loaded from the embedding."""
        tied = TIED if self.engine.plan.model.tied_embeddings else {}
        kinds = {name.partition(".")[0] for name in contents}
        return {f"{kind}.{copy}": f"{kind}.{of}" for kind in kinds for copy, of in tied.items()}

    def spread(self) -> None:
        """Copy loaded weights to all places where they are used."""
        self.engine.optimizer.spread()

    def progress(self, step: int, data: str) -> Progress:
        """The progress of the run after `step` steps on this data."""
        plan, options = self.engine.plan, self.engine.options
        return Progress(
            step=step,
            seed=options.seed,
            learning_rate=options.rate.at(step),
            descent=descent_of(options),
            data=data,
            layout=plan.layout,
            model=plan.model,
            training=plan.training,
        )


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter's name, the shape of the whole of which it is a part, and where in that it begins."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


@runtime_checkable
class Parted(Protocol):
    """A module some of whose own parameters are parts of larger ones, as those of the experts on one rank are."""

    def parts_of_wholes(self) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Name of the parameter in this module → (shape of the whole, where the part begins)."""


def parameter_names(parts: Sequence[nn.Module]) -> dict[int, Named]:
    """id of each parameter → its name and place; take them before anything gathers or swaps parameters."""
    names: dict[int, Named] = {}
    for part in parts:
        for prefix, module in part.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                names.setdefault(id(parameter), _named(prefix, name, parameter, module))
    return names


def training_state(engine: Engine, names: dict[int, Named]) -> Contents:
    """Views of this rank's weights and optimizer states; states that no step has made yet are made here."""
    contents: Contents = {}
    for flat in engine.optimizer.flats:
        states = {"weights": flat.shard.detach()} | _states(flat.optimizer, flat.shard)
        for parameter, begin, end, start in flat.owned():
            named = names[id(parameter)]
            _add(contents, named, _boxes(parameter, named, begin, end), states, start)
    if engine.optimizer.flats:
        return contents
    for parameter, updated, optimizer in engine.optimizer.updated():
        mine = local(updated.detach())
        named = names[id(parameter)]
        states = {"weights": mine} | _states(optimizer, updated)
        _add(contents, named, _boxes(parameter, named, 0, mine.numel()), states, 0)
    return contents


def _add(contents: Contents, named: Named, boxes: list[Box], states: dict[str, Tensor], start: int) -> None:
    """Add a parameter's weights and states, whose elements begin at `start` in flat tensors."""
    for kind, tensor in states.items():
        key = f"{kind}.{named.name}"
        if tensor.dim() == 0:
            contents[key] = whole(tensor)
            continue
        held = contents[key] = Held(named.shape, tensor.dtype)
        flat, first = tensor.view(-1), start
        for box in boxes:
            held.pieces.append(Piece(box, flat[first : first + box.elements].view(box.sizes)))
            first += box.elements


def _boxes(parameter: nn.Parameter, named: Named, begin: int, end: int) -> list[Box]:
    """Elements `begin` to `end` − 1 of the local tensor, as boxes of the whole."""
    shape, offsets = tuple(parameter.shape), named.offsets
    if isinstance(parameter, DTensor):
        shape, inside = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        offsets = tuple(outer + inner for outer, inner in zip(offsets, inside, strict=True))
    return [box.moved(offsets) for box in boxes_of_range(tuple(shape), begin, end)]


def _named(prefix: str, name: str, parameter: nn.Parameter, module: nn.Module) -> Named:
    shape = tuple(parameter.shape)  # a `DTensor` answers with the shape of the whole
    parts = module.parts_of_wholes() if isinstance(module, Parted) else {}
    whole_shape, offsets = parts.get(name, (shape, (0,) * len(shape)))
    return Named(_plain(f"{prefix}.{name}" if prefix else name), whole_shape, offsets)


def _states(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The optimizer's states of one parameter as plain tensors, as its first step would make them where it has none."""
    moments = _MOMENTS[type(optimizer)]
    state = optimizer.state[parameter]
    if moments and not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for moment in moments:
            state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {kind: local(state[kind].detach()) for kind in ("step", *moments) if kind in state}


def _plain(name: str) -> str:
    """A parameter's name without what wrappers for recompute and compilation add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
