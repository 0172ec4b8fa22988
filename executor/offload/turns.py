"""Carries out the window's list of moves (`cost_models.axes.offload.window`) around the passes of a rank's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from cost_models.axes.offload.window import Move, Turn
from executor.offload.flats import StatesOnHost
from executor.passes import Passes


class Window:
    """Carries the turns of a step out as the blocks of a rank run: whatever is done, and when, is in that list."""

    def __init__(
        self,
        turns: Sequence[Turn],
        modules: Mapping[int, nn.Module],
        flats: Mapping[int, Sequence[StatesOnHost]],
        passes: Passes,
    ) -> None:
        self._turns, self._flats, self._passes = turns, flats, passes
        self._at = 0
        self._aside: int | None = None
        for block, module in modules.items():
            module.register_forward_pre_hook(partial(self._before_forward, block))
            module.register_forward_hook(partial(self._after_forward, block))
        for block, own in flats.items():
            for flat in own:
                flat.when_passed = partial(self._after_backward, block)

    def begin(self) -> None:
        """A step begins."""
        self._at = 0
        self._backward = dict.fromkeys(self._flats, 0)
        self._open: Turn | None = None

    def end(self) -> None:
        """All passes of the step are over."""
        self._close()
        assert self._at == len(self._turns)

    def _before_forward(self, block: int, *_: Any) -> None:
        self._before("F", block)

    def _after_forward(self, block: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: self._before("B", block))  # type: ignore[no-untyped-call]
        self._close()

    def _after_backward(self, block: int) -> None:
        runs = self._open is not None and self._open.use[:2] == ("B", block)
        if runs and all(flat.passes_done == self._backward[block] for flat in self._flats[block]):
            self._close()

    def _before(self, kind: str, block: int) -> None:
        self._close()
        self._end_aside()
        if not self._passes.running:
            self._run_aside(block)
            return
        turn = self._turns[self._at]
        assert turn.use[:2] == (kind, block), f"{kind}{block} runs, and {turn.use} was to"
        self._at += 1
        self._open = turn
        if kind == "B" and block in self._backward:
            self._backward[block] += 1
        self._make(turn.before)
        for flat in self._flats.get(block, ()):
            flat.await_weights()

    def _run_aside(self, block: int) -> None:
        """Have the weights for a pass that belongs to no step, until the next."""
        self._aside = block
        for flat in self._flats.get(block, ()):
            flat.await_weights()

    def _end_aside(self) -> None:
        block, self._aside = self._aside, None
        for flat in () if block is None else self._flats.get(block, ()):
            flat.drop()

    def _close(self) -> None:
        """Do what comes after the turn that is open; a backward pass is over when another turn begins at the latest."""
        turn, self._open = self._open, None
        if turn is None:
            return
        for flat in self._flats.get(turn.use.block, ()):
            flat.end_pass()
        self._make(turn.after)

    def _make(self, moves: Sequence[Move]) -> None:
        for move in moves:
            for flat in self._flats[move.block]:
                _DONE_BY[move.what](flat)


_DONE_BY: dict[str, Callable[[StatesOnHost], None]] = {
    "load": lambda flat: flat.load(),
    "drop": lambda flat: flat.drop(),
    "down": lambda flat: flat.take_gradients_down(),
    "update": lambda flat: flat.update_at_once(),
}
