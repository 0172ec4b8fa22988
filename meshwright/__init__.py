"""Meshwright: this model, this cluster: how should it be trained in parallel, how fast, and will it fit?

    import meshwright as mw

    answer = mw.plan("gpt3-175b", "dgx-a100-80gb", mw.TrainingSpec(global_batch=1536, sequence_length=2048), gpus=1024)
    answer.to_frame(), answer.explain(), answer.save("plan.yaml")

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout as Layout
    from cost_models.axes.layout import parse_layout as parse_layout
    from cost_models.errors import HostError as HostError
    from cost_models.errors import InfeasibleError as InfeasibleError
    from cost_models.errors import InputError as InputError
    from cost_models.errors import MeshwrightError as MeshwrightError
    from cost_models.errors import RunError as RunError
    from cost_models.estimate import Estimate as Estimate
    from cost_models.specs.cluster import ClusterSpec as ClusterSpec
    from cost_models.specs.hardware import HardwareProfile as HardwareProfile
    from cost_models.specs.pools import MixedCluster as MixedCluster
    from cost_models.specs.recommender.model import RecommenderSpec as RecommenderSpec
    from cost_models.specs.recommender.training import RecommenderTraining as RecommenderTraining
    from cost_models.specs.training import TrainingSpec as TrainingSpec
    from cost_models.specs.transformer import TransformerSpec as TransformerSpec
    from executor.microbenchmarks.calibrate import calibrate as calibrate
    from meshwright.families.recommender.advised import ShardingAdvised as ShardingAdvised
    from meshwright.families.recommender.answering import CacheServed as CacheServed
    from meshwright.families.recommender.answers import ShardingEstimated as ShardingEstimated
    from meshwright.families.recommender.answers import ShardingPlanned as ShardingPlanned
    from meshwright.families.recommender.served import ServedRecommender as ServedRecommender
    from meshwright.families.transformer.advise import Advised as Advised
    from meshwright.families.transformer.compare import Compared as Compared
    from meshwright.families.transformer.estimate import Estimated as Estimated
    from meshwright.families.transformer.explain import Explained as Explained
    from meshwright.families.transformer.explain import NotChosen as NotChosen
    from meshwright.families.transformer.measured import Measured as Measured
    from meshwright.families.transformer.planning.largest_sizes import Largest as Largest
    from meshwright.families.transformer.planning.planned import Planned as Planned
    from meshwright.families.transformer.planning.ranked import Ranked as Ranked
    from meshwright.families.transformer.reshard import Resharded as Resharded
    from meshwright.families.transformer.run import Emulated as Emulated
    from meshwright.families.transformer.run import Ran as Ran
    from meshwright.plots.drawn import Drawing as Drawing
    from meshwright.verbs.advise import advise as advise
    from meshwright.verbs.calibrate import calibrate_from_run as calibrate_from_run
    from meshwright.verbs.calibrate import calibrate_from_runs as calibrate_from_runs
    from meshwright.verbs.calibrate.calibrated import Calibrated as Calibrated
    from meshwright.verbs.calibrate.fitted import Fitted as Fitted
    from meshwright.verbs.cluster import cluster_from_links as cluster_from_links
    from meshwright.verbs.cluster import discover as discover
    from meshwright.verbs.cluster.discovered import Discovered as Discovered
    from meshwright.verbs.cluster.linked import LinkedCluster as LinkedCluster
    from meshwright.verbs.compare import compare as compare
    from meshwright.verbs.doctor import doctor as doctor
    from meshwright.verbs.doctor.examined import Examined as Examined
    from meshwright.verbs.emulate import emulate as emulate
    from meshwright.verbs.estimate import estimate as estimate
    from meshwright.verbs.explain import explain as explain
    from meshwright.verbs.explain import why_not as why_not
    from meshwright.verbs.export import export as export
    from meshwright.verbs.export import import_plan as import_plan
    from meshwright.verbs.forecast import forecast as forecast
    from meshwright.verbs.forecast.forecasted import Forecasted as Forecasted
    from meshwright.verbs.largest import largest as largest
    from meshwright.verbs.measure import measure as measure
    from meshwright.verbs.plan import plan as plan
    from meshwright.verbs.plan_cache import plan_cache as plan_cache
    from meshwright.verbs.report import report as report
    from meshwright.verbs.report.writing import Reported as Reported
    from meshwright.verbs.reshard import reshard as reshard
    from meshwright.verbs.run.training import run as run
    from meshwright.verbs.serve import serve as serve
    from meshwright.verbs.validate import validate as validate
    from meshwright.verbs.validate import validate_recommenders as validate_recommenders
    from meshwright.verbs.validate.validated import Validated as Validated
    from meshwright.verbs.verify import verify as verify
    from planner.plan import Plan as Plan
    from planner.plan_files import load_plan as load_plan
    from planner.plan_files import save_plan as save_plan
    from planner.proof.checks import Check as Check

_HOMES = {
    "cost_models.axes.layout": "Layout parse_layout",
    "cost_models.errors": "HostError InfeasibleError InputError MeshwrightError RunError",
    "cost_models.estimate": "Estimate",
    "cost_models.specs.cluster": "ClusterSpec",
    "cost_models.specs.hardware": "HardwareProfile",
    "cost_models.specs.pools": "MixedCluster",
    "cost_models.specs.recommender.model": "RecommenderSpec",
    "cost_models.specs.recommender.training": "RecommenderTraining",
    "cost_models.specs.training": "TrainingSpec",
    "cost_models.specs.transformer": "TransformerSpec",
    "executor.microbenchmarks.calibrate": "calibrate",
    "meshwright.families.recommender.advised": "ShardingAdvised",
    "meshwright.families.recommender.answering": "CacheServed",
    "meshwright.families.recommender.answers": "ShardingEstimated ShardingPlanned",
    "meshwright.families.recommender.served": "ServedRecommender",
    "meshwright.families.transformer.advise": "Advised",
    "meshwright.families.transformer.compare": "Compared",
    "meshwright.families.transformer.estimate": "Estimated",
    "meshwright.families.transformer.explain": "Explained NotChosen",
    "meshwright.families.transformer.measured": "Measured",
    "meshwright.families.transformer.planning.largest_sizes": "Largest",
    "meshwright.families.transformer.planning.planned": "Planned",
    "meshwright.families.transformer.planning.ranked": "Ranked",
    "meshwright.families.transformer.reshard": "Resharded",
    "meshwright.families.transformer.run": "Emulated Ran",
    "meshwright.plots.drawn": "Drawing",
    "meshwright.verbs.advise": "advise",
    "meshwright.verbs.calibrate": "calibrate_from_run calibrate_from_runs",
    "meshwright.verbs.calibrate.calibrated": "Calibrated",
    "meshwright.verbs.calibrate.fitted": "Fitted",
    "meshwright.verbs.cluster": "cluster_from_links discover",
    "meshwright.verbs.cluster.discovered": "Discovered",
    "meshwright.verbs.cluster.linked": "LinkedCluster",
    "meshwright.verbs.compare": "compare",
    "meshwright.verbs.doctor": "doctor",
    "meshwright.verbs.doctor.examined": "Examined",
    "meshwright.verbs.emulate": "emulate",
    "meshwright.verbs.estimate": "estimate",
    "meshwright.verbs.explain": "explain why_not",
    "meshwright.verbs.export": "export import_plan",
    "meshwright.verbs.forecast": "forecast",
    "meshwright.verbs.forecast.forecasted": "Forecasted",
    "meshwright.verbs.largest": "largest",
    "meshwright.verbs.measure": "measure",
    "meshwright.verbs.plan": "plan",
    "meshwright.verbs.plan_cache": "plan_cache",
    "meshwright.verbs.report": "report",
    "meshwright.verbs.report.writing": "Reported",
    "meshwright.verbs.reshard": "reshard",
    "meshwright.verbs.run.training": "run",
    "meshwright.verbs.serve": "serve",
    "meshwright.verbs.validate": "validate validate_recommenders",
    "meshwright.verbs.validate.validated": "Validated",
    "meshwright.verbs.verify": "verify",
    "planner.plan": "Plan",
    "planner.plan_files": "load_plan save_plan",
    "planner.proof.checks": "Check",
}
"""Module → the public names that it holds."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module `meshwright` has no attribute `{name}`")
    from importlib import import_module

    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
