"""The explorer as it is served: driven in headless Chromium, and asked by strangers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from chromium import CHROMIUM, opened

_QUESTION = ["gpt2-tiny", "dgx-a100-80gb", "--gpus", "2", "--global-batch", "16", "--sequence", "256"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """An explorer in a process of its own; Ctrl-C ends it cleanly."""
    command = [sys.executable, "-m", "meshwright", "explore", *_QUESTION]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as explorer:
        assert explorer.stdout is not None
        said = explorer.stdout.readline()
        place = urlsplit(said.split()[2])
        try:
            yield said.split()[2]
        finally:
            with closing(HTTPConnection(place.hostname or "", place.port, timeout=60)) as under_way:
                under_way.request("GET", "/answer?model=gpt3-175b&gpus=1024&global-batch=1536")
                with under_way.getresponse() as answer:
                    answer.readline()
                    explorer.send_signal(signal.SIGINT)
                    _, complaints = explorer.communicate(timeout=60)
    assert (explorer.returncode, complaints.strip()) == (0, "ended")


def asked(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    place = urlsplit(address)
    words = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(HTTPConnection(place.hostname or "", place.port, timeout=120)) as connection:
        connection.request(method, path, headers=words)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode()


def parts(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_strangers_are_refused(address) -> None:
    assert address.startswith("http://127.0.0.1:")
    assert asked(address, "/")[0] == 200
    assert asked(address, "/", Host="evil.example")[0] == 400
    assert asked(address, "/answer", Sec_Fetch_Site="cross-site")[0] == 403
    assert asked(address, "/answer", "POST")[0] == 405
    assert asked(address, "/../../etc/passwd")[0] == 404


def test_whatever_an_address_says_is_answered(address) -> None:
    status, text = asked(address, "/answer?gpus=2&gpus=3&%3Cb%3E=1")
    assert status == 200
    assert "This cannot be asked" in parts(text)[-1]["html"]
    assert "<b>" not in text
    status, text = asked(address, "/answer?model=gpt3-175b&gpus=8")
    assert (status, parts(text)[-1]["slot"]) == (200, "error")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_controls_in_a_browser(address, tmp_path) -> None:
    with opened(tmp_path / "profile") as page:
        page.resize(390, 800)
        page.open(address)
        done = (
            "!document.body.classList.contains('asking') && !!document.querySelector('[data-slot=plan] pre')"
        )
        page.wait(done)
        layout = "document.querySelector('[data-slot=answer] dd').textContent"
        before = page.look(layout)
        assert page.look("document.querySelectorAll('svg').length") >= 3
        assert page.look("document.documentElement.scrollWidth") <= 390

        assert page.look("document.querySelector('[data-slot=answer] dd').getBoundingClientRect().top") < 400
        assert page.look("document.querySelector('[data-slot=answer] dt').textContent") == "train with"
        assert not page.look("document.getElementById('question').open")  # 17 fields
        page.look("document.querySelector('#question > summary').click()")

        page.look("document.querySelector('[name=gpus]').focus()")
        page.type("4")
        page.wait(f"location.search === '?gpus=4' && {layout} !== {json.dumps(before)} && {done}")
        page.look("document.querySelector('[name=gpu-memory]').focus()")
        page.type("<img src=x onerror=alert(1)>")
        page.wait("document.querySelector('[name=gpu-memory]').ariaInvalid === 'true'")
        page.wait("document.querySelector('[data-slot=error] h2')?.textContent === 'This cannot be asked'")
        page.wait("!document.querySelector('[data-slot=answer] dd')")

        page.look("history.back()")
        page.wait(f"document.querySelector('[name=gpus]').value === '4' && {done}")
        page.look("document.querySelector('[name=offload]').click()")
        page.wait(f"location.search === '?gpus=4&offload=on' && {done}")
        page.look("history.back()")
        page.wait(
            f"location.search === '?gpus=4' && !document.querySelector('[name=offload]').checked && {done}"
        )
        page.look("history.back()")
        page.wait(f"location.search === '' && {done} && {layout} === {json.dumps(before)}")
        assert page.look("document.querySelector('[name=gpus]').value") == ""
        page.press("Tab", 9)
        assert page.look("document.activeElement.name ?? document.activeElement.tagName")
        assert not page.complaints
        strangers = [one for one in page.asked if not one.startswith((address, "data:"))]
        assert not strangers
