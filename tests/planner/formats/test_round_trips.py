"""Export of an import is the identity on what was understood, for random arguments out of each trainer's table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import yaml
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.exporters.draw import draw
from benchmarks.exporters.targets import TARGETS
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.files.catalog import load_model
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from meshwright.verbs.export import export
from planner.formats.deepspeed import read_deepspeed
from planner.formats.exporter import Job, nested, settings_of
from planner.formats.fsdp2 import read_accelerate, read_axolotl
from planner.formats.launches import launch_of
from planner.formats.megatron import TARGET as MEGATRON
from planner.formats.megatron import read_megatron
from planner.formats.megatron_arguments import argument_words
from planner.formats.nemo import read_bridge
from planner.formats.settings import Argument, Reading, ReadOptions, also_settings, table_of
from planner.formats.torchtitan import read_torchtitan
from planner.formats.trainers import refusals
from planner.plan import make_plan
from planner.rules.legality import check

BASE = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 256, "vocab_size": 50304}
"""A small model in Megatron Core's arguments."""
NAMES: dict[str, tuple[Any, ...]] = {
    "attention_backend": ("auto", "flash", "fused", "unfused", "local"),
    "transformer_impl": ("local", "transformer_engine"),
    "fp8": ("hybrid",),
    "fp4": ("e2m1",),
    "recompute_granularity": ("full", "selective"),
    "recompute_method": ("block", "uniform"),
    "softmax_type": ("learnable", "vanilla"),
    "moe_router_score_function": ("softmax", "sigmoid"),
    "moe_token_dispatcher_type": ("alltoall", "flex"),
    "moe_router_load_balancing_type": ("aux_loss", "none"),
    "moe_aux_loss_coeff": ("0.01",),
    "pipeline_model_parallel_layout": ("Ett|ttL", "E|tt|ttL", "Et|t|t|tL"),
    "exp_avg_dtype": ("bf16",),
    "moe_layer_freq": ([0, 1, 1, 1], [1, 0, 1, 0]),
    "no_rope_freq": ([0, 0, 0, 1],),
    "window_attn_skip_freq": ([1, 1, 1, 0],),
    "window_size": ((127, 0),),
    "num_layers": (4, 8),
    "num_experts": (8,),
    "hidden_dropout": (0.0, 0.1),
    "attention_dropout": (0.0, 0.1),
    "kv_channels": (64, 128),
    "max_position_embeddings": (256, 512),
    "distributed_type": ("FSDP", "FSDP", "MULTI_GPU", "NO"),
    "fsdp_config.fsdp_version": (2,),
    "fsdp_version": (2,),
    "fsdp_config.reshard_after_forward": (True, False),
    "fsdp_config.fsdp_reshard_after_forward": (True, False),
    "ring_attn_func": ("batch_ring",),
    "optimizer": ("adamw_torch_fused",),
    "num_processes": (1, 8, 16),
    "zero_optimization.stage": (0, 1, 2, 3),
    "zero_optimization.offload_optimizer.device": ("none", "cpu", "nvme"),
    "zero_optimization.offload_param.device": ("none", "cpu"),
    "data_types.grad_accum_dtype": ("fp32", "bf16"),
    "train_batch_size": (16, 32, 64),
    "training.global_batch_size": (-1, 32, 64),
    "parallelism.data_parallel_shard_degree": (-1, 2, 4),
    "parallelism.context_parallel_rotate_method": ("allgather", "alltoall"),
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "parallelism.pipeline_parallel_schedule": ("1F1B", "Interleaved1F1B", "GPipe"),
    "activation_checkpoint.mode": ("none", "full", "selective"),
    "compile.components": (["model"], ["model", "loss"]),
}
"""Values of arguments that are no plain number."""
GPUS = 16


def values_of(argument: Argument) -> st.SearchStrategy[Any]:
    """Values that a file may set an argument to."""
    if known := NAMES.get(argument.name, tuple(argument.values.values())):
        one = st.sampled_from(known)
        return one.map(lambda value: [value]) if argument.kind == "list" and known[0] != ["model"] else one
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "switch": st.booleans(),
        "off": st.just(False),
        "whole": st.sampled_from((1, 2, 2, 4, 8, 64)),
        "share": st.sampled_from((0.5, 1.0)),
    }
    return kinds.get(argument.kind, st.nothing())


def arguments(folder: str) -> st.SearchStrategy[dict[str, Any]]:
    """A few random arguments of a trainer's table with random values."""
    drawn = {name: values_of(one) for name, one in table_of(folder).arguments.items()}
    known = {name: values for name, values in drawn.items() if not values.is_empty}
    one = st.sampled_from(sorted(known)).flatmap(lambda name: st.tuples(st.just(name), known[name]))
    return st.lists(one, max_size=6).map(dict)


def again(name: str, first: Reading) -> bool:
    """Whether a run is legal and can be exported: then it is read back alike, and exported as the same file again."""
    target, cluster = TARGETS[name].target, resolve_cluster("dgx-h100", first.layout.num_gpus)
    job = Job(complete_question(first.model, cluster, first.training, stack=first.stack), first.layout)
    if check(job.question, job.layout):
        return False
    fields = target.field_exports(job)
    if any(one.verdict == "lacking" for one in fields):
        return False
    text = target.file(job, settings_of(fields), "plan.yaml")[0]
    back = read_file(name, text)
    for one in fields:
        part, _, name = one.field.partition(".")
        if part != "stack" and one.verdict == "expressed" and name != "gradient_dtype":
            assert getattr(getattr(back, part), name) == getattr(getattr(first, part), name), one.field
    question = complete_question(back.model, cluster, back.training, stack=back.stack)
    repeated = target.field_exports(Job(question, back.layout))
    assert target.file(Job(question, back.layout), settings_of(repeated), "plan.yaml")[0] == text
    return True


def read_file(
    name: str, text: str, gpus: int = GPUS, model: str = "llama3.1-8b", sequence: int = 4096
) -> Reading:
    """What a trainer's reader makes of a file's text; of accelerate with the program's arguments in its first line."""
    options, spec = ReadOptions(gpus=gpus, sequence=sequence), load_model(model)
    match name:
        case "megatron":
            return read_megatron(launch_of(text), gpus=gpus)
        case "nemo":
            return read_bridge(text, options)
        case "torchtitan":
            return read_torchtitan(text, "job.toml" if "flavor =" in text else "recipe.py", None, options)
        case "deepspeed":
            return read_deepspeed(json.loads(text), spec, options)
        case "axolotl":
            return read_axolotl(yaml.safe_load(text), spec, options)
    also = also_settings(text.partition("train.py")[2].partition("\n")[0])
    return read_accelerate(yaml.safe_load(text), spec, ReadOptions(sequence=sequence, also=also))


def acc_of(said: dict[str, Any]) -> str:
    """accelerate's YAML, below the command that takes it."""
    program = ("per_device_train_batch_size", "gradient_accumulation_steps")
    words = " ".join(f"--{name} {said[name]}" for name in program if name in said)
    file = {name: value for name, value in said.items() if name not in program}
    return f"# train.py {words}\n" + yaml.safe_dump(nested({"num_processes": GPUS} | file))


def command_of(said: dict[str, Any]) -> str:
    """A command that starts Megatron-LM."""
    words = " ".join(f"'{word}'" for word in chain(*argument_words(BASE | said)))
    return f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {words}"


def recipe_of(said: dict[str, Any]) -> str:
    """A recipe of Megatron Bridge that sets arguments of Megatron Core."""
    table = table_of("megatron").arguments
    said = BASE | said
    lines = [
        f"    config.{table[name].spellings.get('bridge', f'model.{name}')} = {said[name]!r}" for name in said
    ]
    head = "from megatron.bridge.recipes.gpt import vanilla_gpt_pretrain_config\ndef plan():\n"
    return "\n".join([f"{head}    config = vanilla_gpt_pretrain_config()", *lines, "    return config"])


def job_file_of(said: dict[str, Any]) -> str:
    """A job file of torchtitan."""
    lines = [f"{path} = {json.dumps(value)}" for path, value in said.items()]
    return "\n".join(['model.name = "llama3"', 'model.flavor = "8B"', *lines])


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "megatron": command_of,
    "nemo": recipe_of,
    "torchtitan": job_file_of,
    "deepspeed": lambda said: json.dumps(nested({"train_batch_size": 64} | said)),
    "accelerate": acc_of,
    "axolotl": lambda said: yaml.safe_dump(nested({"base_model": "m"} | said)),
}
"""How a file of each trainer is written that sets arguments."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_random_plan_that_is_exported_comes_back(name: str) -> None:
    """The same layout at the same price, and the same file again; in a thorough run 100 plans of every trainer."""
    one, found = TARGETS[name], 0
    for asked, layout in draw(one.stack, number(20, 250), 5, name, one.models):
        before = estimate(asked, layout)
        try:
            text = export(make_plan(asked, before), name).text
        except InfeasibleError:
            continue
        found += 1
        sequence = asked.training.sequence_length
        reading = read_file(name, text, asked.cluster.num_gpus, asked.model.name, sequence)
        # ZeRO-3 of a single replica shards nothing
        idle = name in ("deepspeed", "accelerate", "axolotl") and layout.data_ranks == 1
        context = asked.stack.context_parallel if layout.cp > 1 else None
        wanted, got = (
            each.model_copy(update={"context": each.context or context} | ({"zero": 0} if idle else {}))
            for each in (layout, reading.layout)
        )
        assert str(got) == str(wanted)
        back = complete_question(reading.model, asked.cluster, reading.training, stack=reading.stack)
        assert back.training == asked.training or name == "nemo"  # which says the type of gradients
        after = estimate(back, reading.layout)
        assert after.peak_bytes == pytest.approx(before.peak_bytes), str(layout)
        hides = layout.sp or layout.tp == 1  # else Megatron-LM cannot hide what the stack would
        if (hides or name not in ("megatron", "nemo")) and (layout.zero or name != "deepspeed"):
            assert after.step_seconds == pytest.approx(before.step_seconds), str(layout)
        if not idle:
            again = export(make_plan(back, after), name).text
            assert again.replace("imported", asked.model.name) == text
    assert found >= number(1, 100)


@pytest.mark.parametrize("name", WRITERS)
def test_export_of_an_import_is_what_was_imported(name: str) -> None:
    found = 0

    @given(said=arguments("megatron" if name == "nemo" else name))
    @settings(max_examples=number(100, 1000), deadline=None, suppress_health_check=list(HealthCheck))
    def each(said: dict[str, Any]) -> None:
        nonlocal found
        try:
            first = read_file(name, WRITERS[name](said))
        except InputError:  # the arguments contradict one another
            return
        found += again(name, first)

    each()
    assert found


@pytest.mark.parametrize("name", ["megatron", "nemo"])
@pytest.mark.parametrize(
    "words",
    [
        "tp2 pp2 dp4 mbs1 zero1 layers=2,2 recompute=full:1",
        "tp2 pp2 dp4 mbs1 zero1 layers=1,3 recompute=full,full:2",
        "tp2 pp2 vpp2 dp4 mbs1 zero1 layers=0,1,2,1 recompute=full,full,full:1,full",
    ],
)
def test_a_number_of_blocks_in_full_holds_for_every_stage(name: str, words: str) -> None:
    """A stage with fewer blocks recomputes all of them; each stage has the same number in the trainer's arguments."""
    layout = parse_layout(words)
    first = read_file(name, WRITERS[name]({"pipeline_model_parallel_size": 2}))
    first = replace(first, layout=layout)
    asked = complete_question(first.model, resolve_cluster("dgx-h100", GPUS), first.training)
    assert not refusals(name, asked, layout)
    assert again(name, first)


def test_a_gelu_that_is_fused_elsewhere_only_is_named() -> None:
    """It set `bias_gelu_fusion` to both values, which ended in an assertion."""
    first = read_megatron(launch_of(command_of({"bias_gelu_fusion": True, "global_batch_size": 16})))
    assert first.model.activation == "gelu-tanh"
    stack = first.stack.model_copy(update={"fused_elementwise": False})
    cluster = resolve_cluster("dgx-h100", GPUS)
    job = Job(complete_question(first.model, cluster, first.training, stack=stack), first.layout)
    lacking = [one.field for one in MEGATRON.field_exports(job) if one.verdict == "lacking"]
    assert lacking == ["stack.fused_elementwise"]
