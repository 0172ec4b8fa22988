"""Processes that end when their parent is gone, so that a launcher that is killed leaves no ranks behind."""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT = "MESHWRIGHT_PARENT"
"""Environment variable: the process that starts the others."""
_POLL_SECONDS = 0.5


def end_with_parent() -> None:
    """Send this process SIGTERM as soon as its parent is gone, as the parent itself would to end it.

    An orphan gets another parent, on every Unix. A thread looks for that, as the process may wait inside a collective.
    """
    parent = int(os.environ.get(PARENT, os.getppid()))

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, name="orphan", daemon=True).start()
