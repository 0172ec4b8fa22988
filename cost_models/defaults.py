"""Defaults of the software stack and the hardware profile (measured constants) of a cluster, if the user
gives none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product

from cost_models.compute.gemm import require_rate
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.question import Question, mixed_question, require_tiles
from cost_models.specs.cluster import ClusterSpec, GpuSpec, MixedCluster, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import VOCABULARY_UNIT, StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

DEFAULT_STACK = "megatron-core"
"""Name of the software stack assumed on clusters if the user names none: the most used one for large dense
models."""
OWN_STACK, OWN_COMPILED = "meshwright", "meshwright-compiled"
"""Names of the software stacks of this project's executor, without and with compilation of blocks
(`torch.compile`)."""
OWN_STACKS = (OWN_STACK, OWN_COMPILED)
WITHOUT_PROFILE = "leave out --profile for the catalogue's nearest"
"""Hint to the user who names a hardware profile of another GPU."""


DIES: dict[str, tuple[str, ...]] = {
    "a100-sxm-80gb": ("a100-sxm-40gb", "a100-pcie-80gb", "a100-pcie-40gb", "a800-sxm-80gb"),
    "h100-sxm": ("h200", "h100-nvl", "h100-pcie", "h800", "h20", "gh200"),
    "b200": ("gb200", "b300", "gb300"),
}
"""Names of the GPUs with the same silicon die as a GPU with hardware profiles, by the latter's name. They are assumed
to reach the same fractions of their peaks."""


def die_of(gpu: str) -> str:
    """Name of the GPU model that represents all GPUs with the same silicon die as `gpu`."""
    return next((die for die, others in DIES.items() if gpu in others), gpu)


def complete_question(
    model: TransformerSpec,
    cluster: ClusterSpec | MixedCluster,
    training: TrainingSpec,
    *,
    stack: str | StackSpec | None = None,
    profile: str | HardwareProfile | None = None,
) -> Question:
    """Create a question (all inputs that determine prices), with the stack and hardware profile filled in if
    the user gives none. The default stack is the project's executor on CPUs and the local machine, and
    Megatron Core on clusters.

    The profile is the given one, the cluster's own, or the catalogue's nearest (`nearest_profile`). If it
    measured peak, bandwidth or links of a machine without a datasheet, these replace the cluster's, since its
    other constants are shares of them. The project's stack uses the measured attention kernel. In a cluster
    of several pools all pools have the stack of the first, and a given profile applies to the pools with its
    GPU.

    Raises:
        UnknownNameError: no such stack or profile.
        InputError: a profile of another GPU, or of another kind of device.
    """
    if isinstance(cluster, MixedCluster):
        spec = catalog.load_profile(profile) if isinstance(profile, str) else profile
        suits = [spec and (spec.tier == "datasheet" or _suits(spec, pool.gpu)) for pool in cluster.pools]
        if spec and not any(suits):
            text = f"profile `{spec.name}` was made for `{spec.gpu}`; no pool of `{cluster.name}` has it"
            raise InputError(text, hint=WITHOUT_PROFILE)
        pools: list[Question] = []
        for pool, suited in zip(cluster.pools, suits, strict=True):
            stack, pool_profile = pools[0].stack if pools else stack, spec if suited else None
            pools.append(complete_question(model, pool, training, stack=stack, profile=pool_profile))
        return mixed_question(cluster, tuple(pools))
    stack_spec, hardware = resolve_stack(cluster, stack, profile, usual=DEFAULT_STACK)
    if (profile or cluster.profile) and hardware.tier != "datasheet" and not _suits(hardware, cluster.gpu):
        origin = f"profile `{hardware.name}` was made for `{hardware.gpu}`"
        text = f"{origin}; the cluster has `{cluster.gpu.name}`"
        raise InputError(text, hint=f"{WITHOUT_PROFILE}, or calibrate one on that GPU")
    if hardware.attention_kernel is not None and stack_spec.name in OWN_STACKS:
        stack_spec = stack_spec.model_copy(update={"attention": hardware.attention_kernel})
    if stack_spec.pads_vocabulary and model.vocab_multiple == 1 and not model.diffusion:
        model = model.model_copy(update={"vocab_multiple": VOCABULARY_UNIT})
    require_tiles(hardware, cluster.gpu)
    cluster = measured_cluster(hardware, cluster)
    question = Question(model=model, cluster=cluster, training=training, stack=stack_spec, hardware=hardware)
    return question.updated("training", dropout=question.dropout)


def resolve_stack(
    cluster: ClusterSpec, stack: str | StackSpec | None, profile: str | HardwareProfile | None, *, usual: str
) -> tuple[StackSpec, HardwareProfile]:
    """Software stack and hardware profile for a cluster: those that the user gives, else defaults. The
    default stack is this project's executor on CPUs and the local machine, else the stack named `usual`. The
    default profile is the cluster's, else the nearest in the catalogue. Raises UnknownNameError."""
    if not isinstance(stack, StackSpec):
        on_this_machine = cluster.gpu.kind == "cpu" or cluster.name == LOCAL
        stack = catalog.load_stack(stack or (OWN_STACK if on_this_machine else usual))
    profile = profile or cluster.profile or nearest_profile(cluster.gpu, stack.name, family=stack.family)
    return stack, catalog.load_profile(profile) if isinstance(profile, str) else profile


def assumed_dropout(training: TrainingSpec, question: Question) -> tuple[str, ...]:
    """Note to the user about the dropout that is assumed because the training job gives none; empty if it is
    zero."""
    text = f"dropout {question.dropout:g}, as is usual with software stack `{question.stack.name}`; say 0 for none"
    return (text,) if training.dropout is None and question.dropout else ()


def assumed_padding(model: TransformerSpec, question: Question) -> tuple[str, ...]:
    """Note to the user about the size to which the stack pads the vocabulary; empty without padding."""
    multiple = question.model.vocab_multiple
    padding = -model.vocab_size % multiple
    padded = f"`{question.stack.name}` pads the vocabulary of {model.vocab_size:,} to a multiple of {multiple} x tp"
    text = f"{padded}: {model.vocab_size + padding:,} at tp1"
    return (text,) if padding and multiple != model.vocab_multiple else ()


def questions_by_precision(question: Question, precisions: Sequence[Precision]) -> tuple[Question, ...]:
    """Copies of the question, one for each training precision, in the given order. Raises InputError if the
    GPU has no matrix rate in one of them."""
    for pool, precision in product(question.pools, precisions):
        require_rate(pool.cluster.gpu, precision)
    return tuple(question.updated("training", precision=precision) for precision in precisions)


def _suits(profile: HardwareProfile, gpu: GpuSpec) -> bool:
    """Whether a hardware profile was measured on the GPU, or is marked as usable for it."""
    return gpu.name in (profile.gpu, *profile.also_for)


def _peak_distance(profile: HardwareProfile, gpu: GpuSpec) -> float:
    """Distance |ln(ratio)| between the peak FLOP/s of a profile's GPU and of `gpu`; 0 if the catalogue lacks
    the profile's GPU."""
    if profile.gpu not in catalog.names("gpus"):
        return 0.0
    peaks = (max(catalog.load_gpu(profile.gpu).peak.values()), max(gpu.peak.values()))
    return abs(math.log(peaks[0] / peaks[1]))


def nearest_profile(
    gpu: GpuSpec,
    stack: str,
    candidates: Iterable[HardwareProfile] | None = None,
    *,
    family: str | None = None,
) -> HardwareProfile:
    """Choose the hardware profile that best predicts a GPU under a stack, from `candidates` or, if None, the
    catalogue.

    In this order: this GPU and stack, its die and this stack, both with the stack's family, this GPU with any
    stack, its die with any stack, this stack on another GPU (shares are shares of what a GPU sustains) or its
    family, this GPU or die with another stack, any stack on another GPU, the defaults. Among other GPUs the
    one with the closest peak counts. Profiles that borrow their constants from another GPU are not used for
    further GPUs.
    """
    profiles = (
        [catalog.load_profile(name) for name in catalog.names("profiles")]
        if candidates is None
        else candidates
    )
    fitted = [profile for profile in profiles if profile.tier != "datasheet"]
    fitted.sort(key=lambda profile: _peak_distance(profile, gpu))
    accelerator, stacks = gpu.kind != "cpu", (stack, family, "any")
    of_gpu = [one for one in fitted if one.gpu == gpu.name]
    of_die = [one for one in fitted if gpu.name in one.also_for]
    lenders = [one for one in fitted if accelerator and one.borrowed_from is None]
    preferences = [(profiles, name) for name in stacks for profiles in (of_gpu, of_die)]
    preferences += [(lenders, stack), (lenders, family)]
    near = [one for profiles, name in preferences for one in profiles if one.stack == name]
    near += [one for one in fitted if _suits(one, gpu)]
    near += [one for one in lenders if one.stack == "any"]
    return near[0] if near else catalog.load_profile("datasheet-gpu" if accelerator else "datasheet-cpu")


def measured_cluster(profile: HardwareProfile, base: ClusterSpec) -> ClusterSpec:
    """Copy of a cluster with the peak FLOP/s, bandwidth and links that the hardware profile measured.

    A link has the rate of the largest message between two devices, and the latency of the smallest. The peak
    of a CPU is then the best fp32 product measured with all processes running, so MFU is relative to it; the
    GPU's `source` says so.
    """
    gpu = base.gpu
    if profile.measured_peak and profile.measured_bandwidth:
        peak = dict.fromkeys(gpu.peak, profile.measured_peak)
        source = f"no datasheet: peak is the best matrix rate seen ({profile.source})"
        measured_rates = {"peak": peak, "memory_bandwidth": profile.measured_bandwidth, "source": source}
        gpu = gpu.model_copy(update=measured_rates)
    links = base.links
    if curve := next((one for one in profile.collectives if one.operation == "p2p"), None):
        largest, smallest = (pick(curve.points, key=lambda point: point.size) for pick in (max, min))
        measured = {"bandwidth": largest.size / largest.seconds, "latency": smallest.seconds}
        links = links.with_intra_node(links.intra_node.model_copy(update=measured))
    return base.model_copy(update={"gpu": gpu, "links": links})
