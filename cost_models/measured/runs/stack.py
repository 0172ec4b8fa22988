"""The software stack of a row, its policies, and switches of its trainer.

The stack follows from the framework's name, the kernels and the ZeRO stage. Policies (precision, recomputation, ZeRO
stage, shard group, offload) are numbers, or the names trainers use; a row may also state how fast its host updates
parameters. A switch of the notes counts where it stands alone between semicolons, as
`--no-gradient-accumulation-fusion` without its dashes does in the logs of Megatron-LM. Facts that are not named stay as
in the stack, or in the recipe of that release.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, USUAL_RING, Layout, Offload
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.words import EVERY
from cost_models.documents import printable
from cost_models.files import catalog
from cost_models.measured.runs.rows import Notes, Row, meaning, spellings
from cost_models.question import Question
from cost_models.specs.choices import CORE, OUTPUTS, Recompute, SelectiveDrops
from cost_models.specs.cluster import AttentionKernel, ClusterSpec, Precision
from cost_models.specs.stack import STORES_SCORES, StackSpec

_UNIT = 1e-9
"""Seconds of a parameter at which the rate that a log implies is computed."""
_MIXED = re.compile(r"|mixed|amp|auto|o[12]")
"""Pattern of 16-bit training that does not name the type."""

NOTHING = re.compile(r"[-–—]|n/?a|no|not?[ -]used|none|null|nil|false|off|0+(\.0)?|disabled?|without.*|w/o.*")
"""Words of tables for something that was not used."""
_SOME_BLOCKS = re.compile(
    r"every (other|\d|second|third)|every-?_?(?:2nd|3rd|[2-9])|\d+ ?(of|/) ?\d+|partial|\d ?%|block\("
)
_SELECTIVE = re.compile(r"select|\bsac\b|core|attn|attention|\bops?\b|per[-_ ]?op|mlp|norm|swiglu|moe_act")
_MODULES = re.compile(r"recompute(?:[- _]modules)?[ =:\[]+(?P<names>[a-z_, ]+)")
"""Words for what of a block was recomputed, by name."""
_DROPS: dict[str, SelectiveDrops] = {"core_attn": "core", "core": "core", "norm": "norms"}
_DROPS |= {"layernorm": "norms", "mla_up_proj": "latent-heads", "mlp": "dense-mlp", "moe": "experts"}
_DROPS |= {"act": "expert-activations", "moe_act": "expert-activations", "shared_experts": "shared-experts"}
"""Megatron Core's `--recompute-modules`, as tables write them."""

_REPLICATES = re.compile(r"\bddp\b|distributed ?data ?parallel|nanogpt")
"""Names of frameworks that mean plain data parallelism."""


def precision_of(row: Row, cluster: ClusterSpec, notes: Notes) -> Precision:
    """Precision of matrix products in a row; bf16 where blank or unknown, a replacement where the GPU lacks it."""
    words, peak = row.text("precision").lower(), cluster.gpu.peak
    stated: Precision | None = meaning("precisions", words)
    if stated is None and not _MIXED.fullmatch(words):
        notes.append(f"bf16: precision `{printable(words, 30)}` is not known")
    precision = stated or "bf16"
    if precision not in peak:
        replacement: Precision = "bf16" if "bf16" in peak else "fp16"
        if precision == "tf32":
            replacement = "fp32"
        elif precision == "fp4" and "fp8" in peak:
            replacement = "fp8"
        notes.append(f"{replacement}: {cluster.gpu.name} has no {precision}")
        return replacement
    if not words:
        notes.append(f"{precision} (precision blank)")
    return precision


def recompute_of(row: Row, stack: StackSpec, notes: Notes) -> Recompute:
    """Recompute policy (`none`, `selective` or `full`) of a row; where blank, that of its recipe or of the
    stack's users."""
    words = row.text("recompute").lower()
    if modules := _recipe_modules(row):
        notes.append(f"recompute {modules}, as its recipe does (blank)")
        return "selective"
    if not words:
        default = stack.usual_recompute or ("full" if stack.attention in STORES_SCORES else "none")
        notes.append(f"recompute {default} (blank)")
        return default
    if NOTHING.fullmatch(words):
        return "none"
    if _SOME_BLOCKS.search(words):
        notes.append(f"recompute full in every block: `{printable(words, 30)}` names some")
        return "full"
    if _SELECTIVE.search(words):
        return "selective"
    return "full"  # "full", "every layer", "true", "gradient checkpointing", ...


def modules_of(row: Row) -> tuple[SelectiveDrops, ...]:
    """Modules of a block that Megatron recomputed (`--recompute-modules`), where the row names only known
    ones; else empty."""
    match = _MODULES.search(f"{row.text('recompute')}; {row.text('notes')}".lower())
    names = re.findall(r"[a-z_]+", match["names"] if match else _recipe_modules(row))
    drops = [_DROPS[name] for name in names if name in _DROPS]
    return tuple(sorted({*drops})) if len(drops) == len(names) else ()


def _recipe_modules(row: Row) -> str:
    """Names of modules that the trainer's recipe recomputes, where the table leaves recomputation blank; else
    empty."""
    if row.text("recompute"):
        return ""
    ran = " ".join(row.text(cell) for cell in ("framework", "model_name", "gpu", "precision"))
    modules: str | None = meaning("recipe_modules", ran.lower())
    return modules or ""


def zero_of(row: Row, stack: StackSpec, replicas: int, notes: Notes) -> int:
    """ZeRO stage of a row with `replicas` data-parallel ranks; where blank, the usual stage of the stack."""
    words, stage = row.text("zero_stage").lower(), row.number("zero_stage")
    stated = int(stage) if stage is not None and 0 <= stage <= 3 else None
    if stated is None and re.fullmatch(r"none|off|no|false|disabled?", words):
        stated = 0
    elif stated is None:
        matches = ((re.search(pattern, words), meant) for pattern, meant in spellings()["zero_stages"])
        stated = next((int(match[2]) if meant < 0 else meant for match, meant in matches if match), None)
    if replicas == 1:
        return 0
    if (row.count("pp") or 1) > 1 and stated == 3 and stack.pipelines_keep_weights:
        notes.append(f"ZeRO-2: {stack.name} does not reshard weights between a pipeline's microbatches")
        return 2
    if stated is not None:
        return stated
    if _REPLICATES.search(row.text("framework").lower()):
        notes.append("ZeRO-0: data-parallel replicas")
        return 0
    notes.append(f"ZeRO-{stack.usual_zero_stage}, as {stack.name} usually runs")
    return stack.usual_zero_stage


def names_hybrid(words: str) -> bool:
    """Whether the words mean hybrid sharding, in groups that replicate one another."""
    return re.search(r"hybrid|hsdp|intra[-_ ]?node|per[-_ ]?node", words.lower()) is not None


def offload_of(row: Row, stack: StackSpec, blocks: int, notes: Notes) -> tuple[Offload, int]:
    """Offload to host memory in a row's model of `blocks` blocks, and buffers of the ring for streamed blocks."""
    words = row.text("offload").lower()
    if not words or NOTHING.fullmatch(words):
        return NOWHERE, USUAL_RING
    if "window" in words:
        window = min(row.count("window") or 1, blocks)
        notes.append(f"a ring of {window} blocks besides {window} that stay on the device")
        return Offload(streamed=blocks - window), window
    in_notes = "see notes" in words and "activation" in row.text("notes").lower()
    if in_notes or ("activation" in words and "(" in words):
        notes.append("activations of some operators in host memory count as on the device")
        return NOWHERE, USUAL_RING
    if "activation" in words:
        notes.append("activations in host memory")
        return Offload(activations=EVERY), USUAL_RING
    if "nvme" in words:
        notes.append("NVMe as fast as host memory")
    only_streams = stack.residencies == ("streamed",) and not re.search("optim|state", words)
    offloads_weights = only_streams or re.search(r"param|weight|model|nvme|infinity", words)
    parts = "weights, gradients and optimizer states" if offloads_weights else "optimizer states"
    notes.append(f"{parts} in host memory, updated by the CPU")
    return (Offload(streamed=EVERY) if offloads_weights else Offload(states=EVERY)), USUAL_RING


def with_host_update(row: Row, question: Question, layout: Layout, notes: Notes) -> Question:
    """Question with the host's seconds per parameter update from the row's log; unchanged where the row has none."""

    def updating_in(seconds: float) -> Question:
        hardware = question.hardware.model_copy(update={"host_update_seconds": seconds})
        return replace(question, hardware=hardware)

    stated = row.number("cpu_update_s") or 0.0
    if stated <= 0:
        return question
    by_unit = channel_seconds(updating_in(_UNIT), LayoutColumns.of([layout])).update[0] / _UNIT
    if by_unit == 0:
        return question
    notes.append(f"its host updates a parameter in {stated / by_unit * 1e9:.2f} ns, as its log says")
    return updating_in(stated / by_unit)


_SUSPECT = re.compile(r"noisy|suspect|inconsistent|regression|_bound\b")
_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING=1"
_DROPOUT = re.compile(r"dropout(?: default)?[ =](?P<share>0(?:\.\d+)?)(?:/[\d.]+)?")
_OPTIMIZER = re.compile(r"optimizer=(sgd|adamw?)(?!\w)")


def is_suspect(row: Row) -> bool:
    """Whether the transcriber flagged the row's time as noisy, suspect, or bound by something the row does
    not say."""
    return _SUSPECT.search(row.text("flags").lower()) is not None


def _switches(row: Row) -> tuple[str, ...]:
    """Words that stand alone between separators in a row's notes and assumed fields, without leading dashes."""
    words = re.split(r"[;,()]", f"{row.text('notes')};{row.text('assumed_fields')}")
    return tuple(one.strip().lstrip("-") for one in words)


def stack_changes(row: Row) -> dict[str, Any]:
    """Fields of `StackSpec` → values that switches in the row's notes set."""
    changes: dict[str, Any] = {"launches_block": True} if _LAUNCH_BLOCKING in row.text("notes") else {}
    for switch in _switches(row):
        changes |= spellings()["stack_flags"].get(switch, {})
    return changes


def training_changes(row: Row) -> dict[str, Any]:
    """Fields of `TrainingSpec` → values that the row's notes set (dropout, optimizer, bf16 moments)."""
    changes: dict[str, Any] = {"moment_dtype": "bf16"} if has_narrow_moments(row) else {}
    for switch in _switches(row):
        if dropout := _DROPOUT.match(switch):
            changes["dropout"] = float(dropout["share"])
        if optimizer := _OPTIMIZER.match(switch):
            changes["optimizer"] = "sgd" if optimizer[1] == "sgd" else "adamw"
    return changes


_MOMENTS = re.compile(r"(?:bf16|16-bit) (?:adam )?moments|exp[- ]avg[- ]dtype[= ]bf16")
_WHERE_SPLIT = re.compile(r"when tp\*pp ?> ?1")
"""A launcher that asks for 16-bit moments where the model is split."""


def has_narrow_moments(row: Row) -> bool:
    """Whether the row's notes or assumed fields say that the optimizer's moments are in 16 bits."""
    words = f"{row.text('notes')}; {row.text('assumed_fields')}".lower()
    split = (row.count("tp") or 1) * (row.count("pp") or 1) > 1
    return _MOMENTS.search(words) is not None and (split or _WHERE_SPLIT.search(words) is None)


_DISPATCHERS: tuple[tuple[str, str], ...] = (
    (r"deep-?ep|hybrid-?ep|\bflex\b", "tokens"),  # Megatron Core 0.13 and later
    (r"\ba2a\b|all-?to-?all|\bmoe alltoall", "copies"),
)
"""Pattern in a table → `expert_dispatch` of a stack; the first pattern found counts."""
_OVERLAPS = re.compile(r"(?:1f1b|a2a|ep|expert)[- ]overlap|overlap[-_ ]moe")
_CONTAINER = re.compile(r"container (\d\d)\.(\d\d)")
_RECIPES: tuple[tuple[tuple[int, int], str, dict[str, Any]], ...] = (
    # kept `moe_token_dispatcher_type: alltoall` on nodes of eight GPUs; `moe_a2a_overlap` on H100
    ((0, 0), r"(qwen3.?235b|gpt.?oss).* on .*(h100|\bb[23]00)", {"expert_dispatch": "copies"}),
    ((0, 0), r"qwen3.?235b.* on .*h100", {"overlap_expert_exchange": 1.0}),
    # stages filled in turn: 16 of four blocks, the last of one beside the heads of further tokens and the loss
    # (recipes/deepseek/deepseek_v3.py and recipes/kimi/kimi_k2.py, the map of layouts)
    ((0, 0), r"(deepseek.?v3|kimi).* on ", {"places_blocks": "in-turn", "recomputes_latent_heads": False}),
    # `mla_up_proj` recomputed on nodes of eight GPUs; racks change from one release to the next
    ((0, 0), r"(deepseek.?v3|kimi).* on .*(h100|\bb[23]00)", {"recomputes_latent_heads": True}),
    # Megatron Bridge 0.5: some recipes in MXFP8 capture the whole step in a CUDA graph, run the exchange behind the
    # other microbatch and all experts of a rank in one kernel (scripts/performance/configs, `cuda_graph_impl`,
    # `moe_a2a_overlap`, `cutedsl_fused_grouped_mlp`)
    (
        (26, 6),
        r"((deepseek|qwen3|gpt.?oss).* on gb[23]00|qwen3.?30b.* on b300).* in .*(mx-?fp8|nvfp4)",
        {"overlap_expert_exchange": 1.0, "experts_in_one_kernel": True},
    ),
)
"""Recipes of Megatron Bridge: first container, pattern of `MODEL on GPU in PRECISION`, fields of the stack."""
_FURTHER = re.compile(r"deepseek.?v3")
"""Models that Megatron Bridge's recipes train to predict one token more (recipes/deepseek/deepseek_v3.py,
`mtp_num_layers`) unless the table says `w/o MTP`."""


def keeps_experts_whole(row: Row) -> bool:
    """Whether the recipes for the row's trainer do not split experts over tensor ranks. All of Megatron
    Bridge's set `expert_tensor_parallel_size` to 1, and so does Megatron Core's guide for experts that DeepEP
    exchanges."""
    return "bridge" in row.text("framework").lower() or expert_changes(row).get("expert_dispatch") == "tokens"


def expert_changes(row: Row) -> dict[str, Any]:
    """Fields of `StackSpec` → values that an MoE row's framework, kernels and notes imply; empty for dense models."""
    if (row.count("moe_experts") or 1) == 1:
        return {}
    words = f"{row.text('other_kernels')}; {row.text('notes')}".lower()
    changes: dict[str, Any] = {}
    framework = row.text("framework").lower()
    container = _CONTAINER.search(framework)
    if container is None and "nemo" in framework:  # before Megatron Bridge
        changes |= {"expert_dispatch": "copies", "weighs_inside_experts": False}
    ran = f"{row.text('model_name')} on {row.text('gpu')} in {row.text('precision')}".lower()
    for first, pattern, fields in _RECIPES:
        if container and (int(container[1]), int(container[2])) >= first and re.search(pattern, ran):
            changes |= fields
    if dispatch := next((kind for pattern, kind in _DISPATCHERS if re.search(pattern, words)), None):
        changes["expert_dispatch"] = dispatch
        changes |= {"weighs_inside_experts": True} if dispatch == "tokens" else {}
    if _OVERLAPS.search(words):
        changes["overlap_expert_exchange"] = 1.0
    return changes


def further_tokens(row: Row) -> int:
    """Multi-token-prediction depth (0 or 1) of the model in a table row, from its name, else from the known
    recipe."""
    name = row.text("model_name").lower()
    if match := re.search(r"\b(w/|with|w/o|without) ?mtp", name):
        return int(match[1] in ("w/", "with"))
    return int(_CONTAINER.search(row.text("framework").lower()) is not None and bool(_FURTHER.search(name)))


_SOME_FLASH = re.compile(r"flash[- _]?(attn|attention)?")
"""A flash kernel that does not say which: that of the trainer's release."""
_FLASH: frozenset[AttentionKernel] = frozenset({"flash1", "flash2", "flash3"})
_NATIVE = re.compile(r"torch|native")
"""Words of tables for attention that a trainer writes in PyTorch's own operators."""

_RECENT_GPUS = re.compile(r"h100|h200|h800|h20\b|gh200|hopper|b[23]00|mi3\d\d|(fp|float)-?8")
"""Pattern of GPUs, and of a type, later than 2021: an undated Megatron on them is a Megatron Core."""
_LLAMA_LIKE = re.compile(r"glu|silu|llama|mistral|mixtral|qwen|deepseek")
"""Pattern of models later than flash kernels."""
_WITHOUT_FLASH = re.compile(r"v100|volta|\bt4\b|p100|2080|titan")
"""GPUs older than FlashAttention 2 supports."""
_FLASH_YEAR = 2022
_ASSUMED = re.compile(r"attention[ _]kernel")
"""Among what a transcriber took for granted: the row does not say the kernel."""
_UNFUSED_IF_DETERMINISTIC = (re.compile(r"\blts container\b"), "2025-10")
"""Container, and the last month in which no attention kernel of its Transformer Engine added up in a fixed order."""
_MONTH = re.compile(r"20\d\d-(?:0[1-9]|1[0-2])")


def stack_of(row: Row, forced: str | None, notes: Notes) -> StackSpec:
    """Stack named by `forced`, or the catalogue's for the row's framework and date, with the kernels that the
    row names."""
    stack = catalog.load_stack(forced or _release_of(_stack_name(row, notes), row))
    changes: dict[str, object] = {"attention": _kernel(row, stack, notes)}
    other_kernels = row.text("other_kernels").lower()
    if row.flag("compile") or re.search(r"compile|inductor|\bjit\b", other_kernels):
        month, months = month_of(row), stack.loss_not_compiled
        left_loss = month is not None and months is not None and months[0] <= month <= months[1]
        changes |= stack.when_compiled(loss=stack.compiles_loss and not left_loss)
    elif "norm" in other_kernels:
        changes["fused_norms"] = True
    changes |= expert_changes(row)
    changes |= stack_changes(row)
    if stack.drops <= OUTPUTS | CORE:
        changes["selective_drops"] = modules_of(row) or "core"
    if has_narrow_moments(row):
        changes["master_remainders"] = True
    return stack.model_copy(update=changes)


def _release_of(family: str, row: Row) -> str:
    """Stack of the earliest release of `family` whose last month is no earlier than the row's date; else `family`."""
    year = _year(row)
    month, releases = month_of(row) or (f"{year}-12" if year else None), _last_months(family)
    earlier = [last for last in releases if month is not None and month <= last]
    return releases[min(earlier)] if earlier else family


@cache
def _last_months(family: str) -> dict[str, str]:
    """Name of the software stack for each last month of release, within one family of stacks."""
    members = map(catalog.load_stack, catalog.names("stacks"))
    return {one.last_month: one.name for one in members if one.family == family and one.last_month}


def _stack_name(row: Row, notes: Notes) -> str:
    """Catalogue name of the stack for the row's framework; for an unknown one, `fsdp`, or a Megatron if the
    model is split."""
    words = row.text("framework").lower()
    family: str | None = meaning("frameworks", words)
    if family is None:
        split = any((row.count(axis) or 1) > 1 for axis in ("tp", "pp", "cp", "ep"))
        family = "megatron" if split else "fsdp"
        notes.append(f"{words or 'an unnamed framework'} works as {family}")
    if family != "megatron":
        return family
    kernel, model = _attention(row), f"{row.text('ffn_kind')} {row.text('model_name')}".lower()
    stored = kernel in STORES_SCORES or _is_native(row) or (kernel is None and not _LLAMA_LIKE.search(model))
    year = _year(row) or (2024 if _RECENT_GPUS.search(_machine(row)) else 2021 if stored else 2023)
    return "megatron-lm" if year > 2023 else f"megatron-{max(year, 2021)}"


def _machine(row: Row) -> str:
    return f"{row.text('gpu')} {row.text('precision')}".lower()


def kernel_is_assumed(row: Row) -> bool:
    """Whether the table's author filled in the row's attention kernel as an assumption."""
    return _ASSUMED.search(row.text("assumed_fields").lower()) is not None


def _kernel(row: Row, stack: StackSpec, notes: Notes) -> AttentionKernel:
    """Attention kernel that the row names; where it names no known one, the stack's default.

    GPUs before Ampere and years before 2022 have no flash kernel.
    """
    words, framework = row.text("attention_kernel").lower(), row.text("framework").lower()
    container, until = _UNFUSED_IF_DETERMINISTIC
    in_time, deterministic = (month_of(row) or "9999") <= until, stack_changes(row).get("deterministic")
    if container.search(framework) and in_time and deterministic:
        notes.append("attention stores its scores: its container had no deterministic kernel")
        return "unfused"
    if (stated := _attention(row)) is not None and not kernel_is_assumed(row):
        return stack.attention if _SOME_FLASH.fullmatch(words) and stack.attention in _FLASH else stated
    native, year = _is_native(row), _year(row)
    if words and not native:
        notes.append(f"{stack.attention} attention: the kernel named is not known")
    default = stack.native_attention if native else stack.attention
    too_old = _WITHOUT_FLASH.search(_machine(row)) or (year or _FLASH_YEAR) < _FLASH_YEAR
    if default in STORES_SCORES or not too_old:
        return default
    notes.append("attention stores its scores: no flash kernel for this GPU or year")
    return "unfused"


def _is_native(row: Row) -> bool:
    return _NATIVE.search(row.text("attention_kernel").lower()) is not None


def _attention(row: Row) -> AttentionKernel | None:
    """Attention kernel that the row names; None where the cell is blank or unknown."""
    words = row.text("attention_kernel").lower()
    return meaning("attention", words) if words else None


def month_of(row: Row) -> str | None:
    """Month (as `2024-07`) in the row's framework or date; None where neither has one."""
    dated = _MONTH.search(f"{row.text('framework')} {row.text('run_date')}")
    return dated[0] if dated else None


def _year(row: Row) -> int | None:
    """Latest year in the row's date or framework; None where neither has one."""
    years = re.findall(r"\b(20[12]\d)\b", f"{row.text('run_date')} {row.text('framework')}")
    return max(map(int, years)) if years else None
