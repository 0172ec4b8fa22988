"""The software stack that a row ran on: by its framework's name, its kernels and its ZeRO stage."""

from __future__ import annotations

import re
from functools import cache

from cost_models.files import catalog
from cost_models.measured.runs.policies import modules_of
from cost_models.measured.runs.rows import Notes, Row, meaning
from cost_models.measured.runs.switches import expert_changes, has_narrow_moments, stack_changes
from cost_models.specs.choices import CORE, OUTPUTS
from cost_models.specs.cluster import AttentionKernel
from cost_models.specs.stack import STORES_SCORES, StackSpec

_SOME_FLASH = re.compile(r"flash[- _]?(attn|attention)?")
"""A flash kernel that does not say which: that of the trainer's release."""
_FLASH: frozenset[AttentionKernel] = frozenset({"flash1", "flash2", "flash3"})
_NATIVE = re.compile(r"torch|native")
"""What tables call the attention that a trainer writes in PyTorch's own operators."""

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
    """The stack given, or the catalogue's for the row's framework and date, with the attention kernel it names."""
    stack = catalog.load_stack(forced) if forced else _of_release(_named(row, notes), row)
    changes: dict[str, object] = {"attention": _kernel(row, stack, notes)}
    if row.flag("compile") or re.search(r"compile|inductor|\bjit\b", row.text("other_kernels").lower()):
        changes |= stack.when_compiled(loss=stack.compiles_loss and not _left_loss(row, stack))
    elif "norm" in row.text("other_kernels").lower():
        changes["fused_norms"] = True
    changes |= expert_changes(row)
    changes |= stack_changes(row)
    if stack.drops <= OUTPUTS | CORE:
        changes["selective_drops"] = modules_of(row) or "core"
    if has_narrow_moments(row):
        changes["master_remainders"] = True
    return stack.model_copy(update=changes)


def _left_loss(row: Row, stack: StackSpec) -> bool:
    """Whether the row's release compiled blocks but not the loss."""
    month, months = month_of(row), stack.loss_not_compiled
    return month is not None and months is not None and months[0] <= month <= months[1]


def _of_release(name: str, row: Row) -> StackSpec:
    """The stack of that name, or the earliest of its family whose last release is no earlier than the row's date."""
    month = month_of(row) or (f"{_year(row)}-12" if _year(row) else None)
    earlier = [last for last in _last_months(name) if month is not None and month <= last]
    return catalog.load_stack(_last_months(name)[min(earlier)] if earlier else name)


@cache
def _last_months(family: str) -> dict[str, str]:
    """Last month → the family's stack of releases until then."""
    members = map(catalog.load_stack, catalog.names("stacks"))
    return {one.last_month: one.name for one in members if one.family == family and one.last_month}


def _named(row: Row, notes: Notes) -> str:
    """Catalogue name of the row's framework, or of the stack of its family."""
    words = row.text("framework").lower()
    family: str | None = meaning("frameworks", words)
    if family is None:
        split = any((row.count(axis) or 1) > 1 for axis in ("tp", "pp", "cp", "ep"))
        family = "megatron" if split else "fsdp"
        notes.assume(f"{words or 'an unnamed framework'} works as {family}")
    if family == "megatron":
        kernel = _attention(row)
        unnamed = kernel is None and not _LLAMA_LIKE.search(_shape(row))
        stored = kernel in STORES_SCORES or _is_native(row) or unnamed
        year = _year(row) or (2024 if _RECENT_GPUS.search(_machine(row)) else 2021 if stored else 2023)
        return "megatron-lm" if year > 2023 else f"megatron-{max(year, 2021)}"
    return family


def _machine(row: Row) -> str:
    return f"{row.text('gpu')} {row.text('precision')}".lower()


def _shape(row: Row) -> str:
    return f"{row.text('ffn_kind')} {row.text('model_name')}".lower()


def kernel_is_assumed(row: Row) -> bool:
    """Whether the table's author filled in the row's attention kernel."""
    return _ASSUMED.search(row.text("assumed_fields").lower()) is not None


def _kernel(row: Row, stack: StackSpec, notes: Notes) -> AttentionKernel:
    """The attention kernel that the row names; where it names none that is known, its stack's default."""
    if _had_no_deterministic_kernel(row):
        notes.assume("attention stores its scores: its container had no deterministic kernel")
        return "unfused"
    if (named := _attention(row)) is not None and not kernel_is_assumed(row):
        own = _SOME_FLASH.fullmatch(row.text("attention_kernel").lower()) and stack.attention in _FLASH
        return stack.attention if own else named
    native = _is_native(row)
    if row.text("attention_kernel") and not native:
        notes.assume(f"{stack.attention} attention: the kernel named is not known")
    usual = stack.native_attention if native else stack.attention
    if usual in STORES_SCORES or not _before_flash(row):
        return usual
    notes.assume("attention stores its scores: no flash kernel for this GPU or year")
    return "unfused"


def _had_no_deterministic_kernel(row: Row) -> bool:
    container, until = _UNFUSED_IF_DETERMINISTIC
    month = month_of(row)
    return (
        container.search(row.text("framework").lower()) is not None
        and month is not None
        and month <= until
        and bool(stack_changes(row).get("deterministic"))
    )


def _is_native(row: Row) -> bool:
    return _NATIVE.search(row.text("attention_kernel").lower()) is not None


def _before_flash(row: Row) -> bool:
    """Whether flash kernels did not run: before Ampere, or before 2022."""
    year = _year(row)
    return _WITHOUT_FLASH.search(_machine(row)) is not None or (year is not None and year < _FLASH_YEAR)


def _attention(row: Row) -> AttentionKernel | None:
    """The attention kernel that the row names, where it is known."""
    words = row.text("attention_kernel").lower()
    return meaning("attention", words) if words else None


def month_of(row: Row) -> str | None:
    """The month (2024-07) of the row's framework or date, where one has it."""
    dated = _MONTH.search(f"{row.text('framework')} {row.text('run_date')}")
    return dated[0] if dated else None


def _year(row: Row) -> int | None:
    """The latest year in the row's date or framework."""
    years = re.findall(r"\b(20[12]\d)\b", f"{row.text('run_date')} {row.text('framework')}")
    return max(map(int, years)) if years else None
