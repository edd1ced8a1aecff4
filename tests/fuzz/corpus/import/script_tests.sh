#!/bin/bash
# Trains a model of 8B parameters
set -euxo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}

CHECKPOINT_PATH=${1:-"checkpoints/a"}
TOKENIZER_ARG=${2:-"MOCK"}
DATA_ARG=${3:-"MOCK"}
mkdir -p "$(dirname "$CHECKPOINT_PATH")"

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
MASTER_ADDR=${MASTER_ADDR:-localhost}
NODE_RANK=${NODE_RANK:-0}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
SCRIPT="${PRETRAIN_SCRIPT:-pretrain_gpt.py}"
DTYPE="bf16"

if [ ! -f "$SCRIPT" ]; then
    echo "Error: $SCRIPT not found"
    exit 1
fi
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
    --master_addr $MASTER_ADDR
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --lr 1.5e-4 --clip-grad 1.0)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
else
    DTYPE_ARGS+=(--bf16)
fi
TP_SIZE=2; PP_SIZE=2
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size $PP_SIZE)
if [[ "$TP_SIZE" -gt 1 ]]; then MODEL_PARALLEL_ARGS+=(--sequence-parallel); fi
DATA_ARGS_LIST=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ "$DATA_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    DATA_ARGS_LIST+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" "--split '99,1,0'")
else
    DATA_ARGS_LIST+=("--data-path $DATA_ARG" "--tokenizer-type HuggingFaceTokenizer" "--vocab-size 128256")
fi
if [ -d "$CHECKPOINT_PATH" ]; then LOAD_ARGS="--load $CHECKPOINT_PATH"; else LOAD_ARGS=""; fi

if [ -n "${WANDB_API_KEY}" ]; then
  EVAL_AND_LOGGING_ARGS=(--log-interval 1 --wandb-project x)
else
  EVAL_AND_LOGGING_ARGS=(--log-interval 1)
fi
torchrun ${DISTRIBUTED_ARGS[@]} \
    "$SCRIPT" \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${DTYPE_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DATA_ARGS_LIST[@]} \
    ${LOAD_ARGS} \
    ${EVAL_AND_LOGGING_ARGS[@]}

set +x
