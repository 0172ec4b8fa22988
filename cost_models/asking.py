"""Complete a question: pick the software stack and the hardware profile that fit the cluster."""

from __future__ import annotations

from cost_models.calibration.measured_cluster import measured_cluster
from cost_models.errors import InputError
from cost_models.question import Question
from cost_models.specs import catalog
from cost_models.specs.cluster import ClusterSpec, GpuSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.local import LOCAL
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
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
) -> Question:
    """A question with its stack (default: our own on this machine and on CPUs, Megatron Core on GPU clusters) and its hardware profile.

    The profile is, in this order: the one given, the cluster's own, the catalogue's for this GPU and stack, the
    catalogue's for this GPU, the datasheet defaults. Where the profile measured peak, bandwidth or links of a machine
    without a datasheet, they take the place of the cluster's: its other constants are shares of them.

    Raises:
        UnknownNameError: no such stack or profile.
        InputError: a profile of another GPU.
    """
    here = cluster.gpu.kind == "cpu" or cluster.name == LOCAL
    chosen = catalog.load_stack(stack or (OWN_STACK if here else DEFAULT_STACK))
    named = profile or cluster.profile
    if named is None:
        hardware = _best_profile(cluster.gpu, chosen.name)
    elif isinstance(named, HardwareProfile):
        hardware = named
    else:
        hardware = catalog.load_profile(named)
    if hardware.tier != "datasheet" and hardware.gpu != cluster.gpu.name:
        raise InputError(
            f"profile `{hardware.name}` was made for `{hardware.gpu}`; the cluster has `{cluster.gpu.name}`"
        )
    return Question(
        model=model,
        cluster=measured_cluster(hardware, cluster),
        training=training,
        stack=chosen,
        hardware=hardware,
    )


def _best_profile(gpu: GpuSpec, stack: str) -> HardwareProfile:
    """The catalogue's nearest: same GPU and stack, same GPU, or the datasheet defaults of its kind."""
    known = [catalog.load_profile(name) for name in catalog.names("profiles")]
    same_gpu = [profile for profile in known if profile.gpu == gpu.name and profile.tier != "datasheet"]
    for profile in same_gpu:
        if profile.stack == stack:
            return profile
    if same_gpu:
        return same_gpu[0]
    return catalog.load_profile("datasheet-cpu" if gpu.kind == "cpu" else "datasheet-gpu")
