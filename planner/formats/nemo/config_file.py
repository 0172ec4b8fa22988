"""NeMo 1: the run of its YAML of a GPT, in Megatron-LM's names, which are nearly its own.

Sources: NVIDIA/NeMo 2.0: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml,
nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py, megatron_base_model.py; NVIDIA/dgxc-benchmarking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.units import LARGEST
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.script import reading_of
from planner.formats.python_values import Unknown
from planner.formats.settings import Reading, Settings, UnusedSetting, also_words, by_path, gpus_of, literal
from planner.formats.table import Fate

_TYPES: Mapping[str, tuple[type, ...]] = {
    "switch": (bool,),
    "off": (bool,),
    "whole": (int,),
    "share": (int, float),
    "name": (str,),
    "list": (list,),
    "pattern": (int, list),
}
"""Kind of an argument of Megatron-LM → types that a file may give it."""


@dataclass(slots=True)
class FileArguments:
    """Settings of a NeMo file or recipe, and the Megatron-LM arguments derived from them."""

    settings: Settings
    args: Arguments = field(default_factory=Arguments)

    def get(self, path: str, default: Any = None) -> Any:
        """Value of a setting; records a problem if the value is only filled in when the program starts."""
        value, reason = self.settings.get(path), ""
        if isinstance(value, Unknown):
            reason = f"only Python knows what `{value}` is"
        elif isinstance(value, str) and "${" in value:
            reason = f"`{value}` is filled in when the program starts"
        if reason:
            self.args.refuse(path, reason)
        return default if value is None or reason else value

    def take(self, path: str, name: str) -> None:
        """Copy the setting at `path` to the Megatron-LM argument `name`, if present and of the right type."""
        row, problem_count = TABLE.arguments[name], len(self.args.problems)
        value, kind = self.get(path), row.kind
        words = f"{path}: {printable(str(value))}"
        if kind == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)
        fits = isinstance(value, _TYPES[kind]) and (kind in ("switch", "off")) == isinstance(value, bool)
        if fits and isinstance(value, list):
            item_type = int if kind == "pattern" else str
            fits = bool(value) and all(isinstance(one, item_type) for one in value)
        elif fits and kind in ("whole", "share", "pattern"):
            fits = abs(value) <= LARGEST
        if fits:
            self.args.assign(name, tuple(value) if isinstance(value, list) else value, words)
        elif value is not None:
            self.args.refuse(words, "is no value of this setting")
        if row.reason and len(self.args.problems) > problem_count:
            fate = Fate("noted", f"{self.args.problems.pop().what}, and {row.reason}")
            self.args.unused.append(UnusedSetting(path, True, path, fate))

    def take_fused_activation(self) -> None:
        """Copy the fusion of bias and activation to Megatron-LM's argument, which is named by the
        activation."""
        name = "bias_swiglu_fusion" if self.args.get("swiglu") else "bias_gelu_fusion"
        self.take("model.bias_activation_fusion", name)

    def take_tied_embeddings(self) -> None:
        """Record an untied output head if the file does not share embedding and output weights."""
        if not self.get("model.share_embeddings_and_output_weights", True):
            words = "share_embeddings_and_output_weights: False"
            self.args.assign("untie_embeddings_and_output_weights", True, words)

    def leave(self, column: str) -> None:
        """Record all unread settings as unused, with their treatment by the table (by path in `column`, else by
        Megatron-LM's name)."""
        self.args.unused += self.settings.unused(
            lambda path: TABLE.fate(path, column) or TABLE.fate(path.partition(".")[2])
        )

    def require_readable(self, source: str) -> None:
        """Raise InputError if any setting could not be read, with all problems."""
        if self.args.problems:
            hint = '--also "model.KEY=VALUE" says one'
            raise InputError(f"the {source} cannot be read", problems=self.args.problems, hint=hint)


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
_GATED = ("swiglu", "fast-swiglu")
_OTHER_GATES = ("geglu", "fast-geglu")
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": None}
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_UNSHARDED = ("fused_adam", "megatron_fused_adam", "adam", "adamw")


def read_nemo(
    document: Mapping[str, Any], *, gpus: int | None = None, stack: str | None = None, also: str = ""
) -> Reading:
    """Read a NeMo configuration file as model, training job, layout and stack. `also` are overrides as its
    command line takes them (`model.global_batch_size=512`). What the file leaves out is as in NeMo's
    `megatron_gpt_config.yaml`.

    Raises:
        InputError: it lacks what a price needs, or contradicts itself.
    """
    values = dict(by_path(document)) | overrides(also)
    file = FileArguments(Settings({path: _resolved(path, values) for path in values}, TABLE))
    for path, name in TABLE.spelled("nemo").items():
        file.take(f"model.{path}", name)
    assumed: list[str] = []
    _take_shape(file, assumed)
    _take_job(file)
    file.require_readable("file")
    tokenizer = file.get("model.tokenizer.type")
    if not file.args.has("vocab_size") and tokenizer != "GPT2BPETokenizer":
        hint = '--also "model.override_vocab_size=128256" says it'
        raise InputError("the file leaves the size of the vocabulary to its tokenizer", hint=hint)
    base, world = load_stack(stack or STACK), _world(file, gpus)
    file.leave("nemo")
    return reading_of(file.args, world, str(tokenizer), base, True, assumed)


def _resolved(path: str, values: Mapping[str, Any]) -> Any:
    """Value at a path, with a reference such as `${model.encoder_seq_length}` or `${.encoder_seq_length}`
    resolved once."""
    reference = re.fullmatch(r"\$\{(\.*)([\w.]+)\}", str(values[path]), re.ASCII)
    if reference is None:
        return values[path]
    parents = path.split(".")[: -len(reference[1])] if reference[1] else []
    return values.get(".".join([*parents, reference[2]]), values[path])


def _world(file: FileArguments, gpus: int | None) -> int:
    nodes, per_node = (file.settings.integer("trainer.num_nodes"), file.settings.integer("trainer.devices"))
    if nodes is None or per_node is None:
        return gpus_of("file", gpus)
    if gpus not in (None, nodes * per_node):
        fitting = max(1, (gpus or per_node) // per_node)
        hint = f'--also "trainer.num_nodes={fitting}" says another number of nodes'
        raise InputError(f"the file is for {nodes * per_node} GPUs, --gpus says {gpus}", hint=hint)
    return int(nodes * per_node)


def _take_shape(file: FileArguments, assumed: list[str]) -> None:
    args = file.args
    norm = str(file.get("model.normalization", "layernorm1p"))
    if norm not in _NORMS:
        raise InputError(f"`model.normalization: {norm}` is not known here")
    args.assign("normalization", _NORMS[norm], f"normalization: {norm}")
    activation = str(file.get("model.activation", "gelu"))
    if activation in (*_GATED, *_OTHER_GATES):
        args.assign("swiglu", True, f"activation: {activation}")
        if activation in _OTHER_GATES:
            assumed.append(f"`{activation}` as swiglu")
    elif activation == "squared-relu":
        args.assign("squared_relu", True, f"activation: {activation}")
    elif activation != "gelu":
        raise InputError(f"`model.activation: {activation}` is not known here")
    file.take_fused_activation()
    file.take_tied_embeddings()
    file.take("model.num_query_groups", "num_query_groups")
    if args.has("num_query_groups"):
        args.assign("group_query_attention", True, args.flags["num_query_groups"])
    if not args.has("seq_length") or isinstance(file.settings.get("model.data.seq_length"), int):
        file.take("model.data.seq_length", "seq_length")


def _take_job(file: FileArguments) -> None:
    args = file.args
    if file.get("model.fsdp", False):
        raise InputError("`model.fsdp` is not priced here", hint="`import` reads torchtitan's recipes")
    precision = str(file.get("trainer.precision", 32))
    if precision not in _PRECISIONS:
        raise InputError(f"`trainer.precision: {precision}` is not known here")
    if (kind := _PRECISIONS[precision]) is not None:
        args.assign(kind, True, f"trainer.precision: {precision}")
    if file.get("model.fp8", False):
        args.assign("fp8", "hybrid", "model.fp8: True")
    optimizer = str(file.get("model.optim.name", "fused_adam"))
    if optimizer not in (*_SHARDED, *_UNSHARDED):
        raise InputError(f"`model.optim.name: {optimizer}` is not priced here", hint="Adam is")
    is_sharded = optimizer in _SHARDED
    args.assign("use_distributed_optimizer", is_sharded, f"optim.name: {optimizer}")
    for path, name in (("grad_sync", "grad_reduce"), ("param_sync", "param_gather")):
        overlaps = is_sharded and bool(file.get(f"model.optim.overlap_{path}", False))
        args.assign(f"overlap_{name}", overlaps, f"optim.overlap_{path}")
    if str(file.get("model.optim.grad_sync_dtype", "")).startswith("bf16"):
        args.assign("grad_reduce_in_bf16", True, "optim.grad_sync_dtype: bf16")
    elif is_sharded:
        args.assign("accumulate_allreduce_grads_in_fp32", True, "optim.grad_sync_dtype")
    file.take("trainer.max_steps", "train_iters")
