"""Megatron-LM: a plan as a script that starts `pretrain_gpt.py` with torchrun, on every node.

Every setting is an argument of megatron/training/arguments.py by the name of its value there; a test reads the
arguments back with that parser.
"""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import Any

from planner.formats.launching import head, several_nodes, torchrun_words
from planner.formats.megatron.layout import core_words
from planner.formats.target import Target
from planner.formats.words import NOTHING, Asked, Settings

_FLAGS = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "layernorm_epsilon": "--norm-epsilon",
    "add_bias_linear": "--disable-bias-linear",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
}
"""Flags that are no values' names with dashes."""
_PATTERNS = ("moe_layer_freq", "no_rope_freq", "window_attn_skip_freq", "window_size")
"""Lists that are one argument: `[0]*3+[1]*58`, or comma-separated."""


def arguments(settings: Settings) -> list[str]:
    """Settings as arguments of `pretrain_gpt.py`."""
    words: list[str] = []
    for name, value in settings.items():
        flag = _FLAGS.get(name, ("--no-" if value is False else "--") + name.replace("_", "-"))
        words.append(flag)
        if not isinstance(value, bool):
            words += _values(name, value)
    return words


def _values(name: str, value: Any) -> list[str]:
    if name == "window_size":
        return [",".join(map(str, value))]
    if name in _PATTERNS:
        return ["+".join(f"[{one}]*{len(list(run))}" for one, run in groupby(value))]
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


def _text(asked: Asked, settings: Settings, name: str) -> str:
    lines = [
        *head(f"{name} for Megatron-LM, as `meshwright export --to megatron` wrote it; run it on every node"),
        *(f"export {key}={shlex.quote(value)}" for key, value in environment(asked, settings).items()),
        "ARGUMENTS=(",
        *(f"  {line}" for line in _lines(arguments(settings))),
        ")",
        *torchrun_words(asked),
        'exec torchrun "${LAUNCH[@]}" "${MEGATRON:-.}/pretrain_gpt.py" "${ARGUMENTS[@]}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def environment(asked: Asked, settings: Settings) -> dict[str, str]:
    """Variables that Megatron's checks want to be set."""
    variables = {}
    if asked.layout.tp > 1 or asked.layout.cp > 1:
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # validate_args asks for it before Blackwell
    if settings.get("fine_grained_activation_offloading"):
        variables["NVTE_CPU_OFFLOAD_V1"] = "1"  # and for this with Transformer Engine 2.10
    if asked.stack.launches_block:
        variables["CUDA_LAUNCH_BLOCKING"] = "1"
    return variables


def _lines(words: list[str]) -> list[str]:
    """A line for each flag with its values."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def _usage(asked: Asked, name: str) -> tuple[str, ...]:
    return (
        "data, tokenizer, learning rate and checkpoints are yours: `bash run.sh --data-path .. --lr ..` appends them",
        f"set MEGATRON to the checkout{several_nodes(asked)}",
    )


TARGET = Target(
    name="megatron",
    called="Megatron-LM (core 0.20)",
    stack="megatron-core",
    words=core_words(own_attention="cudnn")
    | {"stack.launches_block": lambda asked: NOTHING},  # in the environment
    text=_text,
    usage=_usage,
)
