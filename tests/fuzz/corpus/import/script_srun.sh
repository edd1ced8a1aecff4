#!/bin/bash
#SBATCH -N 2
run_cmd="torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 1 --bf16"
log() { echo "[$(date)] $*" >&2; }
usage() {
  echo "usage"
  exit 1
}
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2 ;;
    -h|--help) usage ;;
    *) shift ;;
  esac
done
log starting ${run_cmd}
echo ${run_cmd}
srun -l --container-image x --output=%j.log sh -c "${run_cmd} --tensor-model-parallel-size 2"
