"""Traces of GPUs whose parts are known: the reader finds them, whoever describes the groups; broken ones in words."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from calling import refusal
from gpu_traces import ADAM, GEMM, UNKNOWN, write_trace

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.measured import logs
from cost_models.measured.traces import events
from cost_models.measured.traces.job import read_traces

PARTS = {"compute": 0.5, "host": 0.02, "optimizer": 0.03, "offload": 0.01, "other": 0.02}
COMMUNICATION = {"tp": 0.08, "pp": 0.04, "dp": 0.06, "bubble": 0.11}


@pytest.mark.parametrize("described", [True, False])
def test_parts_are_found_within_a_hundredth(tmp_path: Path, described: bool) -> None:
    for layout, exposed in [
        ("tp2 pp2 dp4", COMMUNICATION),
        ("dp16 ep8", {"ep": 0.09, "dp": 0.02}),
        ("cp4 dp4", {"cp": 0.05, "dp": 0.1}),
        ("tp8", {"tp": 0.2}),
    ]:
        seats, parts = parse_layout(layout), PARTS | exposed
        paths = [
            write_trace(tmp_path / f"rank{rank}.json.gz", seats, rank, parts, described=described)
            for rank in (5, 0)
        ]
        step = sum(parts.values())
        found = read_traces(paths, seats)
        assert [one.rank for one in found] == [0, 5]
        for one in found:
            assert one.step.count == 3
            assert one.seconds == pytest.approx(step, rel=0.01)
            assert sum(one.parts.values()) == pytest.approx(one.seconds, rel=1e-6)
            for part, seconds in parts.items():
                name = f"{part}_comm" if part in ("tp", "cp", "ep", "pp", "dp") else part
                assert one.parts[name] == pytest.approx(seconds, abs=0.01 * step), name
            assert one.unknown == {UNKNOWN: pytest.approx(3 * PARTS["other"], rel=0.01)}
            assert 0 < 1 - one.covered < 0.04


def test_a_trace_is_read_in_bounded_memory(tmp_path: Path) -> None:
    layout = parse_layout("dp8")
    small, large = (
        write_trace(
            tmp_path / f"{steps}.json", layout, 0, {"compute": 0.5, "dp": 0.1}, steps=steps, passes=64
        )
        for steps in (2, 60)
    )
    peaks = []
    for path in (small, large):
        tracemalloc.start()
        read_traces([path], layout)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert large.stat().st_size > 20 * small.stat().st_size
    assert peaks[1] < peaks[0] + 4 * 2**20


def _refused(path: Path, layout: str = "dp8") -> str:
    return refusal(read_traces, [path], parse_layout(layout))


def test_what_is_no_trace_of_the_job_is_refused_in_words(tmp_path: Path) -> None:
    layout = parse_layout("dp8")
    path = write_trace(tmp_path / "trace_rank0.json", layout, 0, {"compute": 0.5, "dp": 0.1})
    whole = json.loads(path.read_text())
    assert "it is of rank 0 of 8, the plan has 16 ranks" in _refused(path, "dp16")
    with pytest.raises(InputError, match="is a second trace of rank 0"):
        read_traces([path, path], layout)

    def changed(name: str, **event: object) -> Path:
        other = tmp_path / name
        first = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.0, "dur": 1.0} | event
        other.write_text(json.dumps(whole | {"traceEvents": [first, *whole["traceEvents"]]}))
        return other

    for said in ({"dur": -1.0}, {"dur": "long"}, {"ts": None}, {"dur": 1e300}):
        assert "event 1: `gemm` has ts" in _refused(changed("times.json", **said))
    nan = changed("nan.json")
    nan.write_text(nan.read_text().replace('"dur": 1.0', '"dur": NaN'))
    assert "is no whole trace" in _refused(nan)
    cut = tmp_path / "cut.json"
    cut.write_text(path.read_text()[:5000])
    assert "the file ends inside an event" in _refused(cut)
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:-50])
    assert "cannot be unpacked" in _refused(packed)
    alone = write_trace(tmp_path / "alone.json", layout, 0, {"compute": 0.5})
    assert "has no communication, and the plan is of 8 ranks" in _refused(alone)
    host = tmp_path / "host.json"
    host.write_text(json.dumps(whole | {"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]}))
    assert "has no kernel of a GPU" in _refused(host)
    assert "profile with ProfilerActivity.CUDA" in _refused(host)
    host.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "NPU Kernels", "ts": 1, "dur": 1}]}))
    assert "the file has npu kernels" in _refused(host)
    nothing = tmp_path / "nothing.json"
    nothing.write_text("{}")
    assert "it has no `traceEvents`" in _refused(nothing)


OLDER = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cpu_op": "Operator", "cuda_runtime": "Runtime"}


@pytest.mark.parametrize("steps_are", ["user_annotation", "Operator"])
def test_a_trace_in_the_spelling_of_pytorch_1_is_the_same(tmp_path: Path, steps_are: str) -> None:
    """Categories with capitals, streams in words, no group of a collective, `external id`."""
    layout = parse_layout("dp8")
    path = write_trace(tmp_path / "new.json", layout, 0, {"compute": 0.5, "dp": 0.1, "offload": 0.01})
    whole = json.loads(path.read_text())
    whole["traceEvents"] += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}
        | {"args": {"External id": 7, "Input Dims": [[64, 32], [32, 16]]}},
        *(
            {"ph": "X", "cat": "kernel", "name": GEMM, "ts": event["ts"], "dur": 1}
            | {"args": {"device": 0, "External id": 7}}
            for event in whole["traceEvents"][-2:]
        ),
    ]
    path.write_text(json.dumps(whole))
    old = tmp_path / "old.json"
    for event in whole["traceEvents"]:
        said = event.get("args", {})
        if "stream" in said:
            event["tid"] = f"stream {said['stream']}"
        event["cat"] = OLDER.get(event.get("cat", ""), event.get("cat", ""))
        if event["cat"] == "user_annotation" and event["name"].startswith("ProfilerStep"):
            event["cat"] = steps_are
        for key in [key for key in said if key.startswith(("Collective", "Group", "Process"))]:
            del said[key]
        if "External id" in said:
            said["external id"] = said.pop("External id")
        event["name"] = event["name"].replace("ncclDevKernel", "ncclKernel")
    old.write_text(json.dumps(whole))
    (new,), (found,) = read_traces([path], layout), read_traces([old], layout)
    assert found.parts == new.parts
    assert found.step.count == new.step.count
    assert found.products == new.products
    assert found.products


def test_a_kernel_of_a_lambda_is_no_optimizer(tmp_path: Path) -> None:
    """Names of element-wise kernels hold the word; LAMB's do not go on like that."""
    path = tmp_path / "trace.json"
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous)::{lambda(float)#1}>"
    kernel = {"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}
    events = [kernel | {"name": name}, kernel | {"name": "lamb_stage_1", "ts": 3}]
    path.write_text(json.dumps({"traceEvents": events}))
    (one,) = read_traces([path], parse_layout("dp1"))
    assert one.parts["compute"] == pytest.approx(2e-6)
    assert one.parts["optimizer"] == pytest.approx(2e-6)


def test_odd_details_are_read_as_none(tmp_path: Path) -> None:
    """Names with escapes, numbers where words are expected, dimensions that are none: no exception, and no escape in
    what is shown."""
    layout = parse_layout("dp8")
    path = write_trace(tmp_path / "rank0.json", layout, 0, {"compute": 0.5, "dp": 0.1})
    whole = json.loads(path.read_text())
    at = max(event["ts"] for event in whole["traceEvents"] if event.get("cat") == "kernel")
    keys = (
        "External id",
        "correlation",
        "Input Dims",
        "Group size",
        "dtype",
        "In msg nelems",
        "Process Group Ranks",
    )
    names = {"nccl\u001b[2J": "kernel", "gemm": "kernel", "aten::mm": "cpu_op", "x": "cuda_runtime"}
    for odd in (-5, 2**63 - 1, "\u001b[31m", [[]], {"a": 1}, None, 1e300, True):
        said = dict.fromkeys((*keys, "Collective name", "Process Group Description"), odd)
        for name, category in names.items():
            event = {"ph": "X", "cat": category, "name": name, "ts": at, "dur": 0.1, "tid": odd, "args": said}
            whole["traceEvents"].append(event)
    whole["traceEvents"].append({"ph": "X", "cat": "kernel", "name": "zz\u001b[2J", "ts": at, "dur": 9.0})
    path.write_text(json.dumps(whole))
    (one,) = read_traces([path], layout)
    assert "\u001b" not in "".join(one.unknown)
    assert not one.products
    flat = {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 0}]}
    path.write_text(json.dumps(flat))
    assert "has no step that lasts" in _refused(path, "dp1")


def test_products_are_joined_with_the_operators_that_launched_them(tmp_path: Path) -> None:
    """By the id of the operator, or through the launch; in whatever order events come."""
    dims = {
        "aten::mm": [[64, 32], [32, 16]],
        "aten::addmm": [[16], [64, 32], [32, 16]],
        "aten::bmm": [[4, 8, 2], [4, 2, 6]],
    }
    events: list[dict[str, object]] = []
    for number, (operator, sizes) in enumerate(dims.items(), start=1):
        said: dict[str, object] = {"device": 0, "correlation": 70 + number}
        if number == 1:
            said["External id"] = number
        events += [
            {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "ts": number, "dur": number, "args": said},
            {"ph": "X", "cat": "cpu_op", "name": operator, "ts": 0, "dur": 1}
            | {"args": {"External id": number, "Input Dims": sizes}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0, "dur": 1}
            | {"args": {"External id": number, "correlation": 70 + number}},
        ]
    path = tmp_path / "trace.json"
    for order in (events, events[::-1]):
        path.write_text(json.dumps({"traceEvents": order}))
        (one,) = read_traces([path], parse_layout("dp1"))
        found = {str(product): sum(seconds) for product, seconds in one.products.items()}
        assert found == {"64 x 32 x 16": pytest.approx(3e-6), "4 x (8 x 2 x 6)": pytest.approx(3e-6)}


def test_an_event_made_to_fill_a_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LARGEST_EVENT", 1 << 18)
    monkeypatch.setattr(logs, "MOST_EXPANSION", 1 << 20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [{"name": "' + b"a" * (1 << 22)))
    assert "has an event of more than" in _refused(bomb)


@pytest.mark.parametrize("begin", ['{"traceEvents": [', "[", '[{"args": ', '{"other": '])
@pytest.mark.parametrize("level", ["[", '{"a":'])
def test_deep_nesting_is_refused_before_it_takes_memory(tmp_path: Path, begin: str, level: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(begin + level * 100_000)
    tracemalloc.start()
    with pytest.raises(InputError, match="is nested more than 32 levels deep"):
        read_traces([path], parse_layout("dp1"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20


def _nsight(path: Path, kernels: list[tuple[str, float, float]], extra: str = "") -> Path:
    """A small export as Nsight Systems writes it: kernels by name, begin and end in milliseconds."""
    with closing(sqlite3.connect(path)) as export, export:
        export.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            " correlationId INTEGER, demangledName INTEGER);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            " copyKind INTEGER);"
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (94000000, 97000000, 0, 7, 2);" + extra
        )
        for number, (name, begin, end) in enumerate(kernels):
            export.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
            times = (round(begin * 1e6), round(end * 1e6))
            export.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 1, ?)", (*times, number)
            )
    return path


def test_exports_of_nsight_systems_are_read(tmp_path: Path) -> None:
    """60 ms of products, 30 of an all-reduce of which 10 lie behind them, 10 of Adam, a copy of 3, 7 of nothing."""
    kernels = [(GEMM, 0, 60), ("ncclDevKernel_AllReduce_Sum_bf16", 50, 80), (ADAM, 80, 90)]
    marks = (
        "INSERT INTO NVTX_EVENTS VALUES (0, 100000000, 'ProfilerStep#3', NULL, 1);"
        "INSERT INTO NVTX_EVENTS VALUES (90000000, 92000000, 'data_loading', NULL, 1);"
        "INSERT INTO NVTX_EVENTS VALUES (5, NULL, 'a mark', NULL, 1);"
    )
    (one,) = read_traces([_nsight(tmp_path / "report_rank1.sqlite", kernels, marks)], parse_layout("dp4"))
    assert one.rank == 1
    told = {part: round(1e3 * seconds) for part, seconds in one.parts.items() if seconds > 1e-9}
    assert told == {"compute": 60, "dp_comm": 20, "optimizer": 10, "offload": 3, "data": 2, "host": 5}


def test_broken_exports_of_nsight_systems_are_refused_in_words(tmp_path: Path) -> None:
    layout, backwards = parse_layout("dp4"), [(GEMM, 5, 2)]
    with pytest.raises(InputError, match="has times that are none"):
        read_traces([_nsight(tmp_path / "a.sqlite", backwards)], layout)
    (tmp_path / "b.sqlite").write_bytes(b"SQLite format 3\0" + b"\1" * 500)
    with pytest.raises(InputError, match="is no whole export of Nsight Systems"):
        read_traces([tmp_path / "b.sqlite"], layout)
    with pytest.raises(InputError, match="is no whole export of Nsight Systems"):
        read_traces([tmp_path / "absent.sqlite"], layout)
