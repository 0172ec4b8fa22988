#!/usr/bin/env bash
# megatron.yaml for Megatron-LM, as `meshwright export --to megatron` wrote it; run it on every node
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGUMENTS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --context-parallel-size 1
  --micro-batch-size 1
  --use-distributed-optimizer
  --sequence-parallel
  --pipeline-model-parallel-layout 'Ettttttttttttttttt|tttttttttttttttL'
  --global-batch-size 128
  --seq-length 8192
  --bf16
  --optimizer adam
  --accumulate-allreduce-grads-in-fp32
  --hidden-dropout 0.0
  --attention-dropout 0.0
  --num-layers 32
  --hidden-size 4096
  --num-attention-heads 32
  --group-query-attention
  --num-query-groups 8
  --kv-channels 128
  --ffn-hidden-size 14336
  --vocab-size 128256
  --swiglu
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --position-embedding-type rope
  --max-position-embeddings 131072
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --rotary-base 500000
  --use-rope-scaling
  --rope-scaling-factor 8.0
  --make-vocab-size-divisible-by 128
  --attention-backend auto
  --overlap-grad-reduce
  --overlap-param-gather
  --tp-comm-overlap
)
LAUNCH=(--nproc-per-node 8
  --nnodes "${NNODES:-2}" --node-rank "${NODE_RANK:?which of the nodes this is}"
  --master-addr "${MASTER_ADDR:?a host that all nodes reach}" --master-port "${MASTER_PORT:-29500}")
exec torchrun "${LAUNCH[@]}" "${MEGATRON:-.}/pretrain_gpt.py" "${ARGUMENTS[@]}" "$@"
