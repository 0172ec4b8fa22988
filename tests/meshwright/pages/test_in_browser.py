"""A page in headless Chromium: nothing is fetched, nothing is complained of, nothing is wider than a telephone."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from chromium import CHROMIUM
from test_page import told

WIDTHS = (390, 1000)

_FRAMES = """<!DOCTYPE html><link rel="icon" href="data:,"><body>{frames}<p id="said"></p><script>
addEventListener("load", () => {{
  const said = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument.documentElement;
    return frame.width + ":" + page.scrollWidth + ":" + page.querySelectorAll("section").length;
  }});
  document.getElementById("said").textContent = "said " + said.join(" ");
}});
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.asked.append(self.path)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_page_in_a_browser(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    told().save(tmp_path / "plan.html")
    frames = "".join(f'<iframe src="plan.html" width="{width}" height="800"></iframe>' for width in WIDTHS)
    (tmp_path / "frames.html").write_text(_FRAMES.format(frames=frames))
    _Quiet.asked.clear()
    with served(tmp_path) as address:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
        kept = f"--user-data-dir={tmp_path / 'profile'}"
        shown = subprocess.run(
            [CHROMIUM, *flags, kept, "--virtual-time-budget=20000", f"{address}/frames.html"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert set(_Quiet.asked) == {"/frames.html", "/plan.html"}
    assert "CONSOLE" not in shown.stderr
    said = re.search(r"said ([\d: ]+)", shown.stdout)
    assert said is not None
    for width, one in zip(WIDTHS, said[1].split(), strict=True):
        outer, inner, sections = map(int, one.split(":"))
        assert outer == width
        assert inner <= width, "the page scrolls sideways"
        assert sections == len(told().chapters)
