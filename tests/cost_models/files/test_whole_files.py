"""A file is the old one or the new one, whatever happens to the one who writes it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from cost_models.files.whole import is_replaced, whole_file, write_whole


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "result.csv"
    path.write_text("old\n")
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_new_takes_the_place_of_the_old(old: Path) -> None:
    write_whole(old, "new, with an é\n")
    assert old.read_bytes() == "new, with an é\n".encode()
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, OSError])
def test_the_old_stays_until_the_new_is_whole(old: Path, end: type[BaseException]) -> None:
    def write_half() -> None:
        with whole_file(old) as stream:
            stream.write(b"ne")
            stream.flush()
            assert old.read_text() == "old\n"
            raise end("half-way")

    with pytest.raises(end, match="half-way"):
        write_half()
    assert old.read_text() == "old\n"
    assert list(old.parent.iterdir()) == [old]


def test_an_error_names_the_file_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "result.csv"
    with pytest.raises(FileNotFoundError) as told:
        write_whole(path, "new\n")
    assert (told.value.filename, told.value.errno) == (str(path), errno.ENOENT)


def test_who_may_read_it_is_as_for_any_other_file(old: Path) -> None:
    beside = old.with_name("new.csv")
    before = os.umask(0o027)
    try:
        write_whole(beside, "new\n")
    finally:
        os.umask(before)
    assert mode(beside) == 0o640
    old.chmod(0o604)
    write_whole(old, "new\n")
    assert mode(old) == 0o604


def test_a_link_stays_one(old: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.csv"
    link.symlink_to(old)
    write_whole(link, "new\n")
    assert link.is_symlink()
    assert old.read_text() == "new\n"
    assert list(link.parent.iterdir()) == [link]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=write_whole, args=(pipe, "new\n"))
    writer.start()
    assert pipe.read_text() == "new\n"
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="this system has no such name")
@pytest.mark.parametrize("mode", ["ab", "wb"])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_what_is_printed_to_a_file_stays_and_is_gone_on_with(old: Path, mode: str, name: str) -> None:
    """As by `>> result.csv` and `> result.csv`."""
    program = "from cost_models.files.whole import *; print('a', flush=True)"
    program += f"; write_whole(Path({name!r}), 'b\\n'); print('c')"
    before = old.stat().st_ino
    with old.open(mode) as stream:
        subprocess.run([sys.executable, "-c", program], stdout=stream, check=True)
    assert old.read_text() == ("old\n" if mode == "ab" else "") + "a\nb\nc\n"
    assert old.stat().st_ino == before


def test_names_of_the_system_are_never_replaced() -> None:
    assert not is_replaced(Path("/dev/stdout"))
    assert not is_replaced(Path("/dev/../proc/self/fd/1"))
    assert is_replaced(Path("/dev/shm/not-there.csv"))
