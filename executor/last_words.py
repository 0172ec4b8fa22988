"""What a rank says when it is told to end.

torchrun ends the ranks that are left as soon as it finds one gone. If they went without a word, nobody could tell the
one that was gone first from them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from executor.failures import write_end


@contextmanager
def last_words(folder: Path, rank: int) -> Iterator[None]:
    """Meanwhile SIGTERM leaves word in `folder` and ends this process; in the main thread only, else nothing changes.

    A rank mostly waits for another one inside a collective, where Python's own handlers never get their turn: the
    signal's number comes through a pipe to a thread that listens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    handler = signal.signal(signal.SIGTERM, lambda number, frame: None)
    descriptor = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)

    def listen() -> None:
        while heard := os.read(ear, 1):
            if heard[0] == signal.SIGTERM:
                write_end(folder, rank)
                os._exit(128 + signal.SIGTERM)
        os.close(ear)

    threading.Thread(target=listen, name="last words", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, handler)
        os.close(mouth)
