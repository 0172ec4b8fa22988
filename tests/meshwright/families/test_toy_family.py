"""Families of models meet their contract; a third one, made here alone, passes through the verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cost_models.base import Spec
from cost_models.errors import InputError, Problem
from cost_models.families import FAMILIES, Family, load
from cost_models.files.catalog import validate
from cost_models.files.loading import family_of_model
from cost_models.files.reading import read_document
from cost_models.specs.cluster import ClusterSpec, GpuSpec
from executor.families import Training
from executor.measure.report import AnyReport
from meshwright.cli import VERBS, command_of, typer_function
from meshwright.inputs.options import Request
from meshwright.inputs.questions import cluster_of, single_count
from meshwright.plots.drawing import Drawing, PictureRequest
from meshwright.verbs.contract import PlanAnswer, Verbs, require_options, require_verb, verbs_of_plan
from meshwright.verbs.estimate import EstimateOptions
from meshwright.verbs.plan import PlanOptions
from planner.plan import AnyPlan, load_any_plan, package_version
from planner.search.search import Budget


class Matrix(Spec):
    """A square matrix, multiplied with itself; `split` GPUs share its rows, and each has all of its columns."""

    kind: Literal["toy"] = "toy"
    name: str
    size: int


class MatrixPlan(AnyPlan):
    """A matrix on a cluster, split over so many of its GPUs."""

    kind: Literal["toy-plan"] = "toy-plan"
    model: Matrix
    cluster: ClusterSpec
    split: int

    searched = property(lambda self: True)
    num_ranks = property(lambda self: self.split)

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def gpu(self) -> GpuSpec:
        return self.cluster.gpu

    @property
    def seconds(self) -> float:
        """Products at the GPU's rate, and one gather of the result."""
        flops = 2.0 * self.model.size**3 / self.split
        gathered = 2.0 * self.model.size**2 * (self.split - 1) / self.split
        return flops / self.gpu.peak["bf16"] + gathered / self.cluster.links.intra_node.bandwidth

    @property
    def bytes(self) -> float:
        """Both factors, and its rows of the result."""
        return 2.0 * self.model.size**2 * (2 + 1 / self.split)

    def require_readable(self) -> None:
        """Nothing restricts it."""

    def problems(self) -> list[Problem]:
        return []


class Products(PlanAnswer):
    """Plans, best first: the answer of every verb of this family."""

    plans: tuple[MatrixPlan, ...]

    @property
    def plan(self) -> MatrixPlan:
        return self.plans[0]

    @property
    def fits(self) -> bool:
        return self.plan.bytes <= self.plan.gpu.memory

    def csv_rows(self) -> list[dict[str, Any]]:
        return [{"split": one.split, "seconds": one.seconds, "bytes": one.bytes} for one in self.plans]

    def view(self) -> tuple[str, ...]:
        return tuple(f"split{one.split}: {one.seconds:.6f} s" for one in self.plans)

    def document(self) -> dict[str, Any]:
        return {"products": self.rows}


@dataclass(frozen=True)
class Asked:
    """Splits to price."""

    plans: tuple[MatrixPlan, ...]
    assumptions: Sequence[str] = ()
    notes: Sequence[str] = ()

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Products:
        return Products(plans=tuple(sorted(self.plans, key=lambda plan: plan.seconds)[: top or 5]))


def read(request: Request) -> MatrixPlan:
    """The matrix on all GPUs of the cluster."""
    model = validate(read_document(str(request.model)), Matrix)
    cluster = cluster_of(request.cluster, single_count(request.gpus))
    assert isinstance(cluster, ClusterSpec)
    return MatrixPlan(
        meshwright_version=package_version(), model=model, cluster=cluster, split=cluster.num_gpus
    )


def splits(plan: MatrixPlan) -> tuple[MatrixPlan, ...]:
    return tuple(plan.model_copy(update={"split": split}) for split in range(1, plan.cluster.num_gpus + 1))


def frontier(request: PictureRequest) -> Drawing:
    frame = pd.DataFrame(Products(plans=splits(request.only("frontier", MatrixPlan))).rows)
    figure = Figure()
    figure.suptitle("More GPUs are faster, and each holds less")
    figure.subplots().plot(frame["bytes"], frame["seconds"])
    return Drawing(frame=frame, figure=figure)


class ToyVerbs(Verbs[MatrixPlan]):
    """What the family answers; what it does not take is refused for it."""

    noun = "a matrix"
    options = MappingProxyType({verb: frozenset({"gpus"}) for verb in ("plan", "estimate", "explain")})
    pictures = MappingProxyType({"frontier": frontier})

    def ask(self, options: PlanOptions) -> Asked:
        return Asked(splits(read(options)))

    def ask_estimate(self, options: EstimateOptions) -> Asked:
        split = options.layout.removeprefix("split")
        if not split.isdecimal():
            raise InputError(f"`{options.layout}` is no split", hint="write it like `split4`")
        return Asked((read(options).model_copy(update={"split": int(split)}),))

    def notes(self, plan: MatrixPlan) -> Sequence[str]:
        return ()

    def drift(self, plan: MatrixPlan, name: object) -> str:
        return ""

    def explain(self, plan: MatrixPlan) -> Products:
        return Products(plans=splits(plan))


@pytest.fixture
def matrix(tmp_path, monkeypatch) -> str:
    toy = Family(plan_kind="toy-plan", plan=f"{__name__}:MatrixPlan", verbs=f"{__name__}:ToyVerbs")
    monkeypatch.setitem(FAMILIES, "toy", toy)
    file = tmp_path / "matrix.yaml"
    file.write_text("kind: toy\nname: square\nsize: 16384\n")
    return str(file)


def test_a_family_passes_through_the_verbs(meshwright, matrix, tmp_path) -> None:
    plan, estimated = str(tmp_path / "plan.yaml"), str(tmp_path / "split2.yaml")
    answer = meshwright("plan", matrix, "dgx-h100", "--gpus", "8", "--top", "2", "-o", plan)
    assert answer.out.startswith("split8: ")
    assert f"Wrote {plan}. Next: meshwright explain {plan}" in answer.err
    record = meshwright.json("explain", plan)
    assert [one["split"] for one in record["products"]] == [*range(1, 9)]
    one = meshwright("estimate", matrix, "dgx-h100", "--gpus", "8", "--layout", "split2", "-o", estimated)
    assert one.out.startswith("split2: ")
    drawn = meshwright.json("plot", "frontier", plan, "-o", str(tmp_path / "f.svg"))
    assert drawn["title"] == "More GPUs are faster, and each holds less"
    assert len(drawn["points"]) == 8
    refused = meshwright("plan", matrix, "dgx-h100", "--fix", "tp=8")
    assert "--fix does not go with a matrix" in refused.err


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
