"""Checking cells for impossible values: a row that has one is skipped, with the reason, before anything is computed."""

from __future__ import annotations

import re

from cost_models.measured.runs.notes import UnpredictableError
from cost_models.measured.runs.policies_of import names_hybrid
from cost_models.measured.runs.row import Row

LARGEST_COUNTS: dict[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "head_dim": 100_000,
    "kv_heads": 100_000,
    "ffn_hidden": 10_000_000,
    "vocab": 100_000_000,
    "seq_len": 100_000_000,
    "moe_experts": 100_000,
    "moe_top_k": 100_000,
    "moe_ffn_hidden": 10_000_000,
    "moe_layers": 10_000,
    "gpus_per_node": 10_000,
    "num_gpus": 10_000_000,
    "tp": 100_000,
    "pp": 10_000,
    "vp": 10_000,
    "cp": 100_000,
    "ep": 100_000,
    "dp": 10_000_000,
    "hybrid_shard": 10_000_000,
    "micro_batch": 1_000_000,
    "global_batch": 100_000_000,
    "grad_accum": 10_000_000,
}
"""Column of whole numbers → largest plausible value, far above anything that was trained."""
MAX_ACTIONS = 10_000_000
"""Most stages × microbatches of a step that are laid out one by one."""

_NOT_SAID = re.compile(
    r"|[-–—?.]|0+(\.0*)?|-1|n/?a|nan|none|null|nil|unknown|unspecified|default|auto|off|false|no"
)
"""What tables write for no value; 0 and -1 switch an axis off."""


def check_counts(row: Row) -> None:
    """Check that every column of whole numbers holds one, or nothing.

    Raises:
        UnpredictableError: the first cell that is something else, with what it says.
    """
    for column, most in LARGEST_COUNTS.items():
        words = row.text(column)
        count = row.count(column)
        if (
            count is None
            and not _NOT_SAID.fullmatch(words.lower())
            and not _is_fraction_of_a_batch(row, column)
            and not (column == "hybrid_shard" and (row.flag(column) or names_hybrid(words)))
        ):
            raise UnpredictableError(f"`{column}` is `{_short(words)}`, not a whole number above zero")
        if count is not None and count > most:
            raise UnpredictableError(f"`{column}` is {_short(words)}, beyond anything that is trained")


def _is_fraction_of_a_batch(row: Row, column: str) -> bool:
    """Whether a batch is given in tokens, which need not be a whole number of sequences."""
    value = row.number(column)
    return column == "global_batch" and value is not None and value >= 1


def _short(words: str) -> str:
    clean = "".join(letter if letter.isprintable() else "?" for letter in words)
    return clean if len(clean) <= _LONGEST else clean[:_LONGEST] + "…"


_LONGEST = 20
