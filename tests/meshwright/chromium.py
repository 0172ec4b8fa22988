"""Headless Chromium over its own protocol (a pipe of JSON): opens a page, types, and hears what it complains of."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120.0
"""Seconds until a page is given up."""


class Page:
    """One page of a browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest, self._number, self._session = b"", 0, ""
        self.asked: list[str] = []
        """Addresses that were requested."""
        self.complaints: list[str] = []
        """Of the console, and exceptions nobody caught."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                answer: dict[str, Any] = told["result"]
                return answer

    def open(self, address: str) -> None:
        """Go to an address, and wait until its page is there."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def look(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := self.look(expression):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never: {expression}")

    def type(self, text: str) -> None:
        """Type into what has the focus, in place of what it holds, and press Enter."""
        self.look("document.activeElement.select()")
        self.call("Input.insertText", text=text)
        self.press("Enter", 13)

    def press(self, key: str, code: int) -> None:
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
            )

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        one, self._rest = self._rest.split(b"\0", 1)
        told: dict[str, Any] = json.loads(one)
        self._hear(told.get("method"), told.get("params", {}))
        return told

    def _hear(self, method: str | None, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(told))


@contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A page of a browser that keeps what it keeps in a folder."""
    assert CHROMIUM is not None
    (theirs, commands), (answers, told) = os.pipe(), os.pipe()

    def as_three_and_four() -> None:
        kept = os.dup(theirs), os.dup(told)
        os.dup2(kept[0], 3)
        os.dup2(kept[1], 4)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    browser = subprocess.Popen(
        [CHROMIUM, *flags, f"--user-data-dir={profile}"],
        pass_fds=(3, 4, theirs, told),
        preexec_fn=as_three_and_four,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(told)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
