"""Logs of other trainers: every format's lines, the usual steps among them, files as jobs leave them."""

from __future__ import annotations

import gzip
import random
import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from trainer_logs import VARIANTS, WORK, WRITERS, megatron, torchtitan

from cost_models.errors import InputError
from cost_models.measured import logs
from cost_models.measured.logs import Log, formats, read_logs, typical_steps

EVEN = [1.25] * 12
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(lines: Sequence[str], name: str = "train.log", end: str = "\n") -> Path:
        path = tmp_path / name
        text = ("\n".join(lines) + end).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return written


def read(*paths: Path) -> Log:
    return read_logs(paths, WORK)


@pytest.mark.parametrize("trainer", WRITERS)
def test_every_format_tells_the_seconds_of_its_steps(write: Write, trainer: str) -> None:
    log = read(write(["starting", *WRITERS[trainer](EVEN)]))
    assert log.steps.count == len(EVEN)
    assert [line.seconds for line in log.steps.lines] == pytest.approx(EVEN, rel=0.005)
    losses = {line.loss for line in log.steps.lines}
    assert losses == {6.5} or trainer in ("deepspeed", "hugging_face")


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_formats_are_read(write: Write, variant: str) -> None:
    """What 51 public logs were found to print."""
    downloads = "100%|##########| 3/3 [00:00<00:00, 900.00 examples/s]"
    log = read(write([downloads, *(VARIANTS[variant].format(step=step) for step in range(1, 7))]))
    assert [line.seconds for line in log.steps.lines] == pytest.approx([1.25] * 6, rel=0.001)
    assert {line.loss for line in log.steps.lines} == {6.5} or log.format.one_total or "deepspeed" in variant
    assert set(log.allocated.values()) <= {20.25 * 2**30}


def test_a_summary_tells_a_mean_step(write: Write) -> None:
    told = "{'train_runtime': '125.0', 'train_steps_per_second': '0.8', 'epoch': '3'}"
    (line,) = read(write(["{'loss': 6.5, 'epoch': 1.0}", told])).steps.lines
    assert line.seconds == 1.25


def test_memory_in_bytes_and_settings_with_their_source_are_read(write: Write) -> None:
    nemo = WRITERS["nemo"](EVEN)[0] + " | max_memory_reserved: 3221225472 | max_memory_allocated: 2147483648"
    log = read(write([nemo]))
    assert (log.allocated, log.reserved) == ({0: 2.0 * 2**30}, {0: 3.0 * 2**30})
    dots = "  model_parallel_size ............. 2...........................updated"
    assert list(read(write([dots, *megatron(EVEN)])).settings["model_parallel_size"]) == ["2"]


def test_every_format_has_a_writer() -> None:
    called = {one.called for one in formats().values()}
    assert len(called) <= len(WRITERS) + len(VARIANTS)
    assert all(one.called and one.profile for one in formats().values())


def test_memory_is_read_by_rank(write: Write) -> None:
    told = [
        "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 2048.0 | max reserved: 3072.0",
        "[Rank 4] (after 2 iterations) memory (MB) | max allocated: 1024.0 | max reserved: 1536.0",
    ]
    log = read(write([*megatron(EVEN), *told]))
    assert log.allocated == {0: 2.0 * 2**30, 4: 2.0**30}
    assert log.reserved == {0: 3.0 * 2**30, 4: 1.5 * 2**30}
    assert read(write(torchtitan(EVEN))).reserved == {0: 20.25 * 2**30}


def test_warm_up_checkpoints_and_outliers_are_left_out(write: Write) -> None:
    draw = random.Random(7)
    seconds = [2.0 * (1 + 0.004 * draw.gauss(0, 1)) for _ in range(200)]
    typical = statistics.median(seconds)
    for step, slower in {0: 20, 1: 3, 60: 1.8, 120: 1.5, 121: 0.4}.items():
        seconds[step] *= slower
    text = megatron(seconds)
    text.insert(60, "saving checkpoint at iteration      60 to /x in torch_dist format")
    found = typical_steps(read(write(text)).steps.lines)
    assert found.left_out == {logs.WARM_UP: 2, logs.DISTURBED: 1, logs.SLOW: 1, logs.QUICK: 1}
    assert statistics.median(line.seconds for line in found.lines) == pytest.approx(typical, rel=0.001)
    assert found.lost == pytest.approx((0.8 + 0.5) / 200, rel=0.1)


def test_a_restart_has_a_warm_up_of_its_own(write: Write) -> None:
    log = read(write([*megatron([9.0, *EVEN]), *megatron([9.0, 5.0, *EVEN], first=3)]))
    assert log.steps.attempts == 1
    assert typical_steps(log.steps.lines).left_out == {logs.WARM_UP: 3}


def test_rotated_files_are_read_in_the_order_of_their_steps(write: Write) -> None:
    old = write(megatron([7.0, *EVEN]), "train.log.1.gz")
    new = write(megatron(EVEN, first=14), "train.log")
    log = read(new, old)
    assert [line.step for line in log.steps.lines] == list(range(1, 26))
    assert log.steps.attempts == 0


def test_interleaved_ranks_tell_of_a_step_once_and_the_slowest_counts(write: Write) -> None:
    fast, slow = megatron([1.0] * 9), megatron([1.5] * 9)
    mixed = [f"{rank}: {one}" for pair in zip(fast, slow, strict=True) for rank, one in enumerate(pair)]
    mixed[5], mixed[6] = mixed[6], mixed[5]  # one rank is ahead
    log = read(write(mixed))
    assert log.steps.count == 9
    assert [line.seconds for line in log.steps.lines] == [1.5] * 9
    assert log.steps.attempts == 0


def test_a_last_line_that_is_cut_off_is_left_out(write: Write) -> None:
    *whole, last = megatron(EVEN)
    cut = last[: last.index("(ms): 1") + len("(ms): 1")]
    log = read(write([*whole, cut], end=""))
    assert [line.seconds for line in log.steps.lines] == EVEN[:-1]


def test_steps_of_another_batch_are_left_out(write: Write) -> None:
    small = [line.replace("size:    64", "size:    16") for line in megatron([0.4] * 5)]
    log = read(write([*small, *megatron(EVEN, first=6)]))
    assert (log.ramped, log.steps.count) == (5, len(EVEN))
    with pytest.raises(InputError, match="no step of the log has the plan's global batch") as raised:
        read(write(small))
    assert str(raised.value.problems[0]).endswith("train.log:1: global batch 16")


def test_a_long_log_is_read_in_constant_memory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 500)
    path = write(["x" * 100 if number % 3 else one for number, one in enumerate(megatron([1.25] * 6000))])
    tracemalloc.start()
    log = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.steps.count == 2000
    assert len(log.steps.lines) <= 500
    assert peak < 8 * logs.LONGEST_LINE * 8


def test_what_is_no_log_is_refused_in_words(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the log of no known trainer: 3 lines read, none of a step"):
        read(write(["a", "b", "c"]))
    with pytest.raises(InputError, match="looks like a log of Megatron-LM"):
        read(write(["using world size: 8, data-parallel size: 2,", "  num_layers ............. 12"]))
    for wrong in ("nan", "-5.0", "0.0", "inf", "1e40"):
        text = megatron(EVEN)
        text[3] = text[3].replace("(ms): 1250.0", f"(ms): {wrong}")
        with pytest.raises(InputError, match="times of steps that are none") as raised:
            read(write(text))
        assert "train.log:4: step 4 takes no such time" in str(raised.value)
    with pytest.raises(InputError, match=r"cannot read .*nowhere.log"):
        read(tmp_path / "nowhere.log")
    whole = write(megatron(EVEN * 20), "cut.log.gz")
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"cut.log.gz. cannot be unpacked"):
        read(whole)


def test_a_file_packed_to_fill_a_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SMALL", 1 << 18)
    bomb = tmp_path / "bomb.log.gz"
    bomb.write_bytes(gzip.compress(b"\0" * (1 << 22)))
    with pytest.raises(InputError, match="more than 400 times as large"):
        read(bomb)
