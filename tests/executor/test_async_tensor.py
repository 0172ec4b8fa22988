"""`overlap=tp`: torch still has the switches that it takes, and a device without symmetric memory is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from processes import Processes
from training import LLAMA, question_for

from cost_models.errors import HostError
from executor.apply.async_tensor import options_inside_products, share_memory
from executor.apply.compiled import compile_blocks
from executor.models.transformer import Transformer


def permitted() -> tuple[bool, str]:
    """Whether the compiler may use symmetric memory among all ranks, and why it is not told to on a CPU."""
    import torch.distributed as dist
    from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group

    assert dist.group.WORLD is not None
    share_memory(dist.group.WORLD)
    with pytest.raises(HostError) as refused:
        options_inside_products(dist.group.WORLD, torch.device("cpu"))
    return is_symm_mem_enabled_for_group(dist.group.WORLD.group_name), str(refused.value)


def test_ranks_are_permitted_and_cpus_refused(processes: Processes) -> None:
    for allowed, why in processes.run(2, permitted):
        assert allowed
        assert "symmetric memory of GPUs" in why


def test_every_piece_is_compiled_with_the_option() -> None:
    """Without any, nothing is said, so that other backends can take the place of inductor."""
    model = Transformer(question_for(LLAMA, 1).model, vocabulary=256)
    for options, wanted in (({"_micro_pipeline_tp": True}, {"_micro_pipeline_tp": True}), (None, None)):
        told: list[dict[str, Any]] = []
        with mock.patch.object(torch.nn.Module, "compile", lambda module, told=told, **how: told.append(how)):
            compile_blocks(model, split=True, options=options)
        assert [how.get("options") for how in told] == [wanted] * len(model.blocks)
        assert all(how["fullgraph"] for how in told)


def test_torch_has_the_switch() -> None:
    assert "_micro_pipeline_tp" in torch._inductor.list_options()
