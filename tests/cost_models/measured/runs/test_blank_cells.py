"""Blank cells take what a trainer's users would have had; what they leave open is not answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from printed_rows import from_printed

from cost_models.errors import InputError
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.conversion import printed_case
from cost_models.measured.runs.printed import PrintedRow
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.pipeline.pricing import estimate

LARGE = {
    "row_id": "lab-1", "framework": "Megatron-Core", "model_name": "llama3.1-405b", "seq_len": "8192",
    "gpu": "H100-SXM-80GB", "gpus_per_node": "8", "num_gpus": "8192", "tp": "8", "pp": "16",
    "global_batch": "2048", "precision": "bf16", "recompute": "none",
}  # fmt: skip


def read(**cells: str) -> Case:
    return printed_case(PrintedRow(LARGE | cells))


def predicted(**cells: str) -> Prediction:
    (one,) = predict([from_printed(LARGE | cells)])
    return one


def test_a_current_megatron_splits_sequences_and_interleaves() -> None:
    layout = read().layout
    assert (layout.sp, layout.vpp, layout.mbs) == (True, 8, 1)
    assert layout.layers[0] == layout.layers[-1] == 0  # 126 blocks, embedding and head in 128 places
    old = read(framework="Megatron-LM 2021", num_layers="128", layers="128", hidden="16384").layout
    assert (old.sp, old.vpp) == (False, 1)


def test_stated_cells_stay() -> None:
    layout = read(sequence_parallel="0", vp="1", micro_batch="2").layout
    assert (layout.sp, layout.vpp, layout.mbs) == (False, 1, 2)


def test_chunks_are_as_few_as_keep_the_pipeline_busy() -> None:
    assert read(num_gpus="128", global_batch="2048").layout.vpp == 1
    assert read(num_gpus="1024", global_batch="2048").layout.vpp == 2


def test_a_blank_microbatch_is_the_smallest_that_costs_little() -> None:
    few = {"model_name": "qwen3-32b", "tp": "8", "pp": "1", "num_gpus": "384", "global_batch": "192"}
    layout = read(**few).layout
    assert layout.mbs > 1  # gradients of one long backward pass hide their reduction
    assert read(**few | {"num_gpus": "8", "tp": "8"}).layout.mbs == 1


def test_blank_recompute_leaves_open_whether_it_fits() -> None:
    tight = {"num_gpus": "128", "global_batch": "128", "micro_batch": "4", "vp": "1"}
    assert predicted(**tight).fits is False
    assert predicted(**tight | {"recompute": ""}).fits is None
    assert predicted(**tight | {"recompute": ""}).step_seconds is not None
    assert predicted(recompute="").fits is (True if predicted().fits else None)


def test_blank_degrees_of_a_model_that_cannot_fit_undivided() -> None:
    blank = {"tp": "", "pp": "", "num_gpus": "8", "global_batch": "8", "micro_batch": "1"}
    assert "degrees are blank" in predicted(**blank).skipped
    assert not predicted(**blank | {"tp": "8"}).skipped
    assert not predicted(**blank | {"model_name": "llama3-8b", "zero_stage": "1"}).skipped


@pytest.mark.parametrize(
    "cells", [{"task": "sft (LoRA)"}, {"task": "PEFT"}, {"model_name": "llama3-70b qlora"}]
)
def test_adapters_are_not_taken_for_pre_training(cells: dict[str, str]) -> None:
    with pytest.raises(InputError, match="LoRA"):
        read(**cells)


def test_all_weights_may_be_fine_tuned() -> None:
    assert read(task="sft (full parameters)").layout == read().layout


def test_notes_say_whether_tensor_parallelism_is_hidden() -> None:
    by_hand = {"framework": "Megatron-LM core 0.12"}
    hidden, shown = (read(notes=notes, **by_hand).question.stack for notes in ("--tp-comm-overlap", ""))
    assert hidden.overlap_tensor_parallel == read().question.stack.overlap_tensor_parallel > 0
    assert shown.overlap_tensor_parallel == 0


def test_tensor_parallelism_is_not_hidden_in_products_of_four_bits() -> None:
    cells = {
        "gpu": "GB200",
        "gpus_per_node": "72",
        "num_gpus": "64",
        "pp": "1",
        "tp": "4",
        "global_batch": "64",
    }
    cells |= {"micro_batch": "1", "model_name": "llama3-70b", "precision": "nvfp4"}
    case = read(**cells)

    def shown(**facts: object) -> float:
        stack = case.question.stack.model_copy(update=facts)
        return dict(estimate(replace(case.question, stack=stack), case.layout).time)["tp_comm"]

    assert shown() == shown(overlap_tensor_parallel=0.0)
