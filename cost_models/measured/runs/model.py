"""The model that a row trained, from its shape or, where that is incomplete, from its name."""

from __future__ import annotations

import re
from typing import Any

from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.measured.runs.rows import Notes, Row, meaning, spellings, with_note
from cost_models.measured.runs.stack import further_tokens
from cost_models.specs.stack import VOCABULARY_UNIT, StackSpec
from cost_models.specs.transformer import TransformerSpec

_VOCABULARY = 50304
"""Vocabulary of rows that name none: GPT-2's, as trainers pad it."""
_LONGEST_NAME = 80
_GATED = re.compile(r"llama|mi[sx]tral|qwen|gemma|deepseek|olmo|internlm")
"""Families of models whose MLP has three matrices."""


def model_of(row: Row, stack: StackSpec, notes: Notes) -> TransformerSpec:
    """Model that a row trained, from the shape in the row or the catalogue's model of that name. Raises
    InputError: the row has neither a shape nor a name the catalogue knows."""
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
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", name or row.row_id)[:_LONGEST_NAME].strip("._-") or "model",
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
"""Fields of a model that tables have no column for: taken from the catalogue's model of that name and width."""


def _with_missing_cells(row: Row, catalogued: TransformerSpec, notes: Notes) -> Row:
    """Copy of the row with blank shape cells filled from the catalogue's model of that name and size."""
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
    return Row({**row.cells, **missing})


def _by_name(name: str) -> TransformerSpec | None:
    """Catalogue model called `name` in any spelling; None where the catalogue has none."""
    for spelling, replacement in spellings()["model_names"]:
        name = re.sub(spelling, replacement, name.lower())
    letters = _letters(name)
    match = next((one for one in catalog.names("models") if letters and _letters(one) == letters), None)
    return catalog.load_model(match) if match else None


def _letters(name: str) -> str:
    """Lower-case letters and digits of a model's name, a key in which `Llama 3.1 8B` and `llama-3.1-8b` agree."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
