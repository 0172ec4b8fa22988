"""Families of models meet their contract, and refuse what means nothing to them."""

from __future__ import annotations

from typing import get_args

import pytest

from cost_models.families import FAMILIES, Family, load
from cost_models.files.loading import family_of_model
from executor.families import Training
from executor.measure.report import AnyReport
from meshwright.cli import VERBS, command_of, typer_function
from meshwright.verbs.contract import Verbs, require_options, require_verb, verbs_of_plan
from planner.plan import AnyPlan, load_any_plan


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_every_part_of_a_family_is_there(family: Family) -> None:
    assert issubclass(load(family.plan), AnyPlan)
    assert get_args(load(family.plan).model_fields["kind"].annotation) == (family.plan_kind,)
    assert (family.report is None) == (family.training is None) == ("run" not in load(family.verbs).options)
    parts = [(family.verbs, Verbs)]
    if family.training is not None:
        assert issubclass(load(family.report), AnyReport)
        parts.append((family.training, Training))
    for name, protocol in parts:
        asked = {one for one in {*vars(protocol), *protocol.__annotations__} if not one.startswith("_")}
        asked -= {"train"} if "trainer" in asked else set()  # which calls what `trainer` names
        assert protocol in load(name).__mro__
        assert asked <= set(vars(load(name))), "it has its own answer to everything that is asked of it"


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_every_option_of_a_family_is_one_of_its_verb(family: Family) -> None:
    verbs = {verb: typer_function(command_of(verb)).__annotations__ for verb in VERBS}
    for verb, options in load(family.verbs).options.items():
        assert options - {"clusters"} <= set(verbs.get(verb, verbs["plan"])), verb


def test_what_states_no_kind_is_a_transformer(tmp_path) -> None:
    assert family_of_model("gpt3-175b") is family_of_model("no such model") is FAMILIES["transformer"]
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert family_of_model(str(tmp_path / "config.json")) is FAMILIES["transformer"]


def test_what_means_nothing_to_a_family_is_refused(plan_file) -> None:
    verbs = verbs_of_plan(load_any_plan(plan_file))
    require_options(verbs, "plan", ("fix", "trainer"))
    with pytest.raises(ValueError, match="`meshwright chop` does not take a transformer"):
        require_verb(verbs, "chop")
    with pytest.raises(ValueError, match="--max-ids and --pick do not go with a transformer") as caught:
        require_options(verbs, "estimate", ("max_ids", "pick", "model"))
    assert caught.value.hint.startswith(
        "meshwright estimate takes --answers, --base-precision, --confidence,"
    )
