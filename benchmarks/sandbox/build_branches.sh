#!/bin/sh
# Build every branch of the sandbox from its BF16 checkpoint, in minutes on two CPU cores:
#   benchmarks/sandbox/build_branches.sh BF16_DIR CALIBRATION_JSONL SANDBOX_DIR PRODUCERS_VENV MODELOPT_VENV
# SANDBOX_DIR receives the branches and manifest.json (and a copy of BF16_DIR as bf16/, unless it is that already).
# The two environments are described in quantize.py.
set -eu
# One thread: sums always run in one order, and threads that wait for a busy second core cost more than they bring.
export OMP_NUM_THREADS=1
bf16=$(realpath "$1"); calibration=$(realpath "$2"); sandbox=$(realpath -m "$3")
producers=$(realpath -s "$4")/bin/python; modelopt=$(realpath -s "$5")/bin/python
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$sandbox"
[ "$bf16" = "$sandbox/bf16" ] || { rm -rf "$sandbox/bf16"; cp -r "$bf16" "$sandbox/bf16"; }
for branch in fp8-head w4a16 gptq-experts; do
    "$producers" -m benchmarks.sandbox.quantize "$branch" "$bf16" "$calibration" "$work/$branch"
done
for branch in nvfp4-modelopt nvfp4-mixed; do
    "$modelopt" -m benchmarks.sandbox.quantize "$branch" "$bf16" "$calibration" "$work/$branch"
done
"$producers" -m benchmarks.sandbox.derive "$work" "$sandbox"
du -sk "$sandbox"/* | sort -n
