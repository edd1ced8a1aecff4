#!/bin/bash
export A=1
GPUS_PER_NODE=8
NODES=2
WORLD_SIZE=$(($GPUS_PER_NODE*$NODES))
ARGS=(
    --num-layers 24 # layers
    --hidden-size ${HIDDEN:-1024}
    --num-attention-heads 16
)
MORE="--seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257"
MORE+=" --micro-batch-size 1"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NODES pretrain_gpt.py "${ARGS[@]}" $MORE \
    --bf16 --pipeline-model-parallel-size 4 --data-path "$1" 2>&1 | tee log
