#!/usr/bin/env bash
# The whole training on one machine with NVIDIA GPUs: benchmarks/sandbox/train.sh OUT [GPUS]
# Two long stages on the broad mixture, then a short one that corrects tool refusals and enum orders.
set -euo pipefail
out=$1
gpus=${2:-1}
stage() { # NAME SEED START_FROM [OPTIONS...]
    local name=$1 seed=$2 from=$3
    shift 3
    torchrun --standalone --nproc_per_node="$gpus" -m benchmarks.sandbox.train --out "$out/$name" --seed "$seed" \
        --pool "$out/pool-$name" --layers LLFLFL --experts 6 --micro-tokens 32768 --micro-steps 1 \
        ${from:+--start-from "$from"} "$@" | tee "$out/$name.log"
}
mkdir -p "$out"
stage first 1 "" --pool-tokens 5e8 --seconds 470
stage second 2 "$out/first" --pool-tokens 4e8 --seconds 370 --muon-lr 0.015
stage last 3 "$out/second" --pool-tokens 3e6 --seconds 30 --muon-lr 0.004 --adam-lr 6e-4 --mixture last
