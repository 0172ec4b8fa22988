"""Opens the explorer's port on this machine and serves it until Ctrl-C."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from cost_models.errors import InputError, require_installed
from meshwright.explorer.starting import Start

HOST = "127.0.0.1"
"""The only address: whoever may open the page may have this machine search."""
PORT = 8642
MOST_PORT = 65535
_TRIED = 50
"""Ports looked at for a free one."""
_MOST_PROCESSES = 4


def require_server() -> None:
    """Raises HostError where the packages of the extra are missing."""
    require_installed("`explore`", starlette="starlette>=0.40", uvicorn="uvicorn>=0.30")


def listening(port: int | None) -> socket.socket:
    """A socket at the port, or at the first free one from the usual on.

    Raises:
        InputError: the port is taken, or may not be opened.
    """
    for tried in (port,) if port is not None else range(PORT, PORT + _TRIED):
        with suppress(OSError):
            return _bound(tried)
    if port is None:
        raise InputError(f"ports {PORT} to {PORT + _TRIED - 1} are taken", hint="name one with --port")
    free = _free_after(port)
    raise InputError(
        f"port {port} is taken, or may not be opened", hint=f"--port {free} is free" if free else ""
    )


def serve(start: Start, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Answer until Ctrl-C; `ready` is called when the page can be opened."""
    import uvicorn

    from meshwright.explorer.server import server_of

    class _Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.workers.close()  # so that answers under way end by themselves
            await super().shutdown(sockets)

    processes = max(2, min(_MOST_PROCESSES, os.cpu_count() or 1))
    app = server_of(start, processes)
    settings = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    with suppress(KeyboardInterrupt):
        _Server(settings).run(sockets=[listener])


def _bound(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # else a port in use could be opened twice
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _free_after(port: int) -> int | None:
    for tried in range(max(port, 1023) + 1, min(max(port, 1023) + _TRIED, MOST_PORT) + 1):
        with suppress(OSError):
            _bound(tried).close()
            return tried
    return None
