"""What plans of all families of models share, whatever they say of where the parts of the model lie."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from cost_models.base import Spec
from cost_models.errors import Problem
from cost_models.specs.cluster import GpuSpec

PLAN_SCHEMA = 1


class AnyPlan(Spec):
    """A question and its answer, everything needed to train with it; each family adds its own fields."""

    kind: str
    """The kind of plan file."""
    schema_version: int = PLAN_SCHEMA
    meshwright_version: str

    @property
    def model_name(self) -> str:
        """The name of the model."""
        raise NotImplementedError

    @property
    def num_ranks(self) -> int:
        """Processes that train with it: a GPU each."""
        raise NotImplementedError

    @property
    def gpu(self) -> GpuSpec:
        """The GPU it is for, or a CPU; of several pools the one that holds for all."""
        raise NotImplementedError

    @property
    def searched(self) -> bool:
        """Whether it was searched for, and so claims that nothing is better."""
        raise NotImplementedError

    def require_readable(self) -> None:
        """Do nothing where the words of its restrictions can be read; raises InputError."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """What is wrong with it on its own cluster: broken rules, and parts that are not placed."""
        raise NotImplementedError


def own_version() -> str:
    """Version of the installed package; a checkout that is only on the path has none."""
    try:
        return version("meshwright")
    except PackageNotFoundError:
        return "not installed"
