"""JSON schema of each kind of file, for editors and for `meshwright catalog schema`."""

from __future__ import annotations

from typing import Any

from cost_models.base import Spec
from cost_models.errors import UnknownNameError
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.operations import OperationsSpec
from cost_models.specs.pools import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.specs.transformer_shape import DERIVED_FIELDS

KINDS: dict[str, type[Spec]] = {
    "transformer": TransformerSpec,
    "cluster": ClusterSpec,
    "pools": MixedCluster,
    "recommender": RecommenderSpec,
    "training": TrainingSpec,
    "recommender-training": RecommenderTraining,
    "stack": StackSpec,
    "profile": HardwareProfile,
    "operations": OperationsSpec,
}
"""Kind of file → its spec; `pools` is a cluster of several."""


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of what people write: quantities are text with a unit, a cluster's GPU may be a name.

    Raises:
        UnknownNameError: no such kind of file.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS, hint=f"kinds: {', '.join(KINDS)}")
    schema = KINDS[kind].model_json_schema(mode="serialization")
    required = [name for name in schema.get("required", []) if name not in DERIVED_FIELDS]
    schema["required"] = required
    if kind in ("cluster", "pools"):
        cluster = schema if kind == "cluster" else schema["$defs"]["ClusterSpec"]
        gpu = cluster["properties"]["gpu"]
        inline = {"$ref": gpu.pop("$ref")}
        gpu["anyOf"] = [{"type": "string"}, inline]
    return schema
