"""Policies of a row: precision, recomputation, ZeRO stage, shard group and offload.

They are numbers, or the names trainers use. A row may also state how fast its host updates parameters.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, USUAL_RING, Layout, Offload
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.words import EVERY
from cost_models.documents import printable
from cost_models.measured.runs.rows import Notes, Row, meaning, spellings
from cost_models.question import Question
from cost_models.specs.choices import Recompute, SelectiveDrops
from cost_models.specs.cluster import ClusterSpec, Precision
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
_NAMED: dict[str, SelectiveDrops] = {
    "core_attn": "core",
    "core": "core",
    "norm": "norms",
    "layernorm": "norms",
    "moe": "experts",
    "act": "expert-activations",
    "moe_act": "expert-activations",
    "mla_up_proj": "latent-heads",
    "mlp": "dense-mlp",
    "shared_experts": "shared-experts",
}
"""Megatron Core's `--recompute-modules`, as tables write them."""

_REPLICATES = re.compile(r"\bddp\b|distributed ?data ?parallel|nanogpt")
"""Names of frameworks that mean plain data parallelism."""


def precision_of(row: Row, cluster: ClusterSpec, notes: Notes) -> Precision:
    """The row's precision of matrix products, where its GPU has it."""
    words = row.text("precision").lower()
    found: Precision | None = meaning("precisions", words)
    if found is None and not _MIXED.fullmatch(words):
        notes.assume(f"bf16: precision `{printable(words, 30)}` is not known")
    wanted = found or "bf16"
    if wanted not in cluster.gpu.peak:
        instead: Precision = "fp16" if "bf16" not in cluster.gpu.peak else "bf16"
        instead = "fp32" if wanted == "tf32" else instead
        if wanted == "fp4" and "fp8" in cluster.gpu.peak:
            instead = "fp8"
        notes.assume(f"{instead}: {cluster.gpu.name} has no {wanted}")
        return instead
    if not words:
        notes.assume(f"{wanted} (precision blank)")
    return wanted


def recompute_of(row: Row, stack: StackSpec, notes: Notes) -> Recompute:
    """The row's recompute policy; where blank, what the stack's users did."""
    words = row.text("recompute").lower()
    if modules := _by_recipe(row):
        notes.assume(f"recompute {modules}, as its recipe does (blank)")
        return "selective"
    if not words:
        usual = stack.usual_recompute or ("full" if stack.attention in STORES_SCORES else "none")
        notes.assume(f"recompute {usual} (blank)")
        return usual
    if NOTHING.fullmatch(words):
        return "none"
    if _SOME_BLOCKS.search(words):
        notes.assume(f"recompute full in every block: `{printable(words, 30)}` names some")
        return "full"
    if _SELECTIVE.search(words):
        return "selective"
    return "full"  # "full", "every layer", "true", "gradient checkpointing", ...


def modules_of(row: Row) -> tuple[SelectiveDrops, ...]:
    """What of a block a Megatron recomputed (`--recompute-modules`), where the row names it in known words; else
    nothing."""
    said = _MODULES.search(f"{row.text('recompute')}; {row.text('notes')}".lower())
    names = re.findall(r"[a-z_]+", said["names"] if said else _by_recipe(row))
    known = [_NAMED[name] for name in names if name in _NAMED]
    return tuple(sorted({*known})) if len(known) == len(names) else ()


def _by_recipe(row: Row) -> str:
    """Modules that its trainer's recipe recomputes, where the table leaves recomputation blank; else nothing."""
    if row.text("recompute"):
        return ""
    ran = " ".join(row.text(cell) for cell in ("framework", "model_name", "gpu", "precision"))
    found: str | None = meaning("recipe_modules", ran.lower())
    return found or ""


def zero_of(row: Row, stack: StackSpec, replicas: int, notes: Notes) -> int:
    """The row's ZeRO stage over its replicas; where it is blank, the stack's usual one."""
    words = row.text("zero_stage").lower()
    stage = row.number("zero_stage")
    stated = int(stage) if stage is not None and 0 <= stage <= 3 else _named_stage(words)
    if replicas == 1:
        return 0
    if (row.count("pp") or 1) > 1 and stated == 3 and stack.pipelines_keep_weights:
        notes.assume(f"ZeRO-2: {stack.name} does not reshard weights between a pipeline's microbatches")
        return 2
    if stated is not None:
        return stated
    if _REPLICATES.search(row.text("framework").lower()):
        notes.assume("ZeRO-0: data-parallel replicas")
        return 0
    usual = stack.usual_zero_stage
    notes.assume(f"ZeRO-{usual}, as {stack.name} usually runs")
    return usual


def _named_stage(words: str) -> int | None:
    if words and re.fullmatch(r"none|off|no|false|disabled?", words):
        return 0
    for pattern, stage in spellings()["zero_stages"]:
        if match := re.search(pattern, words):
            return int(match[2]) if stage < 0 else stage
    return None


def shards_in_a_node(row: Row) -> bool:
    """Whether ZeRO shards in groups that replicate one another, and the row does not say how large a group is."""
    if row.count("hybrid_shard") not in (None, 1):
        return False
    stated = row.flag("hybrid_shard") or names_hybrid(row.text("hybrid_shard"))
    return stated or (row.flag("hybrid_shard") is None and names_hybrid(row.text("zero_stage")))


def names_hybrid(words: str) -> bool:
    """Whether the words mean sharding in groups that replicate one another."""
    return re.search(r"hybrid|hsdp|intra[-_ ]?node|per[-_ ]?node", words.lower()) is not None


def offload_of(row: Row, stack: StackSpec, blocks: int, notes: Notes) -> tuple[Offload, int]:
    """The residency of a row's blocks, and the buffers of its ring; `blocks` are those of its model."""
    words = row.text("offload").lower()
    if not words or NOTHING.fullmatch(words):
        return NOWHERE, USUAL_RING
    if "window" in words:
        window = min(row.count("window") or 1, blocks)
        notes.assume(f"a ring of {window} blocks besides {window} that stay on the device")
        return Offload(streamed=blocks - window), window
    if ("activation" in words and "(" in words) or (
        "see notes" in words and "activation" in row.text("notes").lower()
    ):
        notes.assume("activations of some operators in host memory count as on the device")
        return NOWHERE, USUAL_RING
    if "activation" in words:
        notes.assume("activations in host memory")
        return Offload(activations=EVERY), USUAL_RING
    if "nvme" in words:
        notes.assume("NVMe as fast as host memory")
    whole = re.search(r"param|weight|model|nvme|infinity", words) or (
        stack.residencies == ("streamed",) and not re.search("optim|state", words)
    )
    kept = "weights, gradients and optimizer states" if whole else "optimizer states"
    notes.assume(f"{kept} in host memory, updated by the CPU")
    return (Offload(streamed=EVERY) if whole else Offload(states=EVERY)), USUAL_RING


def with_host_update(row: Row, question: Question, layout: Layout, notes: Notes) -> Question:
    """The question with the host's update time from the row's log; unchanged where the row has none."""
    stated = row.number("cpu_update_s")
    if stated is None or stated <= 0:
        return question
    by_unit = channel_seconds(with_seconds(question, _UNIT), LayoutColumns.of([layout])).update[0] / _UNIT
    if by_unit == 0:
        return question
    notes.assume(f"its host updates a parameter in {stated / by_unit * 1e9:.2f} ns, as its log says")
    return with_seconds(question, stated / by_unit)


def with_seconds(question: Question, seconds: float) -> Question:
    """The question on a host that takes `seconds` to update a parameter."""
    return replace(question, hardware=question.hardware.model_copy(update={"host_update_seconds": seconds}))
