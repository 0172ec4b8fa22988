"""Has a rank that is told to end write that it was.

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

from executor.faults.failures import write_end

_listening = False


@contextmanager
def last_words(folder: Path, rank: int) -> Iterator[None]:
    """Inside the block SIGTERM has this process write a failure to `folder`, and end.

    Nothing changes outside the main thread, or where somebody else handles the signal.

    A rank mostly waits for another one inside a collective, where Python's own handlers never get their turn: the
    signal's number comes through a pipe to a thread that listens.
    """
    global _listening
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)

    def listen() -> None:
        while heard := os.read(ear, 1):
            if heard[0] == signal.SIGTERM:
                try:
                    write_end(folder, rank)
                finally:
                    os._exit(128 + signal.SIGTERM)
        os.close(ear)

    threading.Thread(target=listen, name="last words", daemon=True).start()
    descriptor = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    _listening = True
    try:
        yield
    finally:
        _listening = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(descriptor)
        os.close(mouth)


def _in_child() -> None:
    """Undo it in a forked process, which has the pipe to its parent's thread but is another."""
    if _listening:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_in_child)
