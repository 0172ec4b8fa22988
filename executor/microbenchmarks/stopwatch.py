"""Repeated timings of small operations, and the sizes at which they are timed.

Sizes are those of a small model on a CPU and of a large one on a GPU. Calls are warmed up and repeated within a budget;
median and fastest are kept. Operands stay as cold as in a model: several copies of a call run in turn, their results
kept for a round. A call repeated on one set of operands finds them in the first cache, which no layer of a model does;
on a CPU that flatters matrix products by 5 to 10 %.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate, pairwise, product, repeat, takewhile
from operator import mul
from typing import Any

import torch
import torch.distributed as dist
import yaml

from cost_models.measured.calibration.microbenchmarks import Kind, Measurement
from cost_models.specs.cluster import Precision
from executor.embeddings.collection import DTYPES
from executor.timing import compute_seconds, finish, lap_between, mark_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes at which all microbenchmarks are measured."""

    precision: Precision
    products: tuple[tuple[int, int, int], ...]
    """Shapes (tokens, columns out, inner) of the products of linear layers."""
    repeated_products: tuple[tuple[int, int, int], ...]
    """Shapes (tokens, columns out, inner) of products that are repeated on the same operands, for the peak rate."""
    sustained_seconds: float
    """Seconds for which the largest of `products` runs without a gap."""
    head_dims: tuple[int, ...]
    sequences: tuple[int, ...]
    attention_tokens: int
    """Heads × sequence length of one attention call, enough to fill the device."""
    elements: tuple[int, ...]
    """Numbers of elements of element-wise operators."""
    width: int
    """Width of the rows that element-wise operators work on."""
    cold_bytes: int
    """Bytes over which operands of repeated calls are spread, more than the cache next to a core."""
    memory_bytes: tuple[int, ...]
    """Bytes of the arrays that measure memory bandwidth: inside the caches, and far beyond them."""
    optimizer_shapes: tuple[tuple[int, int], ...]
    """(tensors, parameters of each tensor) of each timed update."""
    block_parameters: int
    """Parameters of a block that the host updates."""
    copied_bytes: int
    """Bytes of one copy between device and host."""
    overlapped_side: int
    """Rows, columns and inner dimension of the products beside which updates run."""
    table_bytes: int
    """Bytes of an embedding table, beyond all caches."""
    table_widths: tuple[int, ...]
    """Elements of a table's row, in fp32; each width divides the table."""
    poolings: tuple[float, ...]
    """Rows in a bag; below 1, the share of bags that have one row."""
    table_ids: int
    """Number of ids in one lookup."""
    messages: tuple[int, ...]
    """Bytes of the full tensor in collectives."""
    rounds: int
    """Rounds of all measurements; the fastest quarter of rounds counts."""

    def tensor(self, device: torch.device, *shape: int) -> torch.Tensor:
        """Tensor of random values in the training precision."""
        return torch.randn(shape, device=device).to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Torch type of values in the training precision; those of fp8 are kept in 16 bits."""
        return DTYPES.get(self.precision, torch.bfloat16)

    @property
    def element_bytes(self) -> int:
        """Bytes of one value in the training precision."""
        return self.dtype.itemsize

    def heads(self, sequence: int) -> int:
        """Number of heads of one attention call on sequences of this length."""
        return max(1, self.attention_tokens // sequence)


def scale_of(device: str, precision: Precision | None = None, *, quick: bool) -> Scale:
    """Sizes for a kind of device (`cpu` or `cuda`) in a precision (None: its usual one); fewer sizes if `quick`."""
    text = (files("executor.microbenchmarks") / "scales.yaml").read_text(encoding="utf-8")
    sizes = yaml.safe_load(text)[device]
    fields = sizes["full"] | sizes["quick"] if quick else sizes["full"]
    linears, layers = fields.pop("linears"), [(3, 1), (1, 1), (4, 1), (1, 4)]
    shapes = product(linears["tokens"], linears["widths"], layers)
    fields["products"] = [*([m, n * h, k * h] for m, h, (n, k) in shapes), *fields["products"]]
    smallest, largest, factor = (fields["messages"][name] for name in ("smallest", "largest", "factor"))
    sizes = accumulate(repeat(factor), mul, initial=smallest)
    fields["messages"] = list(takewhile(lambda size: size <= largest, sizes))
    fields["precision"] = precision or fields["precision"]
    return Scale(**{name: _frozen(value) for name, value in fields.items()})


def _frozen(value: Any) -> Any:
    """The value with all lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


Call = Callable[[], object]
_LEAST_REPEATS = 3
_MOST_REPEATS = 100
_BATCHES = 8
"""Timed batches of launches on a GPU, as one launch alone would measure launching."""

_WINDOWS = 20
"""Number of windows into which a long run of one call is cut, if it has as many calls."""

_SLEEP_CYCLES = 2_000_000
"""GPU cycles, about a millisecond, in which launches queue up, so that events see the device's time and not the
host's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call: typical and fastest repetition."""

    seconds: float
    """Seconds of the typical repetition. A step adds up hundreds of calls, so even the fastest step is a sum of typical
    ones.
    """
    quiet: float
    """Seconds of the fastest repetition."""

    @staticmethod
    def of(times: Sequence[float]) -> Timing:
        """Timing of a call, from the seconds of its repetitions."""
        return Timing(seconds=statistics.median(times), quiet=min(times))

    def shared(self, by: float) -> Timing:
        """Timing of one operation, where the timed call ran `by` of them: the call's times divided by `by`."""
        return Timing(seconds=self.seconds / by, quiet=self.quiet / by)

    def without(self, seconds: float, least_share: float) -> Timing:
        """Timing after `seconds` of another call are subtracted; at least `least_share` of each time is left, as
        both are noisy.
        """
        typical, quiet = (max(time - seconds, least_share * time) for time in (self.seconds, self.quiet))
        return Timing(seconds=typical, quiet=quiet)

    def row(self, kind: Kind, name: str, size: float, shape: tuple[int, ...] = ()) -> Measurement:
        """Measurement of a call of this kind, name, size and shape, with these times."""
        return Measurement(
            kind=kind, name=name, shape=shape, size=size, seconds=self.seconds, quiet_seconds=self.quiet
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Clock for calls on one device.

    On a CPU the clock is the thread's own time, so that neighbours on a shared machine do not count; work
    that waits for other processes needs `elapsed`. On CUDA events on the stream are the clock.
    """

    device: torch.device
    budget_seconds: float
    """Seconds to spend on repetitions of one measurement."""

    def compute(self, call: Call) -> Timing:
        """Device time of a call, by GPU events, or on a CPU by the thread's own clock."""
        if self.device.type == "cuda":
            return self._events(call)
        return self._clock(call, time.thread_time)

    def sustained(self, call: Call, seconds: float) -> Timing:
        """Device time of a call that runs back to back for `seconds`, measured in the second half of them.

        Nothing waits between windows, so a GPU never idles, and its clocks are those that its power limit allows.
        """
        calls = seconds / self.compute(call).seconds
        windows = min(_WINDOWS, max(2, int(calls)))
        calls_per_window = max(1, int(calls / windows))
        marks = [mark_on(self.device)]
        for _ in range(windows):
            for _ in range(calls_per_window):
                call()
            marks.append(mark_on(self.device))
        self.settle()
        laps = [compute_seconds(lap_between(*pair), self.device) for pair in pairwise(marks)]
        return Timing.of([seconds / calls_per_window for seconds in laps[windows // 2 :]])

    def host(self, call: Call, repeats: int | None = None) -> Timing:
        """Host time until a call returns, without waiting for the device.

        A GPU has nothing to do when a repetition begins, and `call` must launch fewer kernels than its queue holds
        (about a thousand), for then nothing but the host takes time. A call that communicates needs `repeats`, the same
        on every process.
        """
        # backward passes of a GPU launch from a thread of their own
        clock = time.perf_counter if self.device.type == "cuda" else time.thread_time
        timing = self._clock(call, clock, repeats)
        self.settle()
        return timing

    def on_host(self, call: Call, *, own_clock: bool, aside: Call | None = None) -> Timing:
        """Time until a call and the device have finished: wall time, or on a CPU the thread's own if `own_clock`.

        `aside` is done before every repetition, and takes its share of the budget: what else there is in a step, after
        which caches hold neither what `call` computes with nor its instructions.
        """
        uses_thread_clock = own_clock and self.device.type != "cuda"
        clock = time.thread_time if uses_thread_clock else time.perf_counter
        return self._clock(self._settled(call), clock, aside=aside)

    def elapsed(
        self, call: Call, repeats: int, *, aside: Call | None = None, group: dist.ProcessGroup | None = None
    ) -> Timing:
        """Wall time of a call that every process makes equally often, as collectives must match.

        `aside` is done before every repetition: what a step computes between two collectives. Of the processes of a
        `group` the one that came last counts in each, which waits for nobody.

        The typical value is the lower quartile: waking the other side is part of the cost, a neighbour's slice
        is not.
        """
        call()
        times = self._times(self._settled(call), time.perf_counter, repeats, aside)
        if group is not None:
            shortest = torch.tensor(times, dtype=torch.float64, device=self.device)
            dist.all_reduce(shortest, dist.ReduceOp.MIN, group=group)
            times = shortest.tolist()
        return Timing(seconds=statistics.quantiles(times, n=4)[0], quiet=min(times))

    def settle(self) -> None:
        """Wait until the device has finished."""
        finish(self.device)

    def _settled(self, call: Call) -> Call:
        """The call followed by a wait for the device."""

        def settled() -> None:
            """Make the call and wait for the device."""
            call()
            self.settle()

        return settled

    def _clock(
        self, call: Call, clock: Callable[[], float], repeats: int | None = None, aside: Call | None = None
    ) -> Timing:
        """Timing of a call by this clock, from `repeats` repetitions, or by default as many as the budget allows."""
        call()
        start = time.perf_counter()
        if aside is not None:
            aside()
        call()
        once = time.perf_counter() - start
        return Timing.of(self._times(call, clock, repeats or self._repeats(once), aside))

    def _times(self, call: Call, clock: Callable[[], float], repeats: int, aside: Call | None) -> list[float]:
        """Seconds of each of `repeats` calls. Before each, `aside` is run and the device finishes its work."""
        times = []
        for _ in range(repeats):
            if aside is not None:
                aside()
            self.settle()
            begin = clock()
            call()
            times.append(clock() - begin)
        return times

    def _events(self, call: Call) -> Timing:
        """Timing of a call by GPU events around batches of launches."""
        call()
        self.settle()
        start = time.perf_counter()
        call()
        self.settle()
        launches = max(1, self._repeats(time.perf_counter() - start) // _BATCHES)
        times = []
        for _ in range(_BATCHES):
            torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
            begin = mark_on(self.device)
            for _ in range(launches):
                call()
            end = mark_on(self.device)
            self.settle()
            times.append(lap_between(begin, end).wall / launches)
        return Timing.of(times)

    def _repeats(self, once: float) -> int:
        """Number of repetitions that fit into the budget, if one takes `once` seconds."""
        repeats = int(self.budget_seconds / max(once, 1e-9))
        return max(_LEAST_REPEATS, min(_MOST_REPEATS, repeats))


_MOST_COPIES = 64


def copies(scale: Scale, call_bytes: float) -> int:
    """Number of sets of operands, `call_bytes` each, that overflow the cache next to a core; at most `_MOST_COPIES`."""
    return int(min(_MOST_COPIES, max(1.0, 1 + scale.cold_bytes // max(call_bytes, 1.0))))


def in_turn(calls: Sequence[Call]) -> Call:
    """Function that runs the next of `calls` each time it is called, and keeps each one's result until its next run.

    All have run once when it returns.
    """
    results = [call() for call in calls]
    turn = 0

    def call() -> None:
        """Run the next of the calls and keep its result."""
        nonlocal turn
        results[turn] = calls[turn]()
        turn = (turn + 1) % len(calls)

    return call
