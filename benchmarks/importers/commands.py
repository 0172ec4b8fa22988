"""Published commands of other trainers, put together here from their figures: scripts, recipes and files to import.

Sources: Megatron-LM, examples/academic_paper_scripts/sc21 (run_table_1.sh, CONFIG.sh, SRUN.sh); Jiang et al. 2024
(MegaScale), Table 1 and section 6.1, of its Megatron-LM baseline; NVIDIA/dgxc-benchmarking v24.11.1 (llama3.1/*.yaml,
nemo_megatron/gpt3_175b_hydra.yaml, nemotron/*.yaml, grok1/grok1_314b.yaml); torchtitan, models/llama3/train_configs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

SC21_SCRIPT = """
SIZE=${SIZE:-1.7B}
EXTRA="--activations-checkpoint-method uniform"
case $SIZE in
  1.7B) NODES=4 TP=1 PP=1 MBS=16 GBS=512 LAYERS=24 HIDDEN=2304 HEADS=24 ;;
  3.6B) NODES=8 TP=2 PP=1 MBS=16 GBS=512 LAYERS=30 HIDDEN=3072 HEADS=32 ;;
  7.5B) NODES=16 TP=4 PP=1 MBS=16 GBS=512 LAYERS=36 HIDDEN=4096 HEADS=32 ;;
  18B) NODES=32 TP=8 PP=1 MBS=8 GBS=1024 LAYERS=40 HIDDEN=6144 HEADS=48 ;;
  39B) NODES=64 TP=8 PP=2 MBS=4 GBS=1536 LAYERS=48 HIDDEN=8192 HEADS=64 ;;
  76B) NODES=128 TP=8 PP=4 MBS=2 GBS=1792 LAYERS=60 HIDDEN=10240 HEADS=80 EACH=5 ;;
  145B) NODES=192 TP=8 PP=8 MBS=2 GBS=2304 LAYERS=80 HIDDEN=12288 HEADS=96 EACH=5 ;;
  310B) NODES=240 TP=8 PP=16 MBS=1 GBS=2160 LAYERS=96 HIDDEN=16384 HEADS=128 EACH=3 ;;
  530B) NODES=315 TP=8 PP=35 MBS=1 GBS=2520 LAYERS=105 HIDDEN=20480 HEADS=128 EACH=1 ;;
  1T) NODES=384 TP=8 PP=64 MBS=1 GBS=3072 LAYERS=128 HIDDEN=25600 HEADS=160 ;;
  *) echo "no such size"; exit 1 ;;
esac
if [[ -n "${EACH-}" ]]; then
  EXTRA+=" --num-layers-per-virtual-pipeline-stage $EACH"
fi
PARAMS="$EXTRA --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --micro-batch-size ${MBS} \\
  --global-batch-size ${GBS} --num-layers ${LAYERS} --hidden-size ${HIDDEN} --num-attention-heads ${HEADS} \\
  --seq-length 2048 --max-position-embeddings 2048 --train-iters 500 --lr 0.0001 --fp16 --data-path ${DATA} \\
  --vocab-file ${VOCAB} --merge-file ${MERGES}"
srun --nodes=$NODES --ntasks-per-node=8 sh -c "python -u ${CODE}/pretrain_gpt.py ${PARAMS}"
"""
SC21_SIZES = ("1.7B", "3.6B", "7.5B", "18B", "39B", "76B", "145B", "310B", "530B", "1T")
MEGASCALE_SCRIPT = """
GPUS=${GPUS:-256}; BATCH=${BATCH:-768}
torchrun --nnodes $((GPUS / 8)) --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 96 --hidden-size 12288 --num-attention-heads 128 --kv-channels 96 --seq-length 2048 \\
  --max-position-embeddings 2048 --vocab-size 64000 --make-vocab-size-divisible-by 128 --bf16 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 \\
  --num-layers-per-virtual-pipeline-stage $((96 / 8 / 6)) --sequence-parallel --use-flash-attn \\
  --use-distributed-optimizer --micro-batch-size 2 --global-batch-size $BATCH
"""
"""Heads, tp and pp are its Table 1's; chunks, words, sequence and kernels the published row's, from memory; how many
sequences a microbatch has nobody says: two, as the rows are shipped."""
MEGASCALE = {
    1: (256, 768),
    2: (512, 768),
    3: (768, 768),
    4: (1024, 768),
    9: (3072, 6144),
    10: (6144, 6144),
    11: (8192, 6144),
    12: (12288, 6144),
}
"""Row → GPUs and batch."""
_LLAMA = {
    "normalization": "rmsnorm",
    "bias": False,
    "activation": "fast-swiglu",
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "cross_entropy_loss_fusion": True,
    "encoder_seq_length": 8192,
    "max_position_embeddings": 8192,
    "context_parallel_size": 2,
}


def _mesh(tp: int, pp: int, vpp: int | None, mbs: int, batch: int) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
        "micro_batch_size": mbs,
        "global_batch_size": batch,
        "sequence_parallel": tp > 1,
        "ub_tp_comm_overlap": tp > 1,
    }


def _shape(layers: int, hidden: int, heads: int, groups: int | None, ffn: int) -> dict[str, Any]:
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "ffn_hidden_size": ffn,
    }


_NEMOTRON = {
    **{name: value for name, value in _LLAMA.items() if name != "context_parallel_size"},
    "normalization": "layernorm1p",
    "activation": "squared-relu",
    "rotary_percentage": 0.5,
    "encoder_seq_length": 4096,
    "max_position_embeddings": 4096,
    "bias_activation_fusion": False,
    "bias_dropout_add_fusion": False,
}
_NEMO: dict[str, tuple[int, dict[str, Any]]] = {
    "llama3.1-8b": (1, _LLAMA | _shape(32, 4096, 32, 8, 14336) | _mesh(1, 1, None, 1, 128)),
    "llama3.1-70b": (8, _LLAMA | _shape(80, 8192, 64, 8, 28672) | _mesh(4, 4, 5, 1, 128)),
    "llama3.1-405b": (72, _LLAMA | _shape(126, 16384, 128, 16, 53248) | _mesh(8, 9, 7, 1, 252)),
    "gpt3-175b": (
        16,
        {
            "encoder_seq_length": 2048,
            "max_position_embeddings": 2048,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
        }
        | _shape(96, 12288, 96, None, 49152)
        | _mesh(4, 8, 12, 1, 256),
    ),
    "nemotron4-15b": (2, _NEMOTRON | _shape(32, 6144, 48, 8, 24576) | _mesh(4, 1, None, 4, 64)),
    "nemotron4-340b": (
        16,
        _NEMOTRON
        | _shape(96, 18432, 96, 8, 73728)
        | _mesh(8, 8, 12, 1, 32)
        | {
            "bias_dropout_add_fusion": True,
            "activations_checkpoint_granularity": "selective",
            "overlap_p2p_comm": False,
            "ub_tp_comm_overlap": False,  # its launch says otherwise
        },
    ),
    "grok1-314b": (
        64,
        _LLAMA
        | _shape(64, 6144, 48, 8, 32768)
        | _mesh(4, 8, 8, 1, 1024)
        | {
            "activation": "fast-geglu",
            "rotary_base": 1000000.0,
            "cross_entropy_loss_fusion": False,
            "ub_tp_comm_overlap": False,
            "num_moe_experts": 8,
            "moe_router_topk": 2,
            "moe_grouped_gemm": False,
            "moe_token_dispatcher_type": "alltoall",
            "moe_expert_capacity_factor": 1.0,
            "expert_model_parallel_size": 8,
        },
    ),
}
_TOKENIZERS = {"llama3.1-405b": "GPT2BPETokenizer", "gpt3-175b": "GPT2BPETokenizer"}
_WORDS = {
    "llama3.1-8b": 128256,
    "llama3.1-70b": 128256,
    "nemotron4-15b": 256000,
    "nemotron4-340b": 256000,
    "grok1-314b": 128256,
}
"""Of tokenizers that are files."""
_LAUNCHES = {
    "nemotron4-340b": " model.ub_tp_comm_overlap=True model.overlap_p2p_comm=True",
    "grok1-314b": " model.ub_tp_comm_overlap=True",
}
"""What configure.sh overrides for runs of any size."""


def nemo_file(name: str) -> dict[str, Any]:
    """A file of the DGX Cloud recipes for NeMo 1, by its figures."""
    nodes, model = _NEMO[name]
    optimizer = {
        "name": "distributed_fused_adam",
        "overlap_grad_sync": True,
        "overlap_param_sync": True,
        "grad_sync_dtype": "bf16",
    }
    return {
        "trainer": {"num_nodes": nodes, "devices": 8, "precision": "bf16"},
        "model": {
            **model,
            "optim": optimizer,
            "tokenizer": {"type": _TOKENIZERS.get(name, "a file")},
            "fp8": False,
        },
    }


JOB_FILE = """
[model]
name = "llama3"
flavor = "{flavor}"
{converters}
[training]
local_batch_size = {batch}
seq_len = 8192
[compile]
enable = {compiled}
components = {components}
[parallelism]
tensor_parallel_degree = {tp}
[activation_checkpoint]
mode = "{mode}"
selective_ac_option = "op"
"""
"""Of the runs of December 2024 the loss is not compiled (train.py, December 18, 2024)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A command, and the row of the tables of published runs that says its step."""

    row: str
    source: str
    """Whose command it is."""
    name: str
    reader: str
    text: str | dict[str, Any]
    also: str = ""
    gpus: int | None = None
    stack: str | None = None
    cluster: str = "dgx-h100"


def commands() -> Iterator[Published]:
    """All of them, by source."""
    sc21 = Published(
        row="", source="SC21, Table 1", name="", reader="megatron", text=SC21_SCRIPT, cluster="dgx-a100-80gb"
    )
    sc21 = replace(sc21, stack="megatron-2021")
    for at, size in enumerate(SC21_SIZES, 1):
        yield replace(
            sc21, row=f"megatron_sc21-{at:04}", name=f"GPT {size}", also=f"SIZE={size} --vocab-size 51200"
        )
    for at, (gpus, batch) in MEGASCALE.items():
        yield replace(
            sc21,
            row=f"megascale-{at:04}",
            source="MegaScale's baseline",
            name=f"GPT 175B on {gpus:,}",
            text=MEGASCALE_SCRIPT,
            also=f"GPUS={gpus} BATCH={batch}",
            stack="megatron-2023",
        )
    nemo = Published(row="", source="DGX Cloud v24.11.1", name="", reader="nemo", text="")
    for at, model, nodes, batch in (
        (25, "llama3.1-8b", 1, 128),
        (28, "llama3.1-8b", 8, 1024),
        (13, "llama3.1-70b", 8, 128),
        (17, "llama3.1-70b", 128, 2048),
        (4, "llama3.1-405b", 72, 252),
        (6, "llama3.1-405b", 288, 1008),
        (35, "gpt3-175b", 16, 256),
        (38, "gpt3-175b", 128, 2048),
        (45, "nemotron4-15b", 2, 64),
        (50, "nemotron4-15b", 64, 2048),
        (61, "nemotron4-340b", 16, 32),
        (65, "nemotron4-340b", 256, 512),
        (77, "grok1-314b", 64, 1024),
        (79, "grok1-314b", 256, 4096),
    ):
        words = f" model.override_vocab_size={_WORDS[model]}" if model in _WORDS else ""
        yield replace(
            nemo,
            row=f"dgxc-{at:04}",
            name=f"{model} on {8 * nodes:,}",
            text=nemo_file(model),
            also=f"trainer.num_nodes={nodes} model.global_batch_size={batch}{words}{_LAUNCHES.get(model, '')}",
        )
    titan = Published(row="", source="torchtitan, Llama 3", name="", reader="torchtitan", text="")
    for at, flavor, gpus, tp, batch, mode, compiled, precision in (
        (1, "8B", 8, 1, 2, "selective", False, "bf16"),
        (2, "8B", 8, 1, 2, "selective", True, "bf16"),
        (3, "8B", 8, 1, 2, "selective", True, "fp8"),
        (5, "8B", 128, 1, 2, "selective", True, "bf16"),
        (6, "8B", 128, 1, 2, "selective", True, "fp8"),
        (19, "70B", 256, 8, 16, "full", True, "bf16"),
    ):
        converters = 'converters = ["float8"]' if precision == "fp8" else ""
        yield replace(
            titan,
            row=f"torchtitan-{at:04}",
            name=f"Llama 3.1 {flavor} on {gpus}, {precision}{', compiled' if compiled else ''}",
            text=JOB_FILE.format(
                flavor=flavor,
                tp=tp,
                batch=batch,
                mode=mode,
                converters=converters,
                compiled=str(compiled).lower(),
                components=json.dumps(["model", "loss"] if flavor == "70B" else ["model"]),
            ),
            gpus=gpus,
        )
