"""DeepSpeed: layout, training job and software stack of its JSON; the model is the program's own.

Sources: DeepSpeed 0.19.8: deepspeed/runtime/config.py, runtime/constants.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py; what fills in
`auto`: transformers' integrations/deepspeed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.reading.settings import Beside, Reading, Settings, by_path, settings_of
from planner.formats.table import table_of

STACK = "deepspeed"
MARKS = frozenset({"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"})
"""Keys that tell its JSON from other files: each has one of them."""
_ZERO = "zero_optimization"
_REDUCES = f"{_ZERO}.reduce_bucket_size"
_NARROW = ("bf16.enabled", "fp16.enabled")
_RECOMPUTES = "gradient_checkpointing"
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read_deepspeed(document: Mapping[str, Any], model: TransformerSpec, beside: Beside) -> Reading:
    """The run of a file, of a model.

    Raises:
        InputError: settings contradict one another, or are the program's to fill in (`auto`).
    """
    assumed: list[str] = []
    said = _filled(document, beside.also, model, assumed)
    base = load_stack(beside.stack or STACK)
    layout = _layout(said, model, beside.gpus, assumed)
    training = _training(said, layout, beside.sequence, base, assumed)
    own = base.model_copy(update=_facts(said, layout, base))
    assumptions = (*said.unread(), *assumed)
    return Reading(model=model, training=training, layout=layout, stack=own, assumptions=assumptions)


def _filled(
    document: Mapping[str, Any], program: Mapping[str, Any], model: TransformerSpec, assumed: list[str]
) -> Settings:
    """Settings of a file with those that the program fills in; `auto` of what changes no step is left out.

    Raises:
        InputError: the program's contradict the file's, or nothing fills one in.
    """
    table, left = table_of("deepspeed"), list[Problem]()
    spelled = table.spelled("earlier")
    said = settings_of({path: one for path, one in by_path(document) if one != "auto"}, program, table=table)
    auto = {spelled.get(path, path) for path, value in by_path(document) if value == "auto"}
    for path in sorted(auto - said.values.keys()):
        if path == _REDUCES:
            said.values[path] = model.hidden_size**2
        elif path in _NARROW and not any(said.values.get(other) for other in _NARROW):
            said.values[path] = True
            assumed.append(f"`{path}: true`, which the file leaves to the program: --also {path}=false")
        elif path in table.arguments and path not in (*_BATCHES, *_NARROW, "pipeline.stages"):
            left.append(Problem(path, "`auto` is filled in when the program starts"))
        elif table.fate(path) is None and path not in table.arguments:
            said.values[path] = "auto"
    if left:
        hint = f'--also "{left[0].where}=VALUE" says it'
        raise InputError("the file leaves values to the program", problems=left, hint=hint)
    return said


def _layout(said: Settings, model: TransformerSpec, gpus: int | None, assumed: list[str]) -> Layout:
    tp, cp = said.whole("tensor_parallel.autotp_size"), said.whole("sequence_parallel_size")
    pp, ep = said.whole("pipeline.stages"), said.whole("expert_parallel.autoep_size")
    if gpus is None:
        batch, mbs, steps = (said.whole(name) for name in _BATCHES)
        if None in (batch, mbs, steps):
            raise InputError("the file does not say all", problems=[Problem("--gpus", "missing")])
        gpus = tp * pp * cp * batch // (mbs * steps)
    if gpus < 1 or gpus % (tp * pp * cp):
        raise InputError(f"{gpus} GPUs do not divide by tp{tp} × pp{pp} × cp{cp} of the file")
    dp = gpus // (tp * pp * cp)
    fields: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "ep": ep,
        "mbs": _batches(said, dp)[1],
        "zero": said.get(f"{_ZERO}.stage"),
        "recompute": ("full" if _recomputes(said, pp, assumed) else "none",),
        "offload": _offload(said, model.num_layers // pp),
    }
    if ep > 1 and (etp := said.whole("expert_parallel.expert_tensor_parallel_size")) != tp:
        fields["etp"] = etp
    if not model.num_layers % pp:
        fields["layers"] = (model.num_layers // pp,) * pp
    return Layout(**fields)


def _batches(said: Settings, dp: int) -> tuple[int, int, int]:
    """Global batch, microbatch and accumulation: of three any two give the third (`_batch_assertion`)."""
    batch, mbs, steps = (said.whole(name) for name in _BATCHES)
    if batch is None and mbs is None:
        hint = f'--also "{_BATCHES[1]}=1" says it'
        raise InputError(f"the file says neither `{_BATCHES[0]}` nor `{_BATCHES[1]}`", hint=hint)
    steps = steps or (1 if batch is None or mbs is None else max(1, batch // (mbs * dp)))
    mbs = mbs or max(1, batch // (steps * dp))
    batch = batch or mbs * steps * dp
    if batch != mbs * steps * dp:
        words = ", ".join(f"`{name}: {said.get(name)}`" for name in _BATCHES if said.get(name) is not None)
        raise InputError(
            f"{words} contradict one another with dp{dp}", hint="the first is the product of all others"
        )
    return batch, mbs, steps


def _recomputes(said: Settings, pp: int, assumed: list[str]) -> bool:
    program, interval = said.get(_RECOMPUTES, None), said.get("pipeline.activation_checkpoint_interval")
    if pp > 1 or program is not None:
        return bool(interval if pp > 1 else program)
    named = any(path.startswith("activation_checkpointing") for path in said.values)
    what = "every block is recomputed" if named else "nothing is recomputed"
    assumed.append(
        f"{what}: the program decides, the file has {'an' if named else 'no'} `activation_checkpointing`"
    )
    return named


def _offload(said: Settings, blocks: int) -> Offload:
    optimizer = "cpu" if said.get(f"{_ZERO}.cpu_offload") else said.get(f"{_ZERO}.offload_optimizer.device")
    weights = None
    if said.get(f"{_ZERO}.stage") == 3:
        weights = (
            "cpu" if said.get(f"{_ZERO}.cpu_offload_param") else said.get(f"{_ZERO}.offload_param.device")
        )
    for device in (optimizer, weights):
        if device not in ("none", None, "cpu", "nvme"):
            raise InputError(f"`device: {device}` is not known here")
    if weights == "nvme":
        raise InputError("weights on a drive are not priced here", hint="`offload_param` to cpu is")
    drive = EVERY if optimizer == "nvme" else 0
    if weights == "cpu" and optimizer in ("none", None):
        raise InputError(
            "weights on the host and states on the device are not priced here",
            hint="`offload_optimizer` to cpu is",
        )
    if weights == "cpu":
        return Offload(streamed=EVERY, drive=drive)
    if optimizer in ("none", None):
        return Offload()
    share = said.get(f"{_ZERO}.offload_optimizer.ratio")
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(f"`ratio: {share}` is no share")
    return Offload(states=EVERY if share >= 1 else round(share * blocks), drive=drive)


def _training(
    said: Settings, layout: Layout, sequence: int, stack: StackSpec, assumed: list[str]
) -> TrainingSpec:
    path = "optim" if said.get("optim") and "optimizer.type" not in said.values else "optimizer.type"
    if path not in said.values:
        assumed.append("AdamW: the file names no optimizer")
    narrow = [one for one in ("bf16", "fp16") if said.get(f"{one}.enabled")]
    if len(narrow) > 1:
        raise InputError("`bf16.enabled` contradicts `fp16.enabled`")
    if not narrow:
        assumed.append("fp32: neither `bf16` nor `fp16` is enabled")
    dtype = said.get("data_types.grad_accum_dtype")
    gradients = None if dtype is None else "fp32" if dtype == "fp32" else "bf16"
    narrow_states = said.get("bf16.bf16_master_weights_and_grads") and said.get("bf16.bf16_optimizer_states")
    fields: dict[str, Any] = {
        "global_batch": _batches(said, layout.dp)[0],
        "sequence_length": sequence,
        "precision": narrow[0] if narrow else "fp32",
        "optimizer": said.ours(path),
        "gradient_dtype": None if gradients == stack.gradient_dtype else gradients,
        "state_dtype": "bf16" if narrow_states else "fp32",
    }
    return TrainingSpec(**fields)


def _facts(said: Settings, layout: Layout, stack: StackSpec) -> dict[str, Any]:
    """Facts of the software stack that the file sets; ZeRO-3 overlaps by default (zero/config.py)."""
    if not layout.zero:
        return {}
    facts: dict[str, Any] = {"overlap_gradient_reduce": said.get(f"{_ZERO}.overlap_comm", layout.zero == 3)}
    buckets = [f"{_ZERO}.{kind}_bucket_size" for kind in ("reduce", "allgather")]
    sizes = [said.whole(bucket, None) or said.usual(bucket) for bucket in buckets]
    if any(said.get(bucket, None) for bucket in buckets):
        facts["collective_buffers"] = 2.0 * sum(sizes)  # of two bytes an element
    if layout.zero == 3 and (group := said.whole(f"{_ZERO}.sub_group_size", None)):
        facts["update_group"] = group
    if layout.offload.drive:
        place = f"{_ZERO}.offload_optimizer"
        reads, writes = (said.get(f"{place}.pipeline_{one}") for one in ("read", "write"))
        drive = {"buffers": said.whole(f"{place}.buffer_count"), "overlaps": bool(reads and writes)}
        facts["drive"] = stack.drive.model_copy(update=drive)
    return facts
