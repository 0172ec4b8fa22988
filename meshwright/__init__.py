"""Meshwright: this model, this cluster: how should it be trained in parallel, how fast, and will it fit?

    import meshwright as mw

    answer = mw.plan("gpt3-175b", "dgx-a100-80gb", mw.TrainingSpec(global_batch=1536, sequence_length=2048), gpus=1024)
    answer.to_frame(), answer.explain(), answer.save("plan.yaml")

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout, parse_layout
    from cost_models.errors import HostError, InfeasibleError, InputError, MeshwrightError, RunError
    from cost_models.estimate import Estimate
    from cost_models.specs.cluster import ClusterSpec
    from cost_models.specs.hardware import HardwareProfile
    from cost_models.specs.pools import MixedCluster
    from cost_models.specs.recommender.model import RecommenderSpec
    from cost_models.specs.recommender.training import RecommenderTraining
    from cost_models.specs.training import TrainingSpec
    from cost_models.specs.transformer import TransformerSpec
    from executor.microbenchmarks.calibrate import calibrate
    from meshwright.answers.advised import Advised
    from meshwright.answers.calibrated import Calibrated
    from meshwright.answers.compared import Compared
    from meshwright.answers.discovered import Discovered
    from meshwright.answers.emulated import Emulated
    from meshwright.answers.estimated import Estimated
    from meshwright.answers.examined import Examined
    from meshwright.answers.explained import Explained, NotChosen
    from meshwright.answers.fitted import Fitted
    from meshwright.answers.forecasted import Forecasted
    from meshwright.answers.largest import Largest
    from meshwright.answers.planned import Planned
    from meshwright.answers.ranked import Ranked
    from meshwright.answers.reported import Reported
    from meshwright.answers.run import Ran
    from meshwright.answers.served import ServedRecommender
    from meshwright.answers.validated import Validated
    from meshwright.api.advise import advise
    from meshwright.api.calibrate import calibrate_from_run, calibrate_from_runs
    from meshwright.api.compare import compare
    from meshwright.api.discover import discover
    from meshwright.api.doctor import doctor
    from meshwright.api.emulate import emulate
    from meshwright.api.estimate import estimate
    from meshwright.api.explain import explain, why_not
    from meshwright.api.exporting import export, import_plan
    from meshwright.api.forecast import forecast
    from meshwright.api.largest import largest
    from meshwright.api.plan import plan
    from meshwright.api.report import report
    from meshwright.api.run import run
    from meshwright.api.serving import serve
    from meshwright.api.validate import validate
    from meshwright.api.validate_recommenders import validate_recommenders
    from meshwright.api.verify import verify
    from meshwright.families.recommender.advised import ShardingAdvised
    from meshwright.families.recommender.answers import ShardingEstimated, ShardingPlanned
    from meshwright.plots.drawn import Drawing
    from planner.plan import Plan
    from planner.plan_files import load_plan, save_plan
    from planner.proof.checks import Check

_HOMES = {
    "plan": "meshwright.api.plan",
    "largest": "meshwright.api.largest",
    "Largest": "meshwright.answers.largest",
    "serve": "meshwright.api.serving",
    "export": "meshwright.api.exporting",
    "import_plan": "meshwright.api.exporting",
    "ServedRecommender": "meshwright.answers.served",
    "estimate": "meshwright.api.estimate",
    "discover": "meshwright.api.discover",
    "Discovered": "meshwright.answers.discovered",
    "doctor": "meshwright.api.doctor",
    "Examined": "meshwright.answers.examined",
    "forecast": "meshwright.api.forecast",
    "Forecasted": "meshwright.answers.forecasted",
    "verify": "meshwright.api.verify",
    "Check": "planner.proof.verifying",
    "advise": "meshwright.api.advise",
    "Advised": "meshwright.answers.advised",
    "report": "meshwright.api.report",
    "Reported": "meshwright.answers.reported",
    "run": "meshwright.api.run",
    "validate": "meshwright.api.validate",
    "validate_recommenders": "meshwright.api.validate_recommenders",
    "calibrate": "executor.microbenchmarks.calibrate",
    "calibrate_from_run": "meshwright.api.calibrate",
    "calibrate_from_runs": "meshwright.api.calibrate",
    "Fitted": "meshwright.answers.fitted",
    "compare": "meshwright.api.compare",
    "Compared": "meshwright.answers.compared",
    "explain": "meshwright.api.explain",
    "why_not": "meshwright.api.explain",
    "Explained": "meshwright.answers.explained",
    "NotChosen": "meshwright.answers.explained",
    "emulate": "meshwright.api.emulate",
    "Emulated": "meshwright.answers.emulated",
    "Calibrated": "meshwright.answers.calibrated",
    "Planned": "meshwright.answers.planned",
    "Estimated": "meshwright.answers.estimated",
    "Ran": "meshwright.answers.run",
    "Ranked": "meshwright.answers.ranked",
    "Validated": "meshwright.answers.validated",
    "Drawing": "meshwright.plots.drawn",
    "Plan": "planner.plan",
    "load_plan": "planner.plan_files",
    "save_plan": "planner.plan_files",
    "Estimate": "cost_models.estimate",
    "Layout": "cost_models.axes.layout",
    "parse_layout": "cost_models.axes.layout",
    "TransformerSpec": "cost_models.specs.transformer",
    "RecommenderSpec": "cost_models.specs.recommender.model",
    "RecommenderTraining": "cost_models.specs.recommender.training",
    "ShardingPlanned": "meshwright.families.recommender.answers",
    "ShardingAdvised": "meshwright.families.recommender.advised",
    "ShardingEstimated": "meshwright.families.recommender.answers",
    "ClusterSpec": "cost_models.specs.cluster",
    "MixedCluster": "cost_models.specs.pools",
    "TrainingSpec": "cost_models.specs.training",
    "HardwareProfile": "cost_models.specs.hardware",
    "MeshwrightError": "cost_models.errors",
    "InputError": "cost_models.errors",
    "InfeasibleError": "cost_models.errors",
    "HostError": "cost_models.errors",
    "RunError": "cost_models.errors",
}

__all__ = [
    "Advised",
    "Calibrated",
    "Check",
    "ClusterSpec",
    "Compared",
    "Discovered",
    "Drawing",
    "Emulated",
    "Estimate",
    "Estimated",
    "Examined",
    "Explained",
    "Fitted",
    "Forecasted",
    "HardwareProfile",
    "HostError",
    "InfeasibleError",
    "InputError",
    "Largest",
    "Layout",
    "MeshwrightError",
    "MixedCluster",
    "NotChosen",
    "Plan",
    "Planned",
    "Ran",
    "Ranked",
    "RecommenderSpec",
    "RecommenderTraining",
    "Reported",
    "RunError",
    "ServedRecommender",
    "ShardingAdvised",
    "ShardingEstimated",
    "ShardingPlanned",
    "TrainingSpec",
    "TransformerSpec",
    "Validated",
    "advise",
    "calibrate",
    "calibrate_from_run",
    "calibrate_from_runs",
    "compare",
    "discover",
    "doctor",
    "emulate",
    "estimate",
    "explain",
    "export",
    "forecast",
    "import_plan",
    "largest",
    "load_plan",
    "parse_layout",
    "plan",
    "report",
    "run",
    "save_plan",
    "serve",
    "validate",
    "validate_recommenders",
    "verify",
    "why_not",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module `meshwright` has no attribute `{name}`")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
