"""Plans that release 0.2.0 wrote: they load, and are explained and verified here."""

from __future__ import annotations

from pathlib import Path

import pytest

PLANS = sorted((Path(__file__).parent / "earlier_plans").glob("*.yaml"))


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_a_plan_of_an_earlier_release_is_verified_and_explained(plan: Path, meshwright) -> None:
    verified = meshwright("verify", str(plan))
    assert verified.code == 0, verified.out
    assert "release 0.2.0 covered" in " ".join(verified.out.split()) or plan.stem == "dlrm"
    explained = meshwright("explain", str(plan))
    assert explained.code == 0, explained.err
