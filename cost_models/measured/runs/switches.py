"""Switches of trainers in a row's words, as changes of its stack, its training job and its exchange with experts.

A switch of the notes counts where it stands alone between semicolons, as `--no-gradient-accumulation-fusion` without
its dashes does in the logs of Megatron-LM. What is not named stays as in the stack, or in the recipe of that release.
"""

from __future__ import annotations

import re
from typing import Any

from cost_models.measured.runs.rows import Row, spellings

_SUSPECT = re.compile(r"noisy|suspect|inconsistent|regression|_bound\b")
_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING=1"
_EXPERT_TENSOR = re.compile(r"(?:ETP|expert-tensor-parallel-size)=(\d{1,4})\b")
_DROPOUT = re.compile(r"dropout(?: default)?[ =](?P<share>0(?:\.\d+)?)(?:/[\d.]+)?")
_OPTIMIZER = re.compile(r"optimizer=(?P<name>\w+)")
_OPTIMIZERS = {"sgd": "sgd", "adam": "adamw", "adamw": "adamw"}


def is_suspect(row: Row) -> bool:
    """Whether the transcriber flagged the row's time: noisy, suspect, or bound by what the row does not say."""
    return _SUSPECT.search(row.text("flags").lower()) is not None


def _switches(row: Row) -> tuple[str, ...]:
    """Words that stand alone in a row's notes and in its assumed fields."""
    words = re.split(r"[;,()]", f"{row.text('notes')};{row.text('assumed_fields')}")
    return tuple(one.strip().lstrip("-") for one in words)


def expert_tensor_parallel(row: Row) -> int | None:
    """Expert tensor parallelism where the row's notes say it; else None."""
    sizes = _EXPERT_TENSOR.findall(row.text("notes"))
    return int(sizes[0]) if sizes else None


def stack_changes(row: Row) -> dict[str, Any]:
    """Field of `StackSpec` → value that the row's switches set."""
    changes: dict[str, Any] = {}
    if _LAUNCH_BLOCKING in row.text("notes"):
        changes["launches_block"] = True
    for switch in _switches(row):
        changes |= spellings()["stack_flags"].get(switch, {})
    return changes


def training_changes(row: Row) -> dict[str, Any]:
    """Field of `TrainingSpec` → value that the row's notes set: dropout, optimizer."""
    changes: dict[str, Any] = {}
    for switch in _switches(row):
        if dropout := _DROPOUT.match(switch):
            changes["dropout"] = float(dropout["share"])
        if (optimizer := _OPTIMIZER.match(switch)) and optimizer["name"] in _OPTIMIZERS:
            changes["optimizer"] = _OPTIMIZERS[optimizer["name"]]
    return changes


_MOMENTS = re.compile(r"(?:bf16|16-bit) (?:adam )?moments|exp[- ]avg[- ]dtype[= ]bf16")
_WHERE_SPLIT = re.compile(r"when tp\*pp ?> ?1")
"""A launcher that asks for 16-bit moments where the model is split."""


def state_changes(row: Row) -> dict[str, Any]:
    """Field of `TrainingSpec` → value."""
    return {"moment_dtype": "bf16"} if has_narrow_moments(row) else {}


def has_narrow_moments(row: Row) -> bool:
    """Whether moments are in 16 bits."""
    said = f"{row.text('notes')}; {row.text('assumed_fields')}".lower()
    split = (row.count("tp") or 1) * (row.count("pp") or 1) > 1
    return _MOMENTS.search(said) is not None and (split or _WHERE_SPLIT.search(said) is None)


_DISPATCHERS: tuple[tuple[str, str], ...] = (
    (r"deep-?ep|hybrid-?ep|\bflex\b", "tokens"),  # Megatron Core 0.13 and later
    (r"\ba2a\b|all-?to-?all|\bmoe alltoall", "copies"),
)
"""Pattern in a table → `expert_dispatch` of a stack; the first pattern found counts."""
_OVERLAPS = re.compile(r"(?:1f1b|a2a|ep|expert)[- ]overlap|overlap[-_ ]moe")
_CONTAINER = re.compile(r"container (\d\d)\.(\d\d)")
_NEMO = re.compile(r"nemo")
_WHOLE_STEP_GRAPHS = (26, 6)
"""Containers from here on have Megatron Bridge 0.5, some of whose recipes in MXFP8 capture the whole step in a CUDA
graph, run the exchange behind the other microbatch and all experts of a rank in one kernel
(scripts/performance/configs, `cuda_graph_impl`, `moe_a2a_overlap`, `cutedsl_fused_grouped_mlp`)."""
_CAPTURED = re.compile(r"(deepseek|qwen3|gpt.?oss).* on gb[23]00|qwen3.?30b.* on b300")
"""Models and GPUs of those recipes."""
_ALL_TO_ALL = re.compile(r"qwen3.?235b|gpt.?oss")
_IN_BOXES = re.compile(r"h100|\bb[23]00")
"""Models whose recipes of Megatron Bridge kept `moe_token_dispatcher_type: alltoall` on nodes of eight GPUs."""
_OVERLAPPED_ON = re.compile(r"h100")
"""Where those of Qwen3 235B ran it behind the other microbatch (`moe_a2a_overlap`)."""
_FURTHER = re.compile(r"deepseek.?v3")
"""Models that Megatron Bridge's recipes train to predict one token more (recipes/deepseek/deepseek_v3.py,
`mtp_num_layers`) unless the table says `w/o MTP`."""
_FILLED_IN_TURN = re.compile(r"deepseek.?v3|kimi")
"""Models whose stages its recipes fill in turn: 16 stages of four blocks, the last of one beside what predicts further
tokens and the loss (recipes/deepseek/deepseek_v3.py and recipes/kimi/kimi_k2.py, the map of layouts)."""
_RECOMPUTES_LATENTS = re.compile(r"h100|\bb[23]00")
"""Nodes of eight GPUs, where those recipes recompute `mla_up_proj`; racks change from one release to the next."""
_MICROSCALED = re.compile(r"mx-?fp8|nvfp4")


def keeps_experts_whole(row: Row) -> bool:
    """Whether the row's recipes do not split experts over tensor ranks: all of Megatron Bridge's set
    `expert_tensor_parallel_size` to 1, and so does Megatron Core's guide for experts that DeepEP exchanges."""
    return "bridge" in row.text("framework").lower() or expert_changes(row).get("expert_dispatch") == "tokens"


def expert_changes(row: Row) -> dict[str, Any]:
    """Field of `StackSpec` → value, of a row whose model has experts."""
    if (row.count("moe_experts") or 1) == 1:
        return {}
    words = f"{row.text('other_kernels')}; {row.text('notes')}".lower()
    framework = row.text("framework").lower()
    changes: dict[str, Any] = {}
    container = _CONTAINER.search(framework)
    if container is None and _NEMO.search(framework):  # before Megatron Bridge
        changes |= {"expert_dispatch": "copies", "weighs_inside_experts": False}
    if container is not None:
        changes |= _kept_all_to_all(row) | _latents_and_stages(row)
    release = (int(container[1]), int(container[2])) if container else (0, 0)
    captured = _CAPTURED.search(f"{row.text('model_name')} on {row.text('gpu')}".lower())
    if release >= _WHOLE_STEP_GRAPHS and captured and _MICROSCALED.search(row.text("precision").lower()):
        changes |= {"overlap_expert_exchange": 1.0, "experts_in_one_kernel": True}
    if dispatch := next((kind for pattern, kind in _DISPATCHERS if re.search(pattern, words)), None):
        changes["expert_dispatch"] = dispatch
        changes |= {"weighs_inside_experts": True} if dispatch == "tokens" else {}
    if _OVERLAPS.search(words):
        changes["overlap_expert_exchange"] = 1.0
    return changes


def further_tokens(row: Row) -> int:
    """Tokens beyond the next one that the row's model learns to predict: as its name says, or as its recipes do."""
    name = row.text("model_name").lower()
    if said := re.search(r"\b(w/|with|w/o|without) ?mtp", name):
        return int(said[1] in ("w/", "with"))
    return int(_CONTAINER.search(row.text("framework").lower()) is not None and bool(_FURTHER.search(name)))


def _latents_and_stages(row: Row) -> dict[str, Any]:
    """How Megatron Bridge's recipes place and recompute models with latent attention."""
    if not _FILLED_IN_TURN.search(row.text("model_name").lower()):
        return {}
    latents = _RECOMPUTES_LATENTS.search(row.text("gpu").lower()) is not None
    return {"places_blocks": "in-turn", "recomputes_latent_heads": latents}


def _kept_all_to_all(row: Row) -> dict[str, Any]:
    """Recipes of Megatron Bridge that exchange copies."""
    model, gpu = _ALL_TO_ALL.search(row.text("model_name").lower().replace(" ", "-")), row.text("gpu").lower()
    if model is None or not _IN_BOXES.search(gpu):
        return {}
    hidden = "qwen" in model[0] and _OVERLAPPED_ON.search(gpu) is not None
    return {"expert_dispatch": "copies"} | ({"overlap_expert_exchange": 1.0} if hidden else {})
