"""Processes that answer: each has one question at a time, and one that nobody waits for any more is ended with it."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import traceback
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

from cost_models.errors import RunError
from executor.launch.environment import imports_of_workers

if TYPE_CHECKING:
    from meshwright.explorer.answers import Message
    from meshwright.explorer.starting import Start

_ANSWERS = "meshwright.explorer.answers"
_PICTURES = (
    "matplotlib.backends.backend_svg",
    "meshwright.plots.curves.tradeoff",
    "meshwright.plots.timeline",
)


class Workers:
    """A few processes, of which every question takes the first that is free."""

    def __init__(self, start: Start, number: int) -> None:
        context = _context()
        self.all = [_Worker(context, start) for _ in range(number)]
        self._closed = False
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        for one in self.all:
            self._free.put_nowait(one)

    async def ask(self, stream: str, values: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        """What one stream says of the controls, as it becomes known; who stops to listen ends the work.

        Raises:
            RunError: the process has ended.
        """
        worker = await self._free.get()
        done = False
        try:
            async for message in worker.ask(stream, values):
                yield message
            done = True
        finally:
            if not done and not self._closed:
                worker.replace()
            self._free.put_nowait(worker)

    def close(self) -> None:
        """End all of them, and with them what they answer."""
        self._closed = True
        for one in self.all:
            one.close()


class _Worker:
    """A process, and the pipe to it."""

    def __init__(self, context: BaseContext, start: Start) -> None:
        self._context, self._start = context, start
        self._begin()

    async def ask(self, stream: str, values: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        try:
            self._pipe.send((stream, dict(values)))
            while (message := await asyncio.to_thread(self._pipe.recv)) is not None:
                yield message
        except (EOFError, OSError):
            raise RunError(
                "the process that searched has ended", hint="a smaller question may need less memory"
            ) from None

    @property
    def pid(self) -> int | None:
        """Which process it is."""
        pid: int | None = self._process.pid
        return pid

    def replace(self) -> None:
        """End what it does; a new process takes its place."""
        self.close()
        self._begin()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _begin(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, self._start), daemon=True)  # type: ignore[attr-defined]
        with imports_of_workers():
            self._process.start()
        theirs.close()


def _serve(pipe: Connection, start: Start) -> None:
    """What a process does: answer, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    from meshwright.explorer.answers import STREAMS, told_error

    with suppress(EOFError, OSError):
        while True:
            stream, values = pipe.recv()
            try:
                for message in STREAMS[stream](start, values):
                    pipe.send(message)
            except (EOFError, OSError):
                raise
            except Exception as error:  # a defect of ours is said in the page too, and ends no process
                traceback.print_exc()
                for message in told_error(RunError(f"this is a defect: {type(error).__name__}")):
                    pipe.send(message)
            pipe.send(None)


def _context() -> BaseContext:
    """How processes begin: as forks of one that has imported everything, where the system has that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_ANSWERS, *_PICTURES])
    return context
