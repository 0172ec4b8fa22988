"""What becomes of every setting of a trainer's file: it is read, cannot matter for a reason, or is named; what could
change layout or memory and is not priced stops the import unless --ignore names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from calling import Answer

MEGATRON = (
    "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 "
    "--num-attention-heads 32 --seq-length 4096 --vocab-size 50304 --global-batch-size 64"
)
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\n[parallelism]\n'
NEMO = """
trainer: {num_nodes: 1, devices: 8, precision: bf16}
model: {num_layers: 32, hidden_size: 4096, num_attention_heads: 32, encoder_seq_length: 4096, micro_batch_size: 1,
  global_batch_size: 64, tokenizer: {type: GPT2BPETokenizer}, ffn_hidden_size: 16384, NEW}
"""
FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "megatron": ("run.sh", MEGATRON + " --{0} {1}", ()),
    "torchtitan": ("job.toml", TITAN + "{0} = {1}\n", ("--gpus", "8")),
    "nemo": ("gpt.yaml", NEMO.replace("{", "{{").replace("}", "}}").replace("NEW", "{0}: {1}"), ()),
}
"""Trainer → name of its file, the text around a setting, and what is said beside it."""


@pytest.mark.parametrize("trainer", FILES)
def test_what_could_matter_stops_and_all_else_is_named(
    trainer: str, tmp_path: Path, meshwright: Callable[..., Answer]
) -> None:
    name, text, beside = FILES[trainer]
    file = tmp_path / name

    def asked(key: str, value: int, *more: str) -> Answer:
        file.write_text(text.format(key, value))
        return meshwright("import", str(file), "dgx-h100", *beside, *more)

    stopped = asked("warp_offload_degree", 4)
    assert stopped.code == 2
    assert "warp_offload_degree" in stopped.err
    key = stopped.err.rpartition("--ignore ")[2].strip()
    ignored = asked("warp_offload_degree", 4, "--ignore", key)
    assert ignored.code != 2
    assert f"assumed: no effect of `{key}`, which --ignore leaves out" in " ".join(ignored.err.split())
    plain = asked("warp_offload_degree", 4, "--ignore", "absent")
    assert plain.code == 2
    assert "`absent`: is not there" in plain.err
