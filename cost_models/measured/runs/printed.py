"""Interpretation of the cells of run tables as authors print them: GPU, node and network of a row, its
software stack and policies.

The stack follows from the framework's name, the kernels and the ZeRO stage. Policies (precision, recomputation, ZeRO
stage, shard group, offload) are numbers, or the names trainers use; a row may also state how fast its host updates
parameters. A switch of the notes counts where it stands alone between semicolons, as
`--no-gradient-accumulation-fusion` without its dashes does in the logs of Megatron-LM. Facts that are not named stay as
in the stack, or in the recipe of that release.

The GPU cell may name memory, power limit and bandwidth of that very board, as `H100 SXM 96GB HBM2e (500W, 2.4TB/s)`.
The bandwidth of a GPU's share of its node's network is given in bits or bytes, per GPU or per node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, USUAL_RING, Layout, Offload
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.words import EVERY
from cost_models.documents import printable
from cost_models.files import catalog, read_data
from cost_models.files.local import LOCAL
from cost_models.measured.runs.cases import cluster_named, host_link
from cost_models.question import Question
from cost_models.specs.choices import CORE, OUTPUTS, Recompute, SelectiveDrops
from cost_models.specs.cluster import AttentionKernel, ClusterSpec, GpuSpec, Links, LinkSpec, Precision
from cost_models.specs.stack import STORES_SCORES, StackSpec
from cost_models.units import GIB

T = TypeVar("T")


Notes = list[str]
"""Assumptions made while reading one row of a run table, in order."""


_FLAGS = dict.fromkeys(["1", "true", "yes", "y", "on"], True)
_FLAGS |= dict.fromkeys(["0", "false", "no", "n", "off"], False)
"""Truth values of the words that cells contain for yes and no."""


def with_note(value: T, words: str, notes: Notes) -> T:
    """Return `value` and add `words`, which describe it as an assumption, to `notes`."""
    notes.append(words)
    return value


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """Published run as a row of a table, with the text of its cells by column name."""

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Text of the cell in `column` without surrounding blanks; empty if the cell is missing."""
        return (self.cells.get(column) or "").strip()

    def words(self, *columns: str) -> str:
        """Text of the cells in `columns` in lower case, with `; ` between cells."""
        return "; ".join(map(self.text, columns)).lower()

    def number(self, column: str) -> float | None:
        """Finite number in the cell in `column`; None if the cell has none."""
        try:
            value = float(self.text(column).replace(",", ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def positive(self, column: str) -> float | None:
        """Finite number above zero in the cell in `column`; None if the cell has none."""
        value = self.number(column)
        return value if value is not None and value > 0 else None

    def count(self, column: str) -> int | None:
        """Positive whole number in the cell in `column` (`8.0` counts as 8); None if the cell has none."""
        value = self.positive(column)
        return int(value) if value is not None and value.is_integer() else None

    def count_or(self, column: str, default: int, words: str, notes: Notes) -> int:
        """Positive whole number in the cell in `column`, or else `default`. For a default, `words` (`{}` is
        replaced by the number) are added to `notes`."""
        if (count := self.count(column)) is None:
            notes.append(words.format(count := default))
        return count

    def flag(self, column: str) -> bool | None:
        """Truth value of the yes or no in the cell in `column`; None if the cell says neither."""
        return _FLAGS.get(self.words(column).removesuffix(".0"))


def spellings() -> dict[str, Any]:
    """Patterns of cell texts with their meanings, by kind (`gpus`, `precisions`, ...), from
    `data/published/spellings.yaml`."""
    return read_data("published/spellings")


def meaning(kind: str, words: str) -> Any:
    """Meaning of the first pattern of a kind (`gpus`, `precisions`, ...) that occurs in `words`; None if no
    pattern does."""
    return next((meant for pattern, meant in spellings()[kind] if re.search(pattern, words)), None)


_MEMORY = re.compile(r"(?<![\d.])(\d{2,3})\s*gi?b\b(?!\s*/\s*s)", re.IGNORECASE)
_WATTS = re.compile(r"(?<![\d.])(\d{2,4})\s*w(?:atts?)?\b", re.IGNORECASE)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([tg])b\s*/\s*s", re.IGNORECASE)
_SCALES = {"g": 1e9, "t": 1e12}
_REPORTED = 79.1 / 80
"""GiB that the runtime reports for each GB of an H100's label."""
_SAME_LABEL = 0.07
"""Relative difference in memory up to which a cell means the catalogue's own board."""
_BOARDS = (0.5, 1.6)
"""Range of a board's memory relative to the catalogue's GPU; outside it, a cell counts several GPUs."""


def board_of_cell(gpu: GpuSpec, words: str, notes: Notes) -> GpuSpec:
    """Copy of a GPU spec with the memory, power limit and bandwidth that the text of a row's GPU cell states."""
    label, limit, rate = (pattern.search(words) for pattern in (_MEMORY, _WATTS, _BANDWIDTH))
    memory = int(label[1]) * _REPORTED * GIB if label else gpu.memory
    ratio, printed = memory / gpu.memory, dict[str, Any]()
    other_board = abs(ratio - 1) > _SAME_LABEL and _BOARDS[0] < ratio < _BOARDS[1]
    printed |= {"memory": memory} if other_board else {}
    printed |= {"tdp_watts": int(limit[1])} if limit else {}
    printed |= {"memory_bandwidth": float(rate[1]) * _SCALES[rate[2].lower()]} if rate else {}
    changed = {name: value for name, value in printed.items() if value != getattr(gpu, name)}
    if changed:
        notes.append(f"{', '.join(name.replace('_', ' ') for name in changed)} as the GPU's cell says")
    return gpu.model_copy(update=changed)


_RATE = r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<scale>[gGtT])"
_UNIT = r"(?P<unit>[bB](?:(?:it|yte)s?)?)"
_RAILS = re.compile(rf"(?P<rails>\d+)\s*[x×]\s*{_RATE}\s*{_UNIT}?")
_SPEED = re.compile(rf"{_RATE}\s*-?{_UNIT}(?:ps|/s|it/s|E\b|(?<=it)|(?<=its))(?!\s*memory)", re.IGNORECASE)
_GENERATION = re.compile(r"(?i)((?P<rails>\d+)\s*[x×]\s*)?[hnx]dr[- ]?(?P<rate>[1248]00)\b(?!\s*[gt]b)")
"""Pattern of InfiniBand by generation and Gb/s, as in `8x NDR400`."""
_OMNI_PATH = re.compile(r"(?P<rails>\d+)\s*[x×]\s*omni", re.IGNORECASE)
_NVLINK, _BYTES = r"nv(?:link|switch)", r"\d+(?:\.\d+)?\s*[GT]B/s"
_BUS = re.compile(rf"(?i){_NVLINK}[^,;+]*?{_BYTES}|{_BYTES}[^,;+]*?{_NVLINK}")
"""Pattern of the links inside a node."""
_ADAPTER = r"connectx|\bcx-?\d|infiniband|\bib\b|roce|ethernet|\bhca|\bnics?\b|[hnex]dr|efa|slingshot|omni"
"""Pattern of a network adapter, which a text may describe as connected by PCIe."""
_OTHER_USE = r"manage|mgmt|\bbmc\b|out[- ]of[- ]band|storage|front[- ]?end|in[- ]band"
_NO_NETWORK = re.compile(rf"(?is){_OTHER_USE}|^(?!.*(?:{_ADAPTER})).*pcie")
"""Pattern of networks that training does not use, and of the host's bus if no adapter is named."""
_PER_GPU = re.compile(r"(per|a|/)\s*(gpu|device|chip|accelerator|gcd)|per-gpu", re.IGNORECASE)
_ONE_ADAPTER = re.compile(r"ethernet|gbe\b|\btcp", re.IGNORECASE)
_ONE_ADAPTER_BITS, _OMNI_PATH_BITS = 101e9, 100e9
_ADAPTER_BITS = 401e9
"""Rate of the fastest adapter in the tables in bits/s: a higher rate must be for an entire node."""


def network_bits(words: str, per_node: int) -> float | None:
    """Network bandwidth per GPU in bits/s that a text states; None if it states none.

    A rate that one adapter can have counts per GPU, unless the text says that it is for the node, for the instance
    (EFA), or for the node's only adapter (Ethernet up to 100 Gb/s).
    """
    if match := _OMNI_PATH.search(words):
        return int(match["rails"]) * _OMNI_PATH_BITS / per_node
    parts = re.split(r"([,;+()])", _BUS.sub("", words))
    outside = "".join(part for part in parts if not _NO_NETWORK.search(part))
    if several := [int(match["rails"]) * _bits(match) for match in _RAILS.finditer(outside)]:
        return max(several) / per_node
    if match := _SPEED.search(outside):
        bits = _bits(match)
        of_node = re.search(r"node|instance|\befa\b", outside, re.IGNORECASE) or bits > _ADAPTER_BITS
        single_adapter = _ONE_ADAPTER.search(outside) and bits < _ONE_ADAPTER_BITS
        return bits / per_node if (of_node or single_adapter) and not _PER_GPU.search(outside) else bits
    if match := _GENERATION.search(outside):
        bits = float(match["rate"]) * 1e9
        return bits * int(match["rails"]) / per_node if match["rails"] else bits
    return None


def _bits(match: re.Match[str]) -> float:
    """Rate in bits/s of a match: `GB` and `Gbyte` are bytes; `Gb`, `Gbit`, `GbE` and `G` alone are bits."""
    in_bytes = re.fullmatch(r"B|(?i:bytes?)", match["unit"] or "")
    return float(match["rate"]) * _SCALES[match["scale"].lower()] * (8 if in_bytes else 1)


_BOX = re.compile(r"\s*([1-9]|1[0-6])\s*[x×]\s*[a-z]", re.IGNORECASE)
"""Pattern of the number of a node's GPUs before their name: `8 x H100 SXM5`."""
_UNNAMED_NETWORK = LinkSpec.model_validate({"kind": "infiniband", "bandwidth": "100 Gb/s", "latency": "5 us"})
"""Network between nodes that have none in the catalogue: one EDR adapter per GPU."""
_LARGEST_BOX = 16
"""Largest number of GPUs in a machine; a catalogue node with more is a rack."""


def cluster_of(row: PrintedRow, gpu: str, num_gpus: int, notes: Notes) -> ClusterSpec:
    """Catalogue cluster of a row's GPU, with the node size and network that the row states."""
    words = row.text("interconnect")
    cluster = _catalogue_cluster(gpu, words)
    stated, box = row.count("gpus_per_node"), _BOX.match(row.text("gpu"))
    per_node = stated or (int(box[1]) if box else cluster.gpus_per_node)
    if not stated and not box:
        notes.append(f"{per_node} GPUs a node")
    if cluster.gpus_per_node > _LARGEST_BOX:  # a rack is one NVLink domain, whatever sits in a tray
        per_node = _allocated(num_gpus, max(per_node, cluster.gpus_per_node), notes)
    per_node = min(per_node, num_gpus)
    bits = network_bits(words, stated or cluster.gpus_per_node)
    intra, inter = cluster.links.intra_node, cluster.links.inter_node
    if bits is not None and inter is not None:
        inter = inter.model_copy(update={"bandwidth": bits / 8})
    elif num_gpus > per_node:
        inter = inter or _UNNAMED_NETWORK
        notes.append(f"network of {inter.bandwidth * 8 / 1e9:.0f} Gb/s a GPU")
    if intra.kind in ("nvlink", "nvswitch") and "pcie" in words.lower() and "nvlink" not in words.lower():
        intra = host_link(cluster.gpu)
    match = _RAILS.search(_BUS.sub("", words))
    adapters = int(match["rails"]) if match else 0
    rails = adapters if adapters and per_node % adapters == 0 else None
    size = {"gpus_per_node": per_node, "nodes": -(-num_gpus // per_node), "rails": rails}
    board = board_of_cell(cluster.gpu, row.text("gpu"), notes)
    links = Links(intra_node=intra, inter_node=inter)
    return cluster.model_copy(update=size | {"gpu": board, "links": links})


def _allocated(num_gpus: int, rack: int, notes: Notes) -> int:
    """Number of GPUs in each rack that a job of several racks uses. It is all, or the largest power of two
    (64 of 72) if only that divides the job.

    Megatron Bridge's recipes give HybridEP 64 ranks of an NVLink domain of 72 (perf_recipes, `NVLINK_DOMAIN_SIZE`).
    """
    even = 1 << (rack.bit_length() - 1)
    if num_gpus <= rack or num_gpus % rack == 0 or num_gpus % even:
        return rack
    return with_note(even, f"{even} of a rack's {rack} GPUs", notes)


def _catalogue_cluster(gpu: str, words: str) -> ClusterSpec:
    """Catalogue cluster of a GPU with the network that the text `words` names; if it names none, with
    InfiniBand if there is such a cluster."""
    specs = map(catalog.load_cluster, (name for name in catalog.names("clusters") if name != LOCAL))
    # a row names a node and a network, no levels
    candidates = [spec for spec in specs if spec.gpu.name == gpu and isinstance(spec.links, Links)]
    network = meaning("networks", words.lower()) or "infiniband"
    if not candidates:
        return cluster_named(gpu)
    networks = ((spec, spec.links.inter_node) for spec in candidates)
    return next((spec for spec, link in networks if link and link.kind == network), candidates[0])


_UPDATE_UNIT = 1e-9
"""Seconds per parameter for which the host update is priced, to scale it to the time in a log."""

NOTHING = re.compile(r"[-–—]|n/?a|no|not?[ -]used|none|null|nil|false|off|0+(\.0)?|disabled?|without.*|w/o.*")
"""Pattern of cells that say that something was not used."""
_LACKING: dict[Precision, tuple[Precision, ...]] = {"tf32": ("fp32",), "fp4": ("fp8", "bf16")}
"""Replacements, in order, of a precision that a GPU lacks; of other precisions bf16, else fp16."""


def precision_of(row: PrintedRow, cluster: ClusterSpec, notes: Notes) -> Precision:
    """Precision of matrix products in a row: bf16 if blank or unknown, a replacement if the GPU lacks it."""
    words, peak = row.words("precision"), cluster.gpu.peak
    stated: Precision | None = meaning("precisions", words)
    if stated is None:
        notes.append(f"bf16: precision `{printable(words, 30)}` is not known")
    precision = stated or "bf16"
    if precision not in peak:
        lesser = _LACKING.get(precision) or ("bf16",)
        replacement: Precision = next((one for one in lesser if one in peak), "fp16")
        return with_note(replacement, f"{replacement}: {cluster.gpu.name} has no {precision}", notes)
    if not words:
        notes.append(f"{precision} (precision blank)")
    return precision


def recompute_of(row: PrintedRow, stack: StackSpec, notes: Notes) -> Recompute:
    """Recompute policy (`none`, `selective` or `full`) of a row; if blank, the policy of its recipe or the
    stack's default."""
    words = row.words("recompute")
    if modules := _recipe_modules(row):
        notes.append(f"recompute {modules}, as its recipe does (blank)")
        return "selective"
    if not words:
        default = stack.usual_recompute or ("full" if stack.attention in STORES_SCORES else "none")
        return with_note(default, f"recompute {default} (blank)", notes)
    if NOTHING.fullmatch(words):
        return "none"
    policy: Recompute | Literal["some blocks"] = meaning("recompute", words)
    if policy == "some blocks":
        notes.append(f"recompute full in every block: `{printable(words, 30)}` names some")
        return "full"
    return policy


_RECIPE = ("framework", "model_name", "gpu", "precision")
"""Columns that identify the recipe of a row."""


def modules_of(row: PrintedRow) -> tuple[SelectiveDrops, ...]:
    """Modules of a block that Megatron recomputed (`--recompute-modules`) according to a row; empty if the
    row names none or an unknown one."""
    match = re.search(r"recompute(?:[- _]modules)?[ =:\[]+([a-z_, ]+)", row.words("recompute", "notes"))
    names = re.findall(r"[a-z_]+", match[1] if match else _recipe_modules(row))
    known: Mapping[str, SelectiveDrops] = spellings()["recompute_modules"]
    drops = [known[name] for name in names if name in known]
    return tuple(sorted({*drops})) if len(drops) == len(names) else ()


def _recipe_modules(row: PrintedRow) -> str:
    """Names of the modules that the trainer's recipe recomputes, if the row's recompute cell is blank;
    otherwise empty."""
    return "" if row.text("recompute") else str(meaning("recipe_modules", row.words(*_RECIPE)) or "")


def zero_of(row: PrintedRow, stack: StackSpec, replicas: int, notes: Notes) -> int:
    """ZeRO stage of a row with `replicas` data-parallel ranks; if blank, the stack's default."""
    stated, usual = meaning("zero_stages", row.words("zero_stage")), stack.usual_zero_stage
    if replicas == 1:
        return 0
    if (row.count("pp") or 1) > 1 and stated == 3 and stack.pipelines_keep_weights:
        notes.append(f"ZeRO-2: {stack.name} does not reshard weights between a pipeline's microbatches")
        return 2
    if stated is not None:
        return int(stated)
    if re.search(r"\bddp\b|distributed ?data ?parallel|nanogpt", row.words("framework")):
        return with_note(0, "ZeRO-0: data-parallel replicas", notes)
    return with_note(usual, f"ZeRO-{usual}, as {stack.name} usually runs", notes)


def names_hybrid(words: str) -> bool:
    """Whether a text means hybrid sharding, in groups that replicate each other's shards."""
    return re.search(r"hybrid|hsdp|intra[-_ ]?node|per[-_ ]?node", words.lower()) is not None


_STATES_OFFLOADED = "optimizer states in host memory, updated by the CPU"


def offload_of(row: PrintedRow, stack: StackSpec, blocks: int, notes: Notes) -> tuple[Offload, int]:
    """Offload to host memory that a row states, for a model of `blocks` blocks, and the number of buffers for
    streamed blocks."""
    words = row.words("offload")
    if not words or NOTHING.fullmatch(words):
        return NOWHERE, USUAL_RING
    if "window" in words:
        window = min(row.count("window") or 1, blocks)
        notes.append(f"a ring of {window} blocks besides {window} that stay on the device")
        return Offload(streamed=blocks - window), window
    only_streams = stack.residencies == ("streamed",) and not re.search("optim|state", words)
    activations = "activation" in words
    if (activations and "(" in words) or ("see notes" in words and "activation" in row.words("notes")):
        offload, note = NOWHERE, "activations of some operators in host memory count as on the device"
    elif activations:
        offload, note = Offload(activations=EVERY), "activations in host memory"
    elif only_streams or re.search(r"param|weight|model|nvme|infinity", words):
        offload, note = Offload(streamed=EVERY), f"weights, gradients and {_STATES_OFFLOADED}"
    else:
        offload, note = Offload(states=EVERY), _STATES_OFFLOADED
    if offload.streamed and "nvme" in words:
        notes.append("NVMe as fast as host memory")
    notes.append(note)
    return offload, USUAL_RING


def with_host_update(row: PrintedRow, question: Question, layout: Layout, notes: Notes) -> Question:
    """Question in which the CPU update of a step takes the time in the row's log; unchanged if the row has
    none."""
    stated = row.positive("cpu_update_s")
    slow = question.updated("hardware", host_update_seconds=_UPDATE_UNIT)
    by_unit = channel_seconds(slow, LayoutColumns.of([layout])).update[0] / _UPDATE_UNIT if stated else 0
    if not stated or by_unit == 0:
        return question
    notes.append(f"its host updates a parameter in {stated / by_unit * 1e9:.2f} ns, as its log says")
    return question.updated("hardware", host_update_seconds=stated / by_unit)


def is_suspect(row: PrintedRow) -> bool:
    """Whether the transcriber flagged a row's time as noisy, suspect, or limited by something that the row
    does not state."""
    return re.search(r"noisy|suspect|inconsistent|regression|_bound\b", row.words("flags")) is not None


_WHERE_SPLIT = re.compile(r"[^;,]*when tp\*pp ?> ?1[^;,]*", re.IGNORECASE)
"""Pattern of a remark that applies only if the model is split, such as `bf16 moments when tp*pp>1`."""


def _remarks(row: PrintedRow) -> list[str]:
    """Phrases between separators in a row's notes and assumed fields, without leading dashes."""
    text = f"{row.text('notes')};{row.text('assumed_fields')}"
    if (row.count("tp") or 1) * (row.count("pp") or 1) == 1:
        text = _WHERE_SPLIT.sub("", text)
    return [one.strip().lstrip("-") for one in re.split(r"[;,()]", text)]


def _facts(kind: str, remarks: Iterable[str]) -> dict[str, Any]:
    """Field values, by field name, from those patterns of one kind that occur in the remarks. Of
    several values for a field the last is used."""
    facts: dict[str, Any] = {}
    for remark in remarks:
        for pattern, fields in spellings()[kind]:
            facts |= fields if re.search(pattern, remark) else {}
    return facts


_DROPOUT = re.compile(r"dropout(?: default)?[ =](0(?:\.\d+)?)")


def training_changes(row: PrintedRow) -> dict[str, Any]:
    """Values of `TrainingSpec` fields that a row's notes set (dropout, optimizer, bf16 moments), by field."""
    remarks, dropout = _remarks(row), row.number("dropout")
    for match in filter(None, map(_DROPOUT.match, remarks)):
        dropout = float(match[1])
    usable = dropout is not None and 0 <= dropout < 1
    return _facts("training_facts", remarks) | {"dropout": dropout if usable else None}


def keeps_experts_whole(row: PrintedRow) -> bool:
    """Whether recipes of a row's trainer do not split experts over tensor-parallel ranks. Megatron Bridge's
    recipes set `expert_tensor_parallel_size` to 1, and so does Megatron Core's guide for experts with DeepEP.
    """
    return "bridge" in row.words("framework") or expert_changes(row).get("expert_dispatch") == "tokens"


def expert_changes(row: PrintedRow) -> dict[str, Any]:
    """Values of `StackSpec` fields that an MoE row's framework, kernels and notes imply, by field; empty for
    dense models."""
    if (row.count("moe_experts") or 1) == 1:
        return {}
    return _facts("expert_facts", [f"{row.words(*_RECIPE)} | {row.words('other_kernels', 'notes')}"])


def further_tokens(row: PrintedRow) -> int:
    """Number of multi-token-prediction modules (0 or 1) of a row's model, from its name or known recipe."""
    return int(meaning("further_tokens", row.words(*_RECIPE)))


_NATIVE = re.compile(r"torch|native")
"""Pattern of attention that consists of PyTorch operators."""

_RECENT_GPUS = re.compile(r"h100|h200|h800|h20\b|gh200|hopper|b[23]00|mi3\d\d|(fp|float)-?8")
"""Pattern of GPUs, and of a type, later than 2021: an undated Megatron on them is a Megatron Core."""
_LLAMA_LIKE = re.compile(r"glu|silu|llama|mistral|mixtral|qwen|deepseek")
"""Pattern of models published after flash kernels."""
_WITHOUT_FLASH = re.compile(r"v100|volta|\bt4\b|p100|2080|titan")
"""Pattern of GPUs that FlashAttention 2 does not support."""
_FLASH_YEAR = 2022
_UNFUSED_UNTIL = "2025-10"
"""Last month in which no attention kernel of the `lts` container's Transformer Engine added up in a fixed order."""


def stack_of(row: PrintedRow, forced: str | None, notes: Notes) -> StackSpec:
    """Software stack `forced`, or the catalogue's stack for a row's framework and date, with the kernels that
    the row names."""
    stack = catalog.load_stack(forced or _release_of(_stack_name(row, notes), row))
    facts = _facts("stack_facts", _remarks(row))
    changes: dict[str, object] = {"attention": _kernel(row, stack, facts, notes)}
    other_kernels = row.words("other_kernels")
    if row.flag("compile") or re.search(r"compile|inductor|\bjit\b", other_kernels):
        first, last = stack.loss_not_compiled or ("", "")
        left_loss = first <= (month_of(row) or "undated") <= last
        changes |= stack.when_compiled(loss=stack.compiles_loss and not left_loss)
    elif "norm" in other_kernels:
        changes["fused_norms"] = True
    changes |= expert_changes(row) | facts
    if stack.drops <= OUTPUTS | CORE:
        changes["selective_drops"] = modules_of(row) or "core"
    return stack.model_copy(update=changes)


def _release_of(family: str, row: PrintedRow) -> str:
    """Name of the release of a stack family that was current in the row's month, by the releases' last
    months; `family` if none is known."""
    year = _year(row)
    month = month_of(row) or (f"{year}-12" if year else "undated")
    stacks = [one for one in map(catalog.load_stack, catalog.names("stacks")) if one.family == family]
    releases = [(one.last_month, one.name) for one in stacks if one.last_month and month <= one.last_month]
    return min(releases)[1] if releases else family


def _stack_name(row: PrintedRow, notes: Notes) -> str:
    """Catalogue name of the stack for a row's framework; for an unknown framework `fsdp`, or a Megatron
    release if the model is split."""
    words = row.words("framework")
    family: str | None = meaning("frameworks", words)
    if family is None:
        split = any((row.count(axis) or 1) > 1 for axis in ("tp", "pp", "cp", "ep"))
        family = "megatron" if split else "fsdp"
        notes.append(f"{words or 'an unnamed framework'} works as {family}")
    if family != "megatron":
        return family
    words, recent = row.words("attention_kernel"), _RECENT_GPUS.search(row.words("gpu", "precision"))
    kernel, llama_like = meaning("attention", words), _LLAMA_LIKE.search(row.words("ffn_kind", "model_name"))
    stored = kernel in STORES_SCORES or _NATIVE.search(words) or not (kernel or llama_like)
    year = _year(row) or (2024 if recent else 2021 if stored else 2023)
    return "megatron-lm" if year > 2023 else f"megatron-{max(year, 2021)}"


def _kernel(row: PrintedRow, stack: StackSpec, facts: Mapping[str, Any], notes: Notes) -> AttentionKernel:
    """Attention kernel that a row names; if it names no known kernel, the stack's default. `facts` are from
    the row's notes.

    GPUs before Ampere and years before 2022 have no flash kernel.
    """
    lts_container = re.search(r"\blts container\b", row.words("framework"))
    if lts_container and (month_of(row) or "undated") <= _UNFUSED_UNTIL and facts.get("deterministic"):
        notes.append("attention stores its scores: its container had no deterministic kernel")
        return "unfused"
    words = row.words("attention_kernel")
    stated: AttentionKernel | None = meaning("attention", words)
    is_assumed = re.search(r"attention[ _]kernel", row.words("assumed_fields"))  # by the table's author
    if stated is not None and not is_assumed:
        # a flash kernel that does not say which is that of the trainer's release
        any_flash = re.fullmatch(r"flash[- _]?(attn|attention)?", words)
        return stack.attention if any_flash and stack.attention.startswith("flash") else stated
    native = _NATIVE.search(words)
    if words and not native:
        notes.append(f"{stack.attention} attention: the kernel named is not known")
    default = stack.native_attention if native else stack.attention
    too_old = _WITHOUT_FLASH.search(row.words("gpu", "precision")) or 0 < _year(row) < _FLASH_YEAR
    if default in STORES_SCORES or not too_old:
        return default
    return with_note("unfused", "attention stores its scores: no flash kernel for this GPU or year", notes)


def month_of(row: PrintedRow) -> str | None:
    """Month (such as `2024-07`) in a row's framework or date; None if neither has one."""
    dated = re.search(r"20\d\d-(?:0[1-9]|1[0-2])", row.words("framework", "run_date"))
    return dated[0] if dated else None


def _year(row: PrintedRow) -> int:
    """Latest year in a row's date or framework; 0 if neither has one."""
    return max(map(int, re.findall(r"\b(20[12]\d)\b", row.words("run_date", "framework"))), default=0)
