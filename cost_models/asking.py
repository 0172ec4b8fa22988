"""Complete a question: pick the software stack and the hardware profile that fit the cluster."""

from __future__ import annotations

from cost_models.calibration.measured_cluster import measured_cluster
from cost_models.errors import InputError
from cost_models.question import Question
from cost_models.specs import catalog
from cost_models.specs.cluster import ClusterSpec, GpuSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.local import LOCAL
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

DEFAULT_STACK = "megatron-core"
"""What people train large dense models with; `--stack` says otherwise."""
OWN_STACK = "meshwright"
"""This project's executor."""


def ask(
    model: TransformerSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    *,
    stack: str | StackSpec | None = None,
    profile: str | HardwareProfile | None = None,
) -> Question:
    """A question completed: its stack (default: our own here and on CPUs, Megatron Core on clusters) and its profile.

    The profile is, in this order: the one given, the cluster's own, the catalogue's for this GPU and stack, for this
    GPU, for its die, the datasheet defaults. Where the profile measured peak, bandwidth or links of a machine without a
    datasheet, they take the place of the cluster's: its other constants are shares of them.

    Raises:
        UnknownNameError: no such stack or profile.
        InputError: a profile of another GPU.
    """
    here = cluster.gpu.kind == "cpu" or cluster.name == LOCAL
    chosen = (
        stack
        if isinstance(stack, StackSpec)
        else catalog.load_stack(stack or (OWN_STACK if here else DEFAULT_STACK))
    )
    named = profile or cluster.profile
    if named is None:
        hardware = _best_profile(cluster.gpu, chosen.name)
    elif isinstance(named, HardwareProfile):
        hardware = named
    else:
        hardware = catalog.load_profile(named)
    if hardware.tier != "datasheet" and cluster.gpu.name not in (hardware.gpu, *hardware.also_for):
        raise InputError(
            f"profile `{hardware.name}` was made for `{hardware.gpu}`; the cluster has `{cluster.gpu.name}`",
            hint="leave out --profile for the catalogue's nearest, or calibrate one on that GPU",
        )
    return Question(
        model=model,
        cluster=measured_cluster(hardware, cluster),
        training=training,
        stack=chosen,
        hardware=hardware,
    )


def _best_profile(gpu: GpuSpec, stack: str) -> HardwareProfile:
    """The catalogue's nearest: same GPU and stack, same GPU, same die, or the datasheet defaults of its kind."""
    known = [catalog.load_profile(name) for name in catalog.names("profiles")]
    fitted = [profile for profile in known if profile.tier != "datasheet"]
    for suits in (
        lambda profile: profile.gpu == gpu.name and profile.stack == stack,
        lambda profile: profile.gpu == gpu.name,
        lambda profile: gpu.name in profile.also_for and profile.stack == stack,
        lambda profile: gpu.name in profile.also_for,
    ):
        if nearest := next(filter(suits, fitted), None):
            return nearest
    return catalog.load_profile("datasheet-cpu" if gpu.kind == "cpu" else "datasheet-gpu")
