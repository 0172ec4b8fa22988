"""Recipes of Megatron Bridge, read without running them: exports come back, what only Bridge knows is named."""

from __future__ import annotations

import pytest
from tables import rows, unnamed

from cost_models.errors import InputError
from planner.formats.nemo import read_bridge
from planner.formats.settings import ReadOptions, table_of

RECIPE = """
from megatron.bridge.recipes.gpt import vanilla_gpt_pretrain_config
def plan():
    config = vanilla_gpt_pretrain_config()
    config.model.num_layers = 32
    config.model.hidden_size = 4096
    config.model.num_attention_heads = 32
    config.model.seq_length = 4096
    config.model.vocab_size = 50304
    config.train.micro_batch_size = 1
    config.train.global_batch_size = 64
    {line}
    return config
"""


def test_overrides_and_what_is_left_out() -> None:
    options = ReadOptions(gpus=16, also={"train.global_batch_size": 128})
    reading = read_bridge(RECIPE.format(line="config.model.warp = 2"), options)
    assert (reading.layout.brief, reading.training.global_batch) == ("tp1 pp1 dp16 mbs1 zero0", 128)
    assert (reading.training.precision, reading.training.dropout) == ("bf16", 0.1)
    assert not reading.stack.overlap_gradient_reduce
    assert reading.assumptions[0].startswith("no effect of `model.warp: 2`: not known here")


def test_what_is_wrong_is_named() -> None:
    for line, *named in rows("""
        config.model.num_layers = count() | model.num_layers | count(..)
        config.model.num_layers = COUNT | model.num_layers | only Python knows
        config.model.num_layers = 'many' | model.num_layers: many
        config.model = Llama3ModelProvider8B() | Llama3ModelProvider8B | only Bridge
        config.mixed_precision = 'int4_mixed' | int4_mixed
        config.model.activation_func = mish | mish
        config.model.moe_layer_freq = [[1]] | moe_layer_freq
        config = llama3_8b_pretrain_config() | llama3_8b_pretrain_config | only Bridge
        return 3 | no recipe
        config.model.tensor_model_parallel_size = 3 | 16 GPUs | tp3
    """):
        with pytest.raises(InputError) as error:
            read_bridge(RECIPE.format(line=line), ReadOptions(gpus=16))
        assert unnamed(str(error.value), *named) == [], line


@pytest.mark.parametrize(
    "value", ["-1", "10**30", "1e400", "'x'", "[]", "{}", "[[1]]", "[1]", "float('nan')", "True"]
)
def test_nonsense_is_read_or_refused(value: str) -> None:
    """Never another error, whatever a setting is."""
    others = ("num_moe_experts", "virtual_pipeline_model_parallel_size", "activation_func")
    for name in (*table_of("megatron").arguments, *others):
        try:
            read_bridge(RECIPE.format(line=f"config.model.{name} = {value}"), ReadOptions(gpus=16))
        except InputError as error:
            assert str(error)  # noqa: PT017
