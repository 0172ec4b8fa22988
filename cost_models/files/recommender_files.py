"""Recommenders of other trainers' files: TorchRec's table configurations, HugeCTR's slot sizes.

    TorchRec    a JSON list of `EmbeddingBagConfig`s: name, num_embeddings, embedding_dim, pooling, feature_names
                (torchrec/modules/embedding_configs.py)
    HugeCTR     JSON with `slot_size_array`, and what its samples write beside it: `multi_hot_sizes`, `ev_size`
                (samples/dlrm/train.py)

Neither says how many ids a sample has in TorchRec, nor what dense network stands on the tables: a config may add
`pooling_factor`, and the network is that of MLPerf's DLRM, with `dot` where all vectors are of its width.
"""

from __future__ import annotations

from typing import Any

from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files.parsing import validate
from cost_models.specs.recommender.model import RecommenderSpec

_BOTTOM = 512, 256
_POOLINGS = {"SUM": "sum", "MEAN": "mean", "NONE": "concat"}
_NEEDED = ("name", "num_embeddings", "embedding_dim")


def is_foreign_recommender(document: Document) -> bool:
    """Whether a file is one of these."""
    value = document.value
    return isinstance(value, list) or (
        isinstance(value, dict) and bool({"slot_size_array", "tables"} & set(value)) and "kind" not in value
    )


def read_recommender(document: Document) -> RecommenderSpec:
    """The model of such a file.

    Raises:
        InputError: it is none, or a table lacks its size; all problems of tables at once.
    """
    value = document.value
    if isinstance(value, dict) and "slot_size_array" in value:
        tables = _of_slots(document, value)
    else:
        listed = value.get("tables") if isinstance(value, dict) else value
        if not isinstance(listed, list) or not listed:
            raise InputError(
                f"`{document.source}` lists no tables",
                hint="a list of EmbeddingBagConfigs, or slot_size_array",
            )
        tables = [_of_config(document, at, one) for at, one in enumerate(listed)]
    widths = {one["width"] for one in tables}
    fields: dict[str, Any] = {
        "kind": "recommender",
        "tables": tables,
        "bottom_mlp": [*_BOTTOM, *widths] if len(widths) == 1 else [*_BOTTOM],
        "interaction": {"kind": "dot" if len(widths) == 1 else "none"},
        "source": document.source,
    }
    return validate(Document(source=document.source, value=fields, lines=document.lines), RecommenderSpec)


def _of_config(document: Document, at: int, config: Any) -> dict[str, Any]:
    """The fields of a table that TorchRec describes."""
    if not isinstance(config, dict) or (missing := [name for name in _NEEDED if name not in config]):
        what = (
            "has no " + ", ".join(f"`{name}`" for name in missing)
            if isinstance(config, dict)
            else "is no table"
        )
        raise InputError(f"{document.where((at,))}: table {at} {what}")
    pooling = str(config.get("pooling", "SUM")).rpartition(".")[2].upper()
    if pooling not in _POOLINGS:
        raise InputError(f"{document.where((at, 'pooling'))}: `{pooling}` is none of {', '.join(_POOLINGS)}")
    features = len(config.get("feature_names") or [None])
    return {
        "name": config["name"],
        "rows": config["num_embeddings"],
        "width": config["embedding_dim"],
        "pooling": float(config.get("pooling_factor", 1.0)) * features,
        "combiner": _POOLINGS[pooling],
    }


def _of_slots(document: Document, value: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of the tables that HugeCTR calls slots."""
    sizes = value["slot_size_array"]
    if not isinstance(sizes, list) or not sizes:
        raise InputError(f"{document.where(('slot_size_array',))}: a list of rows of each table is needed")
    hot, widths = (
        _each(document, value, name, len(sizes), default)
        for name, default in (("multi_hot_sizes", 1), ("ev_size", 128))
    )
    return [
        {"name": f"slot{at}", "rows": rows, "width": width, "pooling": float(ids)}
        for at, (rows, ids, width) in enumerate(zip(sizes, hot, widths, strict=True))
    ]


def _each(document: Document, value: dict[str, Any], name: str, count: int, default: int) -> list[Any]:
    """A number for each slot: one for all, or a list of as many."""
    said = value.get(name, default)
    if not isinstance(said, list):
        return [said] * count
    if len(said) != count:
        raise InputError(f"{document.where((name,))}: {len(said)} numbers for {count} slots")
    return said
