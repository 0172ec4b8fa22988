"""Server of the explorer: its page, style and script, answers as they are computed, on a port of this machine only."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cost_models.errors import InputError, RunError
from meshwright.explorer.answers import STREAMS, Workers, told_error
from meshwright.explorer.questions import GROUPS, LONGEST, Control, Start, choices, sought, values_of
from meshwright.pages.html import templates

SLOTS = ("error", "answer", "ends", "why", "step", "layouts", "memory", "ranking", "changes", "plan")
"""Places of the parts, in their order on the page."""


def page_of(start: Start, said: Mapping[str, str]) -> str:
    """Render the page with the controls of the address; wrong values are left to the answer."""
    shown = {**sought(start, {}).shown, **start.names}
    return (
        templates("meshwright.explorer")
        .get_template("page.html.j2")
        .render(
            title="Meshwright explorer",
            about=f"{start.model.name} on {start.cluster.name}",
            groups=GROUPS,
            said=said,
            shown=shown,
            longest=LONGEST,
            slots=SLOTS,
            choices={control.name: _choices(start, control, said) for control in _listed()},
        )
    )


def _listed() -> list[Control]:
    return [one for group in GROUPS.values() for one in group if one.catalogue not in ("", "choice")]


def _choices(start: Start, control: Control, address: Mapping[str, str]) -> list[str]:
    """Choices of a control, and an unknown value of the address, which the answer refuses."""
    names = choices(start, control.catalogue)
    return list(dict.fromkeys([*names, *filter(None, [address.get(control.name, "")[:LONGEST]])]))


_HOSTS = ["127.0.0.1", "localhost"]
"""Names this machine has for itself: another is a stranger's page that was pointed here."""
_KEPT = 64
"""Answers that are kept, for the back button."""
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; "
    "img-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}


def server_of(start: Start, processes: int) -> Starlette:
    """Web application with its worker processes."""
    answers: OrderedDict[str, list[bytes]] = OrderedDict()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.workers = Workers(start, processes)
        try:
            yield
        finally:
            app.state.workers.close()

    def page(request: Request) -> Response:
        return Response(page_of(start, request.query_params), media_type="text/html", headers=_SAFE)

    def stream(request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Response("asked from another page", status_code=403, headers=_SAFE)
        address = request.query_params.multi_items()
        return _Lines(_lines(request.url.path, address, request.app.state.workers, answers))

    routes = [
        Route("/", page, methods=["GET"]),
        *(Route(f"/{name}", _file(name, kind), methods=["GET"]) for name, kind in _FILES.items()),
        *(Route(f"/{name}", stream, methods=["GET"]) for name in STREAMS),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts], lifespan=lifespan)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    """Handler of a file of the page; its style begins with the style of reports."""
    places = [files("meshwright.explorer") / name]
    if kind == "text/css":
        places.insert(0, files("meshwright.pages") / name)
    content = "\n".join(place.read_text(encoding="utf-8") for place in places)
    return lambda request: Response(content, media_type=kind, headers=_SAFE)


async def _lines(
    path: str, address: Sequence[tuple[str, str]], workers: Workers, answers: OrderedDict[str, list[bytes]]
) -> AsyncIterator[bytes]:
    """A line of JSON for each part."""
    lines, failed = [], False
    try:
        values = values_of(address)
        key = json.dumps([path, values], sort_keys=True)
        if key in answers:
            answers.move_to_end(key)
            for line in answers[key]:
                yield line
            return
        async with aclosing(workers.ask(path.removeprefix("/"), values)) as parts:
            async for message in parts:
                failed |= message.get("slot") == "error"
                lines.append(_line(message))
                yield lines[-1]
    except (InputError, RunError) as error:
        for message in told_error(error):
            yield _line(message)
        return
    if failed:  # which may not happen again
        return
    answers[key] = lines
    while len(answers) > _KEPT:
        answers.popitem(last=False)


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class _Lines(Response):
    """Lines that are sent as they come; when the page asks for something else, what makes them is ended."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(headers=_SAFE)
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = {asyncio.ensure_future(self._send(send)), asyncio.ensure_future(_gone(receive))}
        done, others = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for one in done:
            one.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for line in self._lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    """Wait until nobody listens any more."""
    while (await receive())["type"] != "http.disconnect":
        pass


HOST = "127.0.0.1"
"""The only address: whoever may open the page may have this machine search."""
PORT = 8642
MOST_PORT = 65535
_TRIED = 50
"""Ports looked at for a free one."""
_MOST_PROCESSES = 4


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
