"""`plot window`: a line for each residency over the blocks of a rank, with both memories and their limits."""

from __future__ import annotations

import pytest

from meshwright import Estimated, InputError, estimate
from meshwright.verbs.plot import plot


def priced(layout: str, stack: str = "meshwright") -> Estimated:
    asked = {"gpus": 1, "global_batch": 8, "sequence": 2048, "stack": stack, "host_memory": "64GiB"}
    return estimate("llama2-7b", "hgx-h200", None, layout, **asked)  # type: ignore[arg-type]


def test_every_point_is_a_priced_layout(tmp_path) -> None:
    answer = priced("mbs1 zero0 offload=streamed:7 ring=3")
    answer.save(tmp_path / "plan.yaml")
    drawn = plot("window", tmp_path / "plan.yaml").drawing
    frame = drawn.frame
    assert set(frame["residency"]) == {"states", "parked", "streamed"}
    assert frame.groupby("residency")["blocks"].max().eq(32).all()
    (own,) = frame[frame["chosen"]].to_dict(orient="records")
    assert (own["residency"], own["blocks"]) == ("streamed", 7)
    assert own["step_seconds"] == answer.estimate.step_seconds
    assert own["host_bytes"] == answer.estimate.host_bytes
    assert not frame["fits"].all()  # a host of 64 GiB holds less than all blocks
    for _, line in frame.groupby("residency"):
        assert line.sort_values("blocks")["host_bytes"].is_monotonic_increasing
    drawn.save(tmp_path / "window.png")
    assert (tmp_path / "window.png").read_bytes().startswith(b"\x89PNG")
    assert "on the host: " in drawn.title or "streamed from the host: " in drawn.title


def test_a_stack_without_offload_has_no_window() -> None:
    with pytest.raises(InputError, match="keeps no states of blocks in host memory"):
        priced("mbs1 zero0", "jax").plot("window")
