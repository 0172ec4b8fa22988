"""Conversion of run tables with other columns to canonical tables: blank cells are filled with what authors
usually run, and each assumption is noted.

The model follows from the row's shape or, where that is incomplete, from its name. A row with an impossible value is
skipped, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.axes.stages import even_layers, layers_in_turn, layers_up_to_shares
from cost_models.defaults import complete_question
from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.measured.runs.cases import MAX_ACTIONS, Case, cluster_fields, read_case, read_rows
from cost_models.measured.runs.printed import (
    Notes,
    PrintedRow,
    cluster_of,
    further_tokens,
    is_suspect,
    keeps_experts_whole,
    meaning,
    month_of,
    names_hybrid,
    offload_of,
    precision_of,
    recompute_of,
    spellings,
    stack_of,
    training_changes,
    with_host_update,
    with_note,
    zero_of,
)
from cost_models.measured.runs.rows import (
    COLUMNS,
    SHORT_NAMES,
    SPECS,
    Cells,
    Row,
    parse_row,
    parse_table,
    read_table,
    scalar,
    unknown_columns,
)
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import padded_vocabulary
from cost_models.pipeline.pricing import estimate_each
from cost_models.question import Question
from cost_models.specs.stack import VOCABULARY_UNIT, StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

LARGEST_COUNTS = {
    "layers": 10_000, "hidden": 1_000_000, "heads": 100_000, "head_dim": 100_000, "kv_heads": 100_000,
    "ffn_hidden": 10_000_000, "vocab": 100_000_000, "seq_len": 100_000_000, "moe_experts": 100_000,
    "moe_top_k": 100_000, "moe_ffn_hidden": 10_000_000, "moe_layers": 10_000, "gpus_per_node": 10_000,
    "num_gpus": 10_000_000, "tp": 100_000, "pp": 10_000, "vp": 10_000, "cp": 100_000, "ep": 100_000, "dp": 10_000_000,
    "hybrid_shard": 10_000_000, "micro_batch": 1_000_000, "global_batch": 100_000_000, "grad_accum": 10_000_000,
}  # fmt: skip
"""Largest plausible value of each column of whole numbers, far above anything that was trained."""
_BLANK = re.compile(r"|[-–—?.]|0+\.?0*|-1|n/?an?|none|null|nil|unknown|unspecified|default|auto|off|false|no")
"""Pattern of cells without a value; 0 and -1 switch an axis off."""


def check_counts(row: PrintedRow) -> None:
    """Raise InputError unless each column of whole numbers contains a plausible number or is blank.

    A `global_batch` may be a fraction of 1 or more (tokens over sequence length), `hybrid_shard` a word.

    Raises:
        InputError: the first cell that is something else, with what it says.
    """
    for column, largest in LARGEST_COUNTS.items():
        words, count = row.text(column), row.count(column)
        if (count or 0) > largest:
            raise InputError(f"`{column}` is {printable(words, 20)}, beyond anything that is trained")
        if count is not None or _BLANK.fullmatch(words.lower()):
            continue
        fraction = column == "global_batch" and (row.number(column) or 0) >= 1
        if not fraction and not (column == "hybrid_shard" and (row.flag(column) or names_hybrid(words))):
            raise InputError(f"`{column}` is `{printable(words, 20)}`, not a whole number above zero")


_VOCABULARY = 50304
"""Vocabulary size of rows that state none: GPT-2's, as trainers pad it."""
_LONGEST_NAME = 80
_GATED = re.compile(r"llama|mi[sx]tral|qwen|gemma|deepseek|olmo|internlm")
"""Pattern of model families whose MLP is gated (three matrices)."""


def model_of(row: PrintedRow, stack: StackSpec, notes: Notes) -> TransformerSpec:
    """Model that a row trained, from the shape in the row or the catalogue's model of that name. Raises
    InputError if the row has neither a shape nor a name that the catalogue knows."""
    layers, hidden = row.count("layers"), row.count("hidden")
    catalogued = _by_name(row.text("model_name"))
    if layers is None or hidden is None:
        if catalogued is not None:
            return with_note(catalogued, f"shape of the catalogue's {catalogued.name}", notes)
        raise InputError("`layers` or `hidden` is blank and the catalogue has no model of that name")
    if catalogued is not None and (catalogued.num_layers, catalogued.hidden_size) == (layers, hidden):
        row = _with_missing_cells(row, catalogued, notes)
    kind, words, name = row.words("ffn_kind"), row.words("framework"), row.text("model_name")
    # by its kind, else the model's name, or an inner width below 3h
    narrow = not row.count("moe_experts") and (row.count("ffn_hidden") or 3 * hidden) < 3 * hidden
    gated = "glu" in kind if kind else (narrow or _GATED.search(name.lower()) is not None)
    activation = meaning("activations", kind) or "gelu"
    heads = row.count_or("heads", max(1, hidden // (row.count("head_dim") or 128)), "{} heads", notes)
    # 4h, or for three matrices 8h/3 rounded up to a multiple of 256
    usual_inner = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
    fields: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", name or row.text("row_id"))[:_LONGEST_NAME].strip("._-")
        or "model",
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": row.count("kv_heads") or heads,
        "head_dim": row.count("head_dim") or max(1, hidden // heads),
        "ffn_hidden_size": row.count_or("ffn_hidden", usual_inner, "MLP of {}", notes),
        "vocab_size": row.count_or("vocab", _VOCABULARY, "vocabulary of {}", notes),
        "vocab_multiple": VOCABULARY_UNIT if stack.pads_vocabulary else 1,
        "gated_mlp": gated,
        "parallel_block": re.search(r"\bptb\b|parallel (transformer )?block", words) is not None,
        "activation": activation,
        "max_positions": row.count("seq_len") or 2048,
        "tied_embeddings": row.flag("tied_embeddings") if row.text("tied_embeddings") else not gated,
    }
    if re.search(r"\bswa\b|sliding", words):
        fields["attention_window"] = max(1, (row.count("seq_len") or 2048) // 2)
        notes.append("attention over a window of half the sequence")
    if gated or row.count("kv_heads") not in (None, heads) or activation == "squared-relu":
        norm = "rmsnorm" if gated else "layernorm"
        fields |= {"norm": norm, "positions": "rotary", "attention_bias": False, "mlp_bias": False}
    if (experts := row.count("moe_experts") or 1) > 1:
        per_token = row.count_or("moe_top_k", min(2, experts), "{} experts a token", notes)
        fields |= {"num_experts": experts, "experts_per_token": min(per_token, experts)}
        columns = {"moe_ffn_hidden_size": "moe_ffn_hidden", "num_moe_layers": "moe_layers"}
        fields |= {field: count for field, column in columns.items() if (count := row.count(column))}
        fields["further_tokens"] = further_tokens(row)
    # blocks may be fewer
    if catalogued is not None and (catalogued.hidden_size, catalogued.num_heads) == (hidden, heads):
        fields |= {field: getattr(catalogued, field) for field in _UNTABLED}
        if catalogued.latent_attention is not None:  # tables say the width of its values, or nothing
            fields |= {"head_dim": catalogued.head_dim, "num_kv_heads": catalogued.num_kv_heads}
        if fields.get("num_experts") == catalogued.num_experts:
            fields["expert_groups"] = catalogued.expert_groups
    return TransformerSpec(**fields)


_BIASES = ("attention_bias", "attention_output_bias", "mlp_bias", "router_bias")
_WINDOWS = ("attention_sinks", "attention_window", "window_kind", "window_pattern")
_UNTABLED = ("latent_attention", "shared_expert_ffn_hidden_size", "qk_norm", *_BIASES, *_WINDOWS)
"""Model fields without a column in tables, taken from the catalogue's model of the same name and width."""


def _with_missing_cells(row: PrintedRow, catalogued: TransformerSpec, notes: Notes) -> PrintedRow:
    """Copy of a row in which blank shape cells are filled from the catalogue's model of that name and size."""
    model, kind = catalogued, "swiglu" if catalogued.gated_mlp else catalogued.activation
    shape = {"ffn_hidden": model.ffn_hidden_size, "ffn_kind": kind, "vocab": model.vocab_size}
    shape["tied_embeddings"] = int(model.tied_embeddings)
    if row.count("heads") in (None, model.num_heads):
        shape |= {"heads": model.num_heads, "kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    if model.has_experts:
        shape |= {"moe_experts": model.num_experts, "moe_top_k": model.experts_per_token}
        shape["moe_ffn_hidden"] = model.moe_ffn_hidden_size
    missing = {name: str(cell) for name, cell in shape.items() if not row.text(name)}
    if missing:
        notes.append(f"{', '.join(missing)} of the catalogue's {catalogued.name}")
    return PrintedRow({**row.cells, **missing})


def _by_name(name: str) -> TransformerSpec | None:
    """Catalogue model that a row's name means, in any spelling; None if the catalogue has none."""
    for spelling, replacement in spellings()["model_names"]:
        name = re.sub(spelling, replacement, name.lower())
    letters = _letters(name)
    match = next((one for one in catalog.names("models") if letters and _letters(one) == letters), None)
    return catalog.load_model(match) if match else None


def _letters(name: str) -> str:
    """Lower-case letters and digits of a model's name, which are the same for `Llama 3.1 8B` and
    `llama-3.1-8b`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


_USUAL_GPUS = 128
"""Number of GPUs assumed for a row that states none: only a share of the optimizer states depends on it."""
_USUAL_BUBBLE = 0.05
"""Idle share of a step at which recipes stop adding model chunks (Llama 3, section 3.3.2)."""


def degrees_of(row: PrintedRow, notes: Notes) -> Layout:
    """Parallel degrees of a row, not validated yet: 1 for blank axes, and data parallelism over the remaining
    GPUs.

    Where neither GPUs nor dp are stated, dp is the largest degree that divides the batch's microbatches within
    128 GPUs.
    """
    tp, pp, vp, cp, ep = (row.count(axis) or 1 for axis in ("tp", "pp", "vp", "cp", "ep"))
    gpus, dp, batch = row.count("num_gpus"), row.count("dp"), row.count("global_batch")
    model_gpus = tp * pp * cp
    if gpus is not None:
        if gpus % model_gpus:
            raise InputError(f"tp · pp · cp = {model_gpus} does not divide {gpus} GPUs")
        if dp is not None and dp * model_gpus != gpus:
            notes.append(f"dp {gpus // model_gpus}: the row's {dp} does not fit {gpus} GPUs")
        dp = gpus // model_gpus
    elif dp is not None:
        notes.append(f"{model_gpus * dp} GPUs: the product of the degrees")
    elif batch is None:
        raise InputError("neither `num_gpus` nor `dp` nor `global_batch` is given")
    else:
        samples = max(1, batch // (row.count("micro_batch") or 1))
        dp = next(n for n in range(max(1, _USUAL_GPUS // model_gpus), 0, -1) if samples % n == 0)
        notes.append(f"{model_gpus * dp} GPUs: the row names none")
    return Layout.model_construct(tp=tp, pp=pp, vpp=vp if pp > 1 else 1, cp=cp, ep=ep, dp=dp)


def chunks_of(row: PrintedRow, blocks: int, stack: StackSpec, degrees: Layout, notes: Notes) -> int:
    """Model chunks per pipeline rank as the row states; if blank and the stack interleaves, the fewest that
    keep the pipeline busy. They divide a rank's blocks evenly, or its blocks, embedding and head.

    Microbatches follow from the row's accumulation or batch; where both are blank, they are the stages.
    """
    pp, batch = degrees.pp, row.count("global_batch")
    if pp == 1 or row.count("vp"):
        return degrees.vpp
    chunks, samples = 1, degrees.dp * (row.count("micro_batch") or 1)
    microbatches = row.count("grad_accum") or (max(1, batch // samples) if batch else pp)
    if stack.usually_splits_sequence and microbatches % pp == 0:
        with_ends = blocks + 2 * stack.ends_count_as_blocks
        per_rank = next((count for count in (blocks, with_ends) if count % pp == 0), pp) // pp
        possible = [count for count in range(1, per_rank + 1) if per_rank % count == 0]
        idle = (pp - 1) / microbatches
        chunks = next((count for count in possible if idle / count <= _USUAL_BUBBLE), possible[-1])
    return with_note(chunks, f"{chunks} model chunk{'s' if chunks > 1 else ''} a rank (vp blank)", notes)


_HARDLY_SLOWER = 1.05
"""Ratio of step times that the cost model cannot distinguish."""


def printed_case(row: PrintedRow, *, stack: str | None = None) -> Case:
    """Case of a row as its author printed it, with the assumptions made; `stack` replaces the row's stack.

    Raises:
        InputError: with the reason why the row cannot be predicted.
    """
    notes = Notes()
    check_counts(row)
    # most weights are frozen
    if re.search(r"\bq?lora\b|\bdora\b|\bpeft\b|adapters?\b", row.words("task", "framework", "model_name")):
        raise InputError("fine-tunes adapters (LoRA), whose frozen weights need no gradients: not modelled")
    gpu: str | None = meaning("gpus", row.words("gpu"))
    if gpu is None:
        raise InputError(f"GPU `{row.text('gpu') or 'blank'}` is not in the catalogue")
    ran_stack = stack_of(row, stack, notes)
    model = model_of(row, ran_stack, notes)
    degrees = degrees_of(row, notes)
    cluster = cluster_of(row, gpu, degrees.num_gpus, notes)
    chunks = chunks_of(row, model.num_layers, ran_stack, degrees, notes)
    zero = zero_of(row, ran_stack, degrees.data_ranks, notes)
    degrees = degrees.model_copy(update={"vpp": chunks, "zero": zero})
    if (sequence := row.count("seq_len")) is None:
        raise InputError("no `seq_len`")
    batch, facts = _global_batch(row, degrees, notes), training_changes(row)
    facts["precision"] = precision_of(row, cluster, notes)
    training = TrainingSpec(global_batch=batch, sequence_length=sequence, **facts)
    question = complete_question(model, cluster, training, stack=ran_stack)
    layout = _layout(row, question, degrees, notes)
    question = with_host_update(row, question, layout, notes)
    is_blank = {"gpus": row.count("num_gpus") is None and row.count("dp") is None}
    is_blank["degrees"] = not any(map(row.text, ("tp", "pp", "cp", "ep")))
    is_blank["recompute"] = not row.text("recompute")
    unstated = tuple(word for word, blank in is_blank.items() if blank)
    assumptions = tuple(note.replace(";", ",") for note in notes)
    noted = Row.model_validate({"assumptions": assumptions, "unstated": unstated})
    return Case(row=noted, question=question, layout=layout)


def _global_batch(row: PrintedRow, degrees: Layout, notes: Notes) -> int:
    """Sequences per step, as printed in the row or as the product of microbatch, accumulation and data
    parallelism."""
    printed, micro = row.number("global_batch"), row.count("micro_batch")
    if printed is not None and printed >= 1:
        if (batch := round(printed)) != printed:
            notes.append(f"global batch {batch}: the row's {printed:g} is no whole number")
        return batch
    if micro is None:
        raise InputError("neither `global_batch` nor `micro_batch` is given")
    return micro * row.count_or("grad_accum", degrees.pp, "{} microbatches a step", notes) * degrees.dp


def _layout(row: PrintedRow, question: Question, degrees: Layout, notes: Notes) -> Layout:
    """Layout of a row, with blocks placed on stages as the stack does, and a blank microbatch size tuned."""
    micro, stack = _micro_batch(row, question, degrees, notes), question.stack
    stages, blocks, batch = degrees.num_stages, question.model.num_layers, question.training.global_batch
    if stages > blocks + 2 * stack.ends_count_as_blocks:
        raise InputError(f"{blocks} blocks on {stages} stages")
    if stages * (batch // ((micro or 1) * degrees.dp)) > MAX_ACTIONS:
        raise InputError(f"global batch {batch} is too many microbatches")
    offload, ring = offload_of(row, stack, blocks, notes)
    shard = _shard_group(row, degrees, question.cluster.gpus_per_node, notes)
    splits_sequence = degrees.tp > 1 and row.flag("sequence_parallel")
    if splits_sequence is None and (splits_sequence := stack.usually_splits_sequence):
        notes.append("sequence parallelism (blank)")
    axes = degrees.model_dump(exclude_unset=True) | {"etp": _expert_tensor(row, degrees), "shard": shard}
    axes |= {"mbs": micro or 1, "sp": bool(splits_sequence), "offload": offload, "ring": ring}
    policy, layers = recompute_of(row, stack, notes), _blocks_on_stages(question, stages, notes)
    layout = Layout(**axes, recompute=(policy,), layers=layers)
    if micro is None:
        layout = _with_tuned_microbatch(question, layout)
        notes.append(f"microbatch {layout.mbs} (blank)")
    return layout


def _blocks_on_stages(question: Question, stages: int, notes: Notes) -> tuple[int, ...]:
    """Number of transformer blocks on each pipeline stage, as the software stack places them by default."""
    model, placement = question.model, question.stack.places_blocks
    if placement == "by-compute" and stages > 1:
        block = sum(one.flops for one in block_operators(model))
        notes.append("blocks placed up to equal shares of their products and the head's")
        head = 2.0 * model.hidden_size * float(padded_vocabulary(model, 1)) / block
        return layers_up_to_shares(model.num_layers, stages, head)
    if model.num_layers % stages and placement == "in-turn":
        notes.append("stages filled in turn, the last with what is left")
        return layers_in_turn(model.num_layers, stages)
    if model.num_layers % stages:
        notes.append("blocks placed as evenly as they go, fewer where embedding and head sit")
    return even_layers(model.num_layers, stages)


def _with_tuned_microbatch(question: Question, layout: Layout) -> Layout:
    """Layout with the smallest microbatch size that fits and is at most 5 % slower than the fastest, as an
    author would choose it; one sequence if none fits."""
    samples = question.training.global_batch // layout.dp  # sequences a microbatch that authors try: 1 to 8
    counts = {size: samples // size for size in (1, 2, 4, 8) if samples % size == 0}
    whole = [size for size, count in counts.items() if layout.vpp == 1 or count % layout.pp == 0]
    possible = [layout.model_copy(update={"mbs": size}) for size in whole if counts[size] >= layout.pp]
    fitting = [one for one in estimate_each(question, possible) if one.fits]
    fastest = min((one.step_seconds for one in fitting), default=0.0)
    return next((one.layout for one in fitting if one.step_seconds <= fastest * _HARDLY_SLOWER), layout)


def _expert_tensor(row: PrintedRow, degrees: Layout) -> int | None:
    """Tensor-parallel degree of experts that a row's notes or its trainer's recipes state; None if the same
    as tp. It is 1 if none is stated and ep does not divide dp · cp."""
    match = re.search(r"(?:ETP|expert-tensor-parallel-size)=(\d{1,4})\b", row.text("notes"))
    stated = int(match[1]) if match else int(degrees.ep > 1 and degrees.tp > 1 and keeps_experts_whole(row))
    if stated and degrees.tp * degrees.data_ranks % (degrees.ep * stated) == 0:
        return stated
    if degrees.ep == 1 or degrees.data_ranks % degrees.ep == 0:
        return None
    if degrees.tp * degrees.data_ranks % degrees.ep:
        raise InputError(f"ep {degrees.ep} does not divide tp · cp · dp")
    return 1


def _shard_group(row: PrintedRow, degrees: Layout, per_node: int, notes: Notes) -> int | None:
    """Number of ranks over which ZeRO shards one copy of the states; None for all replicas."""
    size, replicas, hybrid = row.count("hybrid_shard"), degrees.data_ranks, row.flag("hybrid_shard")
    words = row.words("hybrid_shard") if hybrid is not None else row.words("hybrid_shard", "zero_stage")
    if degrees.zero and size in (None, 1) and (hybrid or names_hybrid(words)):
        size = max(1, per_node // (degrees.tp * degrees.pp))
        notes.append(f"hybrid sharding over {size} ranks: those of a node")
    if size is None or size >= replicas or degrees.zero == 0:
        return None
    if replicas % size:
        notes.append(f"ZeRO over all {replicas} replicas: groups of {size} do not divide them")
        return None
    return size


def _micro_batch(row: PrintedRow, question: Question, degrees: Layout, notes: Notes) -> int | None:
    """Sequences per microbatch as printed, or computed from the row's accumulation; None if both are blank."""
    micro, batch = row.count("micro_batch"), question.training.global_batch
    if micro is None:
        # early releases ran one microbatch a stage in each step
        until = question.stack.microbatches_per_stage_until or ""
        a_stage = degrees.pp > 1 and (month_of(row) or "undated") <= until
        accumulated = row.count("grad_accum") or (degrees.pp if a_stage else None)
        if accumulated is None and batch >= degrees.dp:
            return None
        micro = max(1, batch // (degrees.dp * (accumulated or 1)))
        notes.append(f"microbatch {micro}")
    if micro * degrees.dp > batch:
        raise InputError(f"microbatch {micro} × dp {degrees.dp} exceeds the global batch {batch}")
    if batch % (micro * degrees.dp):
        notes.append(f"global batch {batch} in {batch // (micro * degrees.dp)} whole microbatches")
    return micro


_SHORTENED = {path: column for column, path in SHORT_NAMES.items()}
_SWEEP = ("model_name", "seq_len", "num_gpus", "global_batch", "gpu", "precision")
"""Columns with equal cells in all rows of a sweep."""
_TEXTS = {name: name for name in ("row_id", "source_id", "source_cite", "task", "run_date", "flags", "notes")}
_TEXTS |= {"trainer": "framework", "model": "model_name"}
"""Printed column with the text of each canonical column."""
_FIGURES = {"step_seconds": "step_time_best_s", "peak_gb": "peak_memory_gb", "mfu": "mfu"}
_FIGURES |= {"tokens_per_second_per_gpu": "tokens_per_s_per_gpu", "tflops_per_gpu": "tflops_per_gpu"}
"""Printed column with the positive number of each canonical column."""


def convert_table(path: Path, *, stack: str | None = None) -> list[Cells]:
    """Convert a table of runs into rows of a canonical table, cells by column; a row that cannot be predicted
    gets the reason in `skipped`. `stack` replaces the software of all rows. A canonical table is unchanged.

    Raises:
        InputError: the file cannot be read, or is no table of runs.
    """
    columns, lines = parse_table(read_table(path), place=str(path))
    if columns and not unknown_columns(columns):
        read_rows(path)
        return [{column: cells.get(column, "") for column in columns} for _, cells in lines]
    if missing := [f"`{column}`" for column in ("num_gpus", "layers", "hidden") if column not in columns]:
        hint = "docs/guides/validating.md lists the columns that are converted"
        raise InputError(f"`{path}` has no column {', '.join(missing)}", hint=hint)
    rows = []
    for number, (_, cells) in enumerate(lines, start=1):
        names = {"row_id": f"{path.stem}-{number:04}", "source_id": path.stem}
        rows.append(canonical_cells(PrintedRow(names | cells), stack=stack))
    return ordered_rows(rows)


def ordered_rows(rows: Sequence[Cells]) -> list[Cells]:
    """Rows of a table in which every column that any row fills is present, in the usual order of columns."""
    written = dict.fromkeys(column for cells in rows for column in cells)
    ordered = [column for column in COLUMNS if column in written]
    ordered += sorted(column for column in written if column not in COLUMNS)
    return [{column: cells.get(column, "") for column in ordered} for cells in rows]


def canonical_cells(row: PrintedRow, *, stack: str | None = None) -> Cells:
    """Non-blank cells of a canonical row, by column: the case of a printed row and its measurements."""
    memory, ran_out = row.words("memory_kind"), row.flag("oom")
    cells: dict[str, Any] = {column: row.text(printed) for column, printed in _TEXTS.items()}
    cells |= {column: row.positive(printed) for column, printed in _FIGURES.items()}
    cells["sweep"] = " | ".join(map(row.text, _SWEEP))
    cells |= {"out_of_memory": ran_out, "suspect": is_suspect(row) or None}
    cells |= {"peak_counts": meaning("memory_kinds", memory), "peak_rank": meaning("memory_ranks", memory)}
    filled = {column: value for column, value in cells.items() if value not in ("", None)}
    measured = {column: value if isinstance(value, str) else _cell(value) for column, value in filled.items()}
    try:
        return measured | _case_cells(row, measured, printed_case(row, stack=stack), stack)
    except InputError as error:
        reason = "; ".join(map(str, error.problems)) or error.headline
        return measured | {"skipped": printable(reason.splitlines()[0])}


def _case_cells(row: PrintedRow, measured: Cells, case: Case, stack: str | None) -> Cells:
    """Cells, by column, that describe the case of a printed row. Raises InputError if no canonical row can
    describe it. Raises InputError where no canonical row holds it."""
    question, layout = case.question, case.layout
    cells = {
        "model": row.text("model_name") or question.model.name,
        "cluster": question.cluster.name,
        "gpus_per_node": str(question.cluster.gpus_per_node),
        "stack": stack or question.stack.name,
        "layout": layout.brief,
        "assumptions": "; ".join(case.row.assumptions),
        "unstated": "; ".join(case.row.unstated),
        "sequence_length": str(question.training.sequence_length),
        "global_batch": str(question.training.global_batch),
        "precision": question.training.precision,
    }
    cells = {column: cell for column, cell in cells.items() if cell}
    if cells["model"] not in catalog.names("models"):
        shape = question.model.model_dump(mode="json", exclude_defaults=True)
        derived = {"name": cells["model"], "vocab_multiple": VOCABULARY_UNIT, "moe_ffn_hidden_size": 0}
        cells |= _changes("model", derived, shape)
    base = cluster_fields(parse_row(cells, row.text("row_id")), layout.num_gpus)
    cells |= _changes("cluster", base, question.cluster.model_dump(mode="json"))
    for _ in range(2):
        again = read_case(parse_row(measured | cells, row.text("row_id"))).question
        differing = [part for part in SPECS if getattr(again, part) != getattr(question, part)]
        for part in differing:
            dumps = (getattr(one, part).model_dump(mode="json") for one in (again, question))
            cells |= _changes(part, *dumps)
    if differing:
        raise InputError(f"no column holds its {' and '.join(differing)}")
    return cells


def _changes(path: str, before: Any, after: Any) -> Cells:
    """Cells, by column, with the values of `after` for all fields below `path` in which it differs from
    `before`."""
    if before == after:
        return {}
    if isinstance(before, dict) and isinstance(after, dict):
        changes = (_changes(f"{path}.{name}", before.get(name), value) for name, value in after.items())
        return {column: cell for one in changes for column, cell in one.items()}
    return {_SHORTENED.get(path, path): _cell(after)}


def _cell(value: Any) -> str:
    """Text of a table cell that is read back as `value`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value if isinstance(value, str) and value and scalar(value) == value else json.dumps(value)
