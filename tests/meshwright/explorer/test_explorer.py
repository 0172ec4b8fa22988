"""The explorer's controls are read, escaped or refused in our own words, whatever an address says."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import meshwright as mw
from cost_models.errors import InputError
from meshwright.explorer import ExploreOptions
from meshwright.explorer.answers import Message, Worker, answer
from meshwright.explorer.questions import (
    CONTROLS,
    LONGEST,
    Start,
    read_controls,
    start_of,
    start_of_plan,
    values_of,
)
from meshwright.explorer.server import answer_lines, listening, page_of

HOSTILE = "\"'><script>alert(1)</script>\x00\x1b[31m"


@cache
def start() -> Start:
    options = ExploreOptions(
        model="gpt2-tiny", cluster="dgx-a100-80gb", gpus=2, global_batch="16", sequence="256", dropout=0.0
    )
    return start_of(options)


def opened(**options: Any) -> Start:
    """The same start, opened with other options."""
    return replace(start(), options=replace(start().options, **options))


def told(**values: str) -> dict[str, Any]:
    """Slot → its HTML, and what else the page is told."""
    found: dict[str, Any] = {}
    for message in answer(start(), {name.replace("_", "-"): value for name, value in values.items()}):
        found |= {message["slot"]: message["html"]} if "slot" in message else message
    return found


def test_an_answer_is_that_of_plan() -> None:
    found = told()
    parts = "shown title brief answer ranking step memory plan layouts why changes"
    assert list(found) == parts.split()
    assert "proved" in found["answer"]
    assert "kind: plan" in found["plan"]
    assert "One step" in found["step"]
    assert "All layouts" in found["layouts"]


def test_controls_change_the_question() -> None:
    values = {"gpus": "1,6", "sequence": "1K", "gpu-memory": "40GiB", "precision": "fp16", "mtbf": "5000 h"}
    values |= {
        "intra-node": "150 GB/s",
        "host-bandwidth": "16 GB/s",
        "inter-node": "100 Gb/s",
        "offload": "on",
    }
    found = read_controls(start(), values)
    cluster = found.question.cluster
    assert (cluster.num_gpus, cluster.gpu.memory) == (16, 40 * 2**30)
    assert cluster.links.intra_node.bandwidth == 150e9
    assert cluster.links.inter_node is not None
    assert cluster.links.inter_node.bandwidth == 12.5e9
    assert cluster.gpu.host_bandwidth == 16e9
    assert found.question.training.sequence_length == 1024
    assert found.question.training.precision == "fp16"
    assert "offload" in found.restrictions.allowed
    assert found.operations.mtbf == "5000 h"


@pytest.mark.parametrize("name", sorted(CONTROLS))
def test_hostile_values_are_errors_or_text(name: str) -> None:
    found = told(**{name: HOSTILE})
    assert "<script" not in "".join(html for html in found.values() if isinstance(html, str))
    assert "<script>alert" not in page_of(start(), {name: HOSTILE})
    if name != "offload":
        assert "This cannot be asked" in found["error"] or "This has no answer" in found["error"]


def test_problems_stand_by_their_controls() -> None:
    found = told(gpus="many", intra_node="fast")
    assert set(found["problems"]) == {"gpus", "intra-node"}
    assert "`many` is no number of GPUs" in found["problems"]["gpus"]


def test_names_that_are_refused() -> None:
    for name in ("model", "cluster", "stack"):
        with pytest.raises(InputError, match="unknown"):
            read_controls(start(), {name: "/etc/passwd"})
    with pytest.raises(InputError, match="`--for megatron` does not go with `--stack torchtitan`"):
        read_controls(opened(trainer="megatron"), {"stack": "torchtitan"})


def test_addresses_that_cannot_be_read() -> None:
    assert values_of([("gpus", " 8 "), ("fix", "")]) == {"gpus": "8"}
    with pytest.raises(InputError) as caught:
        values_of([("gpu", "8"), ("gpus", "8"), ("gpus", "16"), ("fix", "x" * (LONGEST + 1))])
    said = str(caught.value)
    assert "did you mean `gpus`" in said
    assert "--gpus: is said 2 times" in said
    assert "--fix: has 201 characters" in said


JOB = mw.TrainingSpec(global_batch=16, sequence_length=256)


def test_a_plan_is_where_it_starts() -> None:
    plan = mw.plan("gpt2-tiny", "dgx-a100-80gb", JOB, gpus=2, fix=["tp=2"]).plan
    begun = start_of_plan(plan, tokens=None, operations=None)
    found = read_controls(begun, {})
    assert (found.question.cluster, found.question.stack) == (plan.cluster, plan.stack)
    assert found.restrictions.fix_words == ("tp=2",)
    assert 'placeholder="tp=2"' in page_of(begun, {})
    assert read_controls(begun, {"fix": "tp=1, pp=2"}).restrictions.fix_words == ("tp=1", "pp=2")


def test_a_file_is_opened_on_its_own_layout() -> None:
    given = mw.estimate("gpt2-tiny", "dgx-a100-80gb", JOB, "tp2 mbs4 zero0 sp", gpus=2).plan
    assert given.layout != mw.plan("gpt2-tiny", "dgx-a100-80gb", JOB, gpus=2).plan.layout
    begun = start_of_plan(given, tokens=None, operations=None)
    for values, is_own in (({}, True), ({"global-batch": "32"}, False)):
        shown = next(one["html"] for one in answer(begun, values) if one.get("slot") == "answer")
        assert (given.layout.brief in shown.split("<table", 1)[0]) == is_own


def test_a_taken_port_is_told_with_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is taken") as caught:
            listening(port)
        assert "is free" in caught.value.hint
    with listening(None) as first, listening(None) as second:
        assert first.getsockname()[0] == "127.0.0.1"
        assert first.getsockname()[1] < second.getsockname()[1]


@pytest.mark.parametrize(("slot", "times"), [("error", 2), ("answer", 1)])
def test_answers_are_kept_and_failures_are_asked_again(slot: str, times: int) -> None:
    asked, kept = [], OrderedDict[str, list[bytes]]()

    class Answering:
        async def ask(self, values: Mapping[str, str]) -> AsyncIterator[Message]:
            asked.append(values)
            yield {"slot": slot, "html": ""}

    async def ask_twice() -> None:
        for _ in range(2):
            heard = [line async for line in answer_lines([("gpus", "2")], Answering(), kept)]  # type: ignore[arg-type]
            assert json.loads(heard[0])["slot"] == slot

    asyncio.run(ask_twice())
    assert len(asked) == times


def test_who_stops_to_listen_ends_the_work() -> None:
    async def ask_and_leave() -> None:
        worker = Worker(start())
        try:
            before = worker.process.pid
            parts = worker.ask({})
            assert "shown" in await anext(parts)
            await parts.aclose()
            assert worker.process.pid != before
            heard = [message async for message in worker.ask({"gpus": "many"})]
            assert heard[-1]["slot"] == "error"
        finally:
            worker.close()

    asyncio.run(ask_and_leave())
