"""The explorer's server: the page, its style and script, and answers as they become known; on this machine only."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cost_models.errors import InputError, RunError
from meshwright.explorer.answers import STREAMS, told_error
from meshwright.explorer.controls import values_of
from meshwright.explorer.page import page_of
from meshwright.explorer.starting import Start
from meshwright.explorer.workers import Workers

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
    """The application; its processes live as long as it does."""
    kept: OrderedDict[str, list[bytes]] = OrderedDict()

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
        said = request.query_params.multi_items()
        return _Lines(_lines(request.url.path, said, request.app.state.workers, kept))

    routes = [
        Route("/", page, methods=["GET"]),
        *(Route(f"/{name}", _file(name, kind), methods=["GET"]) for name, kind in _FILES.items()),
        *(Route(f"/{name}", stream, methods=["GET"]) for name in STREAMS),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts], lifespan=lifespan)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    """A file of the page; its style begins with that of reports."""
    places = [files("meshwright.explorer") / name]
    if kind == "text/css":
        places.insert(0, files("meshwright.pages") / name)
    content = "\n".join(place.read_text(encoding="utf-8") for place in places)
    return lambda request: Response(content, media_type=kind, headers=_SAFE)


async def _lines(
    path: str, said: Sequence[tuple[str, str]], workers: Workers, kept: OrderedDict[str, list[bytes]]
) -> AsyncIterator[bytes]:
    """A line of JSON for each part."""
    lines, failed = [], False
    try:
        values = values_of(said)
        key = json.dumps([path, values], sort_keys=True)
        if key in kept:
            kept.move_to_end(key)
            for line in kept[key]:
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
    kept[key] = lines
    while len(kept) > _KEPT:
        kept.popitem(last=False)


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
