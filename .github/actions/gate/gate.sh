#!/usr/bin/env bash
# Runs `q36eval gate` as the action's inputs say, and writes verdict, exit code and report folder to $GITHUB_OUTPUT.
# It ends with 0 whatever the gate says, so that the reports are kept; the action's last step ends as the gate did.
set -uo pipefail

# A cancelled job stops the gate, which says what to resume; then this goes on and writes the outcome. A runner signals
# this script alone, and a shell hands nothing on to what it waits for. The gate runs beside it, where Ctrl-C is ignored.
gate= stopped=
stop() {
  stopped=yes
  [ -z "$gate" ] || kill -TERM "$gate" 2>/dev/null
}
trap stop INT TERM HUP

arguments=(gate)

# add OPTION LINES: the option once for every line that is not empty, glued to its value: no value becomes an option.
add() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do
    line=${line%$'\r'}
    [ -z "${line//[[:space:]]/}" ] || arguments+=("$1=$line")
  done <<<"$2"
}

add --branch "${Q36EVAL_ACTION_BRANCH-}"
add --family "${Q36EVAL_ACTION_FAMILY-}"
add --policy "${Q36EVAL_ACTION_POLICY-}"
add --suite "${Q36EVAL_ACTION_SUITE-}"
add --reference "${Q36EVAL_ACTION_REFERENCE-}"
add --reference-pack "${Q36EVAL_ACTION_REFERENCE_PACK-}"
add --device "${Q36EVAL_ACTION_DEVICE-}"
while IFS= read -r line || [ -n "$line" ]; do
  line=${line%$'\r'}
  [ -z "${line//[[:space:]]/}" ] || arguments+=("$line")
done <<<"${Q36EVAL_ACTION_OPTIONS-}"

export Q36EVAL_STATE=${Q36EVAL_ACTION_STATE:-${RUNNER_TEMP:-/tmp}/q36eval-state}

# Installs this action's own version; a runner that keeps its tools finds it again.
command=${Q36EVAL_ACTION_COMMAND-}
if [ -z "$command" ]; then
  torch=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
  [ "${Q36EVAL_ACTION_DEVICE:-cpu}" = cpu ] || torch=
  source=$(cd "$GITHUB_ACTION_PATH/../../.." && pwd)
  version=$(cd "$source" && {
    echo "$torch" "$(python3 --version)"
    find app canaries data evals kl q36eval constraints.txt pyproject.toml -type f -print0 | sort -z | xargs -0 sha256sum
  } | sha256sum)
  environment=${RUNNER_TOOL_CACHE:-${RUNNER_TEMP:-/tmp}}/q36eval-${version:0:16}
  command=$environment/bin/q36eval
  mkdir -p "${environment%/*}"
  (
    flock 9 # another job may install it now
    [ -x "$command" ] && exit
    install=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$source/constraints.txt")
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "q36eval needs Python 3.11 or newer.")' &&
      python3 -m venv "$environment" &&
      { [ -z "$torch" ] || "${install[@]}" --no-deps --index-url "$torch" torch; } &&
      "${install[@]}" "$source[suites,gguf,postgres]"
  ) 9>"$environment.lock" || echo "q36eval could not be installed from $source." >&2
fi
[ -z "${GITHUB_ENV-}" ] || echo "Q36EVAL_RESTORED=yes" >>"$GITHUB_ENV" # a second gate of this job finds the state as it is

code=2
# a folder of its own, so that no report of an earlier gate is taken for this one's
if report=$(mktemp -d "${RUNNER_TEMP:-/tmp}/q36eval-report.XXXXXX"); then
  if command -v -- "$command" >/dev/null; then
    "$command" "${arguments[@]}" "--out=$report" &
    gate=$!
    [ -z "$stopped" ] || stop
    wait "$gate"
    code=$?
    while [ "$code" -gt 128 ] && kill -0 "$gate" 2>/dev/null; do # a signal ended the wait, not the gate; so may the next
      wait "$gate"
      code=$?
    done
    if [ "$code" -gt 128 ]; then # the gate may have ended just after such a signal: then this is its own status
      wait "$gate" 2>/dev/null
      again=$?
      [ "$again" = 127 ] || code=$again
    fi
    # a program that ends well without a report (an option that only prints help) has passed nothing
    if [ "$code" = 0 ] && [ -z "$(find "$report" -name report.json -size +0c)" ]; then
      echo "q36eval gate ended without a report: nothing was judged." >&2
      code=4
    fi
  else
    echo "q36eval is not on this runner: name the program in the input 'command', or leave it out." >&2
  fi
else
  report=
fi

case $code in
  0) verdict=PASS ;;
  1) verdict=FAIL ;;
  2) verdict=USAGE ;;
  3) verdict=INCONCLUSIVE ;;
  130 | 143) verdict=INTERRUPTED ;;
  *) verdict=NOT_MEASURED ;; # 4, and a process that was killed
esac

{
  echo "command=$command" # first: of lines that a value brings along, none is the last of its name
  echo "state=$Q36EVAL_STATE"
  echo "verdict=$verdict"
  echo "exit-code=$code"
  echo "report=$report"
} >>"$GITHUB_OUTPUT"
