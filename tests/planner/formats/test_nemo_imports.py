"""NeMo's YAML, read without NeMo, and published commands of every reader priced beside their published steps."""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables import rows, unnamed

import meshwright as mw
from benchmarks.importers.commands import nemo_file
from benchmarks.importers.run import priced
from cost_models.errors import InputError
from planner.formats.nemo import overrides, read_nemo
from planner.formats.settings import Reading, ReadOptions

WORDS = "model.override_vocab_size=128256"


def read(also: str = WORDS, *, gpus: int | None = None, **model: Any) -> Reading:
    file = nemo_file("llama3.1-70b")
    options = ReadOptions(gpus=gpus, also=overrides(also))
    return read_nemo(file | {"model": file["model"] | model}, options)


def refused(also: str = WORDS, *, gpus: int | None = None, **model: Any) -> str:
    with pytest.raises(InputError) as error:
        read(also, gpus=gpus, **model)
    return str(error.value)


@cache
def lines() -> list[dict[str, str]]:
    return priced()


def test_published_commands_come_out_as_published() -> None:
    """SC21's ten, MegaScale's baseline, DGX Cloud's files and torchtitan's recipes: read, then priced."""
    sources = {line["source"] for line in lines()}
    assert len(sources) == 4
    for source in sources:
        errors = [abs(float(line["error"])) for line in lines() if line["source"] == source]
        assert statistics.median(errors) < 0.05, source
        assert max(errors) < 0.08, source


def test_a_file_says_model_job_and_layout() -> None:
    reading = read()
    assert reading.layout.brief == "tp4 pp4 vpp5 cp2 dp2 mbs1 zero1 sp"
    assert (reading.model.num_layers, reading.model.num_kv_heads, reading.model.gated_mlp) == (80, 8, True)
    training = reading.training
    assert (training.precision, training.gradient_dtype, training.dropout) == ("bf16", "bf16", 0.0)
    assert (reading.stack.overlap_gradient_reduce, reading.stack.overlap_tensor_parallel > 0) == (True, True)
    assert reading.assumptions == ()


def test_overrides_and_what_is_left_out() -> None:
    also = "+model.fp8=True trainer.num_nodes=16 model.virtual_pipeline_model_parallel_size=null"
    reading = read(f"{WORDS} {also}")
    assert (reading.training.precision, reading.layout.vpp, reading.layout.num_gpus) == ("fp8", 1, 128)
    gpt = read_nemo(nemo_file("gpt3-175b"), ReadOptions())
    assert (gpt.model.positions, gpt.model.norm, gpt.model.tied_embeddings) == ("learned", "layernorm", True)
    assert gpt.model.vocab_multiple == 128  # 50,257 words are padded
    assert any("50,257 words" in one for one in gpt.assumptions)


def test_settings_that_name_others_have_their_values() -> None:
    length = {"encoder_seq_length": 2048, "max_position_embeddings": "${.encoder_seq_length}"}
    for data in "${model.encoder_seq_length}", 2048, "${training.model.encoder_seq_length}":
        reading = read(**length, data={"seq_length": data})
        assert (reading.training.sequence_length, reading.model.max_positions) == (2048, 2048)
    said = refused(WORDS, **length, data={"seq_length": 4096})
    assert "`model.data.seq_length: 4096`: contradicts `model.encoder_seq_length: 2048`" in said


def test_settings_that_are_not_known_are_listed() -> None:
    noted, unknown = read(warp=9, defer_embedding_wgrad_compute=True, blunt=False, gc_interval=5).assumptions
    assert noted.startswith("no effect of `model.defer_embedding_wgrad_compute: True`: ")
    assert unknown.startswith("no effect of `model.warp: 9`, `model.blunt: False`: not known here")


def test_what_is_wrong_is_named() -> None:
    for model, also, *named in rows(f"""
        {{num_layers: eighty}} | {WORDS} | num_layers: eighty | no value
        {{num_layers: true}} | {WORDS} | num_layers: True
        {{num_layers: "${{layers}}"}} | {WORDS} | num_layers | filled in when the program starts
        {{sequence_parallel: 1}} | {WORDS} | sequence_parallel: 1
        {{hidden_size: {10**40}}} | {WORDS} | hidden_size
        {{activation: mish}} | {WORDS} | mish
        {{normalization: batch}} | {WORDS} | batch
        {{fsdp: true}} | {WORDS} | fsdp
        {{optim: {{name: muon}}}} | {WORDS} | muon | Adam
        {{}} | - | vocabulary | override_vocab_size
        {{}} | {WORDS} trainer.precision=int8 | int8
        {{}} | model.fp8 | no setting like
        {{}} | ' | --also
        {{}} | {WORDS} model.tensor_model_parallel_size=3 | 64 GPUs | tp3
    """):
        assert unnamed(refused(also, **yaml.safe_load(model)), *named) == [], model


NONSENSE = [-1, 10**30, 1e300, float("nan"), float("inf"), "x", [], {}, True, [[1]], ["a"]]


@pytest.mark.parametrize("value", NONSENSE)
def test_nonsense_is_read_or_refused(value: Any) -> None:
    """Never another error, whatever a setting is."""
    file = nemo_file("llama3.1-70b")
    others = ("rotary_base", "num_moe_experts", "kv_channels", "rampup_batch_size", "precision")
    for name in (*file["model"], *others):
        part = "trainer" if name == "precision" else "model"
        try:
            read_nemo(file | {part: file[part] | {name: value}}, ReadOptions(also=overrides(WORDS)))
        except InputError as error:
            assert str(error)  # noqa: PT017


def test_whose_file_it_is(tmp_path: Path) -> None:
    file = tmp_path / "gpt.yaml"
    file.write_text("model: {num_layers: 3}")
    for trainer, said in ((None, "no trainer that is known here"), ("nemo", "no file of NeMo")):
        with pytest.raises(InputError, match=said):
            mw.import_plan(file, None, "dgx-h100", trainer=trainer)
