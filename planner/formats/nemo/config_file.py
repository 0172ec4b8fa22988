"""NeMo 1: the run of its YAML of a GPT, in Megatron-LM's names, which are nearly its own.

Sources: NVIDIA/NeMo 2.0: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml,
nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py, megatron_base_model.py; NVIDIA/dgxc-benchmarking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.units import LARGEST
from planner.formats.exporter import Settings as Written
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.script import reading_of
from planner.formats.python import Unknown
from planner.formats.settings import Reading, ReadOptions, Settings, also_words, by_path, gpus_of, literal
from planner.formats.table import Argument, Fate

_TYPES: dict[str, type | UnionType] = {"switch": bool, "off": bool, "whole": int, "share": int | float}
_TYPES |= {"name": str, "list": list, "pattern": int | list}
"""Kind of an argument of Megatron-LM → types that a file may give it."""


@dataclass(slots=True)
class FileArguments(Arguments):
    """Megatron-LM arguments derived from the settings of a NeMo file or recipe."""

    settings: Settings = field(kw_only=True)

    def setting(self, path: str, default: Any = None, row: Argument | None = None) -> Any:
        """Value of a setting; records a problem (of the `row`'s argument) if the value is only filled in when the
        program starts."""
        value, reason = self.settings.get(path), ""
        if isinstance(value, Unknown):
            reason = f"only Python knows what `{value}` is"
        elif isinstance(value, str) and "${" in value:
            reason = f"`{value}` is filled in when the program starts"
        if reason:
            self.refuse(path, reason, row)
        return default if value is None or reason else value

    def take(self, path: str, name: str) -> None:
        """Copy the setting at `path` to the Megatron-LM argument `name`, if present and of the right type."""
        row = TABLE.arguments[name]
        value, kind = self.setting(path, row=row), row.kind
        words = f"{path}: {printable(str(value))}"
        if kind == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)
        fits = isinstance(value, _TYPES[kind]) and (kind in ("switch", "off")) == isinstance(value, bool)
        if fits and isinstance(value, list):
            fits = bool(value) and all(isinstance(one, int if kind == "pattern" else str) for one in value)
        elif fits and kind in ("whole", "share", "pattern"):
            fits = abs(value) <= LARGEST
        if fits:
            self.assign(name, tuple(value) if isinstance(value, list) else value, words)
        elif value is not None:
            self.refuse(path if row.why else words, "is no value of this setting", row)

    def take_implied(self) -> None:
        """Record what other settings decide: the fusion of bias and activation, which Megatron-LM names by the
        activation, an untied output head, and grouped queries."""
        fusion = "bias_swiglu_fusion" if self.get("swiglu") else "bias_gelu_fusion"
        self.take("model.bias_activation_fusion", fusion)
        if not self.setting("model.share_embeddings_and_output_weights", True):
            words = "share_embeddings_and_output_weights: False"
            self.assign("untie_embeddings_and_output_weights", True, words)
        if self.has("num_query_groups"):
            self.assign("group_query_attention", True, self.flags["num_query_groups"])

    def finish(self, source: str, column: str) -> None:
        """Record all unread settings as unused, with their treatment by the table (by path in `column`, else by
        Megatron-LM's name). Raises InputError if any setting of the `source` could not be read, with all problems."""
        if self.problems:
            hint = '--also "model.KEY=VALUE" says one'
            raise InputError(f"the {source} cannot be read", problems=self.problems, hint=hint)

        def fate(path: str) -> Fate | None:
            return TABLE.fate(path, column) or TABLE.fate(path.partition(".")[2])

        self.unpriced += self.settings.unused(fate)


def overrides(text: str) -> dict[str, Any]:
    """Parse overrides such as `model.fp8=True trainer.num_nodes=4` into values by path."""
    values: dict[str, Any] = {}
    for word in also_words(text):
        path, equals, value = word.lstrip("+").partition("=")
        if not equals or path.startswith(("-", "~")):
            raise InputError(f"--also: `{printable(word)}` is no setting like `model.global_batch_size=512`")
        values[path] = literal(value)
    return values


STACK = "nemo"
KEYS = frozenset({"trainer", "model"})
"""Tables that every file has."""
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
_GATED, _OTHER_GATES = ("swiglu", "fast-swiglu"), ("geglu", "fast-geglu")
_ACTIVATIONS = {"gelu": {}, "squared-relu": {"squared_relu": True}}
_ACTIVATIONS |= {name: {"swiglu": True} for name in _GATED + _OTHER_GATES}
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}
_CHOICES: Mapping[tuple[str, str], Mapping[str, Written]] = {
    ("model.normalization", "layernorm1p"): {name: {"normalization": norm} for name, norm in _NORMS.items()},
    ("model.activation", "gelu"): _ACTIVATIONS,
    ("trainer.precision", "32"): {"32": {}} | {name: {kind: True} for name, kind in _PRECISIONS.items()},
}
"""Setting and its default → Megatron-LM arguments of each of its values."""
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_UNSHARDED = ("fused_adam", "megatron_fused_adam", "adam", "adamw")


def read_nemo(document: Mapping[str, Any], options: ReadOptions) -> Reading:
    """Read a NeMo configuration file as model, training job, layout and stack. What the file leaves out is as in NeMo's
    `megatron_gpt_config.yaml`.

    Raises:
        InputError: it lacks what a price needs, or contradicts itself.
    """
    values = dict(by_path(document)) | options.also
    file = FileArguments(settings=Settings({path: _resolved(path, values) for path in values}, TABLE))
    for path, name in TABLE.spelled("nemo").items():
        file.take(f"model.{path}", name)
    for (path, default), choices in _CHOICES.items():
        value = str(file.setting(path, default))
        if value not in choices:
            raise InputError(f"`{path}: {value}` is not known here")
        for name, argument in choices[value].items():
            file.assign(name, argument, f"{path}: {value}")
        file.assume(f"`{value}` as swiglu", when=value in _OTHER_GATES)
    file.take("model.num_query_groups", "num_query_groups")
    file.take_implied()
    if not file.has("seq_length") or isinstance(file.settings.get("model.data.seq_length"), int):
        file.take("model.data.seq_length", "seq_length")
    if file.setting("model.fsdp", False):
        raise InputError("`model.fsdp` is not priced here", hint="`import` reads torchtitan's recipes")
    if file.setting("model.fp8", False):
        file.assign("fp8", "hybrid", "model.fp8: True")
    _take_optimizer(file)
    file.take("trainer.max_steps", "train_iters")
    file.tokenizer = str(file.settings.get("model.tokenizer.type"))
    file.settings.read |= {"trainer.num_nodes", "trainer.devices"}
    file.finish("file", "nemo")
    if not file.has("vocab_size") and file.tokenizer != "GPT2BPETokenizer":
        hint = '--also "model.override_vocab_size=128256" says it'
        raise InputError("the file leaves the size of the vocabulary to its tokenizer", hint=hint)
    return reading_of(file, _world(file.settings, options.gpus), load_stack(options.stack or STACK))


def _resolved(path: str, values: Mapping[str, Any]) -> Any:
    """Value at a path, with a reference such as `${model.encoder_seq_length}` or `${.encoder_seq_length}`
    resolved once."""
    reference = re.fullmatch(r"\$\{(\.*)([\w.]+)\}", str(values[path]), re.ASCII)
    if reference is None:
        return values[path]
    parents = path.split(".")[: -len(reference[1])] if reference[1] else []
    return values.get(".".join([*parents, reference[2]]), values[path])


def _world(settings: Settings, gpus: int | None) -> int:
    nodes, per_node = settings.integer("trainer.num_nodes"), settings.integer("trainer.devices")
    if nodes is None or per_node is None:
        return gpus_of("file", gpus)
    if gpus not in (None, nodes * per_node):
        fitting = max(1, (gpus or per_node) // per_node)
        hint = f'--also "trainer.num_nodes={fitting}" says another number of nodes'
        raise InputError(f"the file is for {nodes * per_node} GPUs, --gpus says {gpus}", hint=hint)
    return int(nodes * per_node)


def _take_optimizer(file: FileArguments) -> None:
    optimizer = str(file.setting("model.optim.name", "fused_adam"))
    if optimizer not in (*_SHARDED, *_UNSHARDED):
        raise InputError(f"`model.optim.name: {optimizer}` is not priced here", hint="Adam is")
    is_sharded = optimizer in _SHARDED
    file.assign("use_distributed_optimizer", is_sharded, f"optim.name: {optimizer}")
    for path, name in (("grad_sync", "grad_reduce"), ("param_sync", "param_gather")):
        overlaps = is_sharded and bool(file.setting(f"model.optim.overlap_{path}", False))
        file.assign(f"overlap_{name}", overlaps, f"optim.overlap_{path}")
    if str(file.setting("model.optim.grad_sync_dtype", "")).startswith("bf16"):
        file.assign("grad_reduce_in_bf16", True, "optim.grad_sync_dtype: bf16")
    elif is_sharded:
        file.assign("accumulate_allreduce_grads_in_fp32", True, "optim.grad_sync_dtype")
