"""Web server of the explorer: page, style, script, and answers streamed as they are computed; on this machine
only."""

from __future__ import annotations

import json
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from importlib.resources import files
from typing import get_args

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cost_models.errors import InputError, RunError
from cost_models.files import catalog
from cost_models.specs.cluster import Precision
from meshwright.explorer.answers import Worker, error_messages
from meshwright.explorer.questions import CONTROLS, GROUPS, LONGEST, Start, read_controls, values_of
from meshwright.pages.html import templates

SLOTS = ("error", "answer", "ends", "why", "step", "layouts", "memory", "ranking", "changes", "plan")
"""Places for sections of the answer, in their order on the page."""


def page_of(start: Start, address: Mapping[str, str]) -> str:
    """Render the page with its controls set from the URL's query; wrong values are refused later, by the answer."""
    choices, values = {}, read_controls(start, {}).control_values
    for one in CONTROLS.values():
        if one.catalogue not in ("", "choice"):
            names = get_args(Precision)
            if one.catalogue != "precision":  # the first is that of the question
                names = (values[one.name], *sorted(catalog.names(one.catalogue)))  # type: ignore[arg-type]
            unknown = address.get(one.name, "")[:LONGEST]  # which the answer refuses
            choices[one.name] = dict.fromkeys(filter(None, [*names, unknown]))
    return (
        templates("meshwright.explorer")
        .get_template("page.html.j2")
        .render(
            title="Meshwright explorer",
            about=f"{start.question.model.name} on {start.question.cluster.name}",
            groups=GROUPS,
            said=address,
            shown=values,
            longest=LONGEST,
            slots=SLOTS,
            choices=choices,
        )
    )


_HOSTS = ["127.0.0.1", "localhost"]
"""Host names accepted in requests; another name means that a foreign page points here."""
_MAX_ANSWERS = 64
"""Largest number of answers that are cached, for the browser's back button."""
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; "
    "img-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}


def server_of(start: Start) -> Starlette:
    """Web application of the explorer, with its worker process."""
    answers: OrderedDict[str, list[bytes]] = OrderedDict()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Start the worker process with the application, and kill it at the end."""
        app.state.worker = Worker(start)
        try:
            yield
        finally:
            app.state.worker.close()

    def page(request: Request) -> Response:
        """Respond with the explorer's page."""
        return Response(page_of(start, request.query_params), media_type="text/html", headers=_SAFE)

    def stream(request: Request) -> Response:
        """Stream the answer while it is computed; when the browser leaves, the computation ends."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Response("asked from another page", status_code=403, headers=_SAFE)
        address = request.query_params.multi_items()
        lines = answer_lines(address, request.app.state.worker, answers)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=_SAFE)

    routes = [
        Route("/", page, methods=["GET"]),
        *(Route(f"/{name}", _file(name, kind), methods=["GET"]) for name, kind in _FILES.items()),
        Route("/answer", stream, methods=["GET"]),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts], lifespan=lifespan)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    """Make the handler of a static file; for style sheets, the style of report pages comes first."""
    places = [files("meshwright.explorer") / name]
    if kind == "text/css":
        places.insert(0, files("meshwright.pages") / name)
    content = "\n".join(place.read_text(encoding="utf-8") for place in places)
    return lambda request: Response(content, media_type=kind, headers=_SAFE)


async def answer_lines(
    address: Sequence[tuple[str, str]], worker: Worker, answers: OrderedDict[str, list[bytes]]
) -> AsyncIterator[bytes]:
    """Stream an answer as lines of JSON, a line per section; answers without errors are cached in `answers`."""
    lines: list[bytes] = []
    try:
        values = values_of(address)
        key = json.dumps(values, sort_keys=True)
        if key in answers:
            answers.move_to_end(key)
            for line in answers[key]:
                yield line
            return
        failed = False
        async with aclosing(worker.ask(values)) as parts:
            async for message in parts:
                failed |= message.get("slot") == "error"
                lines.append(_line(message))
                yield lines[-1]
    except (InputError, RunError) as error:
        for message in error_messages(error):
            yield _line(message)
        return
    if not failed:
        answers[key] = lines
        while len(answers) > _MAX_ANSWERS:
            answers.popitem(last=False)


def _line(message: Mapping[str, object]) -> bytes:
    """Message as a line of JSON."""
    return json.dumps(message).encode() + b"\n"


HOST = "127.0.0.1"
"""Address that the server listens at: this machine only, since anyone who can open the page can start searches."""
PORT = 8642
_TRIED = 50
"""Number of ports tried in search of a free one."""


def listening(port: int | None) -> socket.socket:
    """Listening socket at `port`; for None, at the first free port from 8642 on.

    Raises:
        InputError: the port is taken, or may not be opened.
    """
    if listener := _first_free(range(PORT, PORT + _TRIED) if port is None else [port]):
        return listener
    if port is None:
        raise InputError(f"ports {PORT} to {PORT + _TRIED - 1} are taken", hint="name one with --port")
    first = max(port, 1023) + 1
    hint = ""
    if listener := _first_free(range(first, min(first + _TRIED, 65536))):
        with listener:
            hint = f"--port {listener.getsockname()[1]} is free"
    raise InputError(f"port {port} is taken, or may not be opened", hint=hint)


def _first_free(ports: Iterable[int]) -> socket.socket | None:
    """Listening socket at the first of these ports that can be opened; None if none can."""
    for port in ports:
        with suppress(OSError):
            return socket.create_server((HOST, port))
    return None


def serve(start: Start, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the explorer until Ctrl-C; `ready` is called when the page can be opened."""
    import uvicorn

    class _Server(uvicorn.Server):
        """Server that calls `ready` when it has started, and kills the worker process before it stops."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Start the server, then call `ready`."""
            await super().startup(sockets)
            ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Kill the worker process, so that answers under way end, then stop the server."""
            app.state.worker.close()  # so that answers under way end by themselves
            await super().shutdown(sockets)

    app = server_of(start)
    settings = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    with suppress(KeyboardInterrupt):
        _Server(settings).run(sockets=[listener])
