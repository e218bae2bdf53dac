#!/usr/bin/env bash
# Everything that a GPU is needed for, from a finished build, as one table: tests, sanitizers, agreement, speed.
#   tools/gpu_check.sh [BUILD] [LOGS]
# BUILD (default: build) holds the programs lily, blocks, unit_cuda and cuda_kernels, in any folder below it; LOGS (default:
# BUILD/gpu_check) gets one log for each line of the table. QUICK=1 leaves out the full-size model. TOKENIZER: a folder
# with the model's tokenizer.json (default: BUILD/qwen36_tokenizer), without which the server is not tried at full size. Takes less than
# eight minutes on an H200. Exit status 1 if any line failed.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
logs=${2:-$build/gpu_check}
mkdir -p "$logs"
table="$logs/table"
: > "$table"
failed=0

program() { find "$build" -name "$1" -type f -perm -u+x 2>/dev/null | head -1; }
lily=$(program lily)
blocks=$(program blocks)
unit=$(program unit_cuda)
prefill=$(program cuda_kernels)
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)

line() { printf '%-34s %-7s %5ss  %s\n' "$1" "$2" "$3" "$4" | tee -a "$table"; }

# check NAME SECONDS COMMAND...: passes where the command ends with 0; the note is its last line of interest.
check() {
  local name=$1 limit=$2 begin rc note log
  shift 2
  log="$logs/$(echo "$name" | tr ' /' '__').log"
  begin=$(date +%s)
  timeout "$limit" "$@" > "$log" 2>&1
  rc=$?
  note=$(grep -E 'PASSED|FAILED|SUMMARY|top-1|KL|Error' "$log" | tail -2 | tr '\n' ' ' | cut -c1-110)
  if [ $rc -eq 0 ]; then
    line "$name" ok "$(($(date +%s) - begin))" "$note"
  else
    failed=1
    line "$name" "FAIL $rc" "$(($(date +%s) - begin))" "$note"
  fi
}

sanitize() {  # NAME TOOL FILTER
  if [ -z "$sanitizer" ]; then
    line "$1" skipped 0 'compute-sanitizer is not here'
    return
  fi
  check "$1" 120 "$sanitizer" --tool "$2" --error-exitcode 9 "$blocks" --gtest_filter="$3"
}

if ! "$lily" devices 2>/dev/null | grep -Eq '^cuda +yes'; then
  "$lily" devices
  echo "gpu_check: no usable GPU" >&2
  exit 1
fi
"$lily" devices | grep -E '^cuda' | tee -a "$table"

( check 'blocks at full width' 240 "$blocks" --gtest_filter='*FullWidth/cuda' ) &
wide=$!
check 'packing, sampler' 120 "$unit"
[ -n "$prefill" ] && check 'prefill kernels' 120 "$prefill"
check 'blocks' 120 "$blocks" --gtest_filter='*BlockTest*cuda:-*FullWidth*'
check 'whole model' 120 "$blocks" --gtest_filter='*ModelTest*cuda:Cuda*'
sanitize 'memcheck' memcheck '*ModelTest.SequencesInOnePass*/cuda:*ModelTest.RejectedDrafts*/cuda'
# Without graphs, on which racecheck does not come to an end: the block tests call the kernels for few rows themselves.
sanitize 'racecheck' racecheck '*ModelTest.EveryStep*/cuda:*BlockTest.Attention/cuda:*BlockTest.DeltaNet/cuda'
sanitize 'initcheck' initcheck '*ModelTest.EveryStep*/cuda:*ModelTest.GreedyDecodingFollows*/cuda'
check 'agreement with the reference' 120 "$lily" eval agreement models/lily-tiny --device cuda \
  --against-device reference --text tests/behaviour/heldout.txt --max-tokens 20480
serve() {  # NAME SECONDS MODEL OPTIONS...: a server with this model, tried by tools/measure_server.py
  local name=$1 limit=$2 model=$3 server
  shift 3
  "$lily" serve "$model" --device cuda --port 8099 "$@" > "$logs/server_$name.log" 2>&1 &
  server=$!
  check "$name" "$limit" python3 tools/measure_server.py http://127.0.0.1:8099
  nvidia-smi --query-gpu=memory.used --format=csv,noheader | sed 's/^/  memory of the GPU in use: /' | tee -a "$table"
  grep -E '^  ' "$logs/$(echo "$name" | tr ' /' '__').log" | tee -a "$table"
  kill $server
  wait $server 2>/dev/null
}
serve 'kept conversation, lily-tiny' 60 models/lily-tiny
wait $wide
grep -q ' FAIL' "$table" && failed=1

if [ -z "${QUICK:-}" ]; then
  # The full size behind the server: needs the model's tokenizer.
  if [ -f "${TOKENIZER:-$build/qwen36_tokenizer}/tokenizer.json" ]; then
    made=$(mktemp -d /dev/shm/lily_check.XXXX)
    "$lily" synth "$made/model" --shape qwen36 --tokenizer "${TOKENIZER:-$build/qwen36_tokenizer}" > "$logs/synth.log" 2>&1
    serve 'server, full size' 90 "$made/model" --ctx 32768 --parallel 1
    rm -rf "$made"
  fi
  bench() {  # LOG SECONDS OPTIONS...
    timeout "$2" "$lily" bench --random --shape qwen36 --device cuda "${@:3}" > "$logs/$1.log" 2>&1 || failed=1
  }
  bench bench_prefill 120 --chunk 4096 --prompt 512,2048,8192,65536 --decode 128
  bench bench_deep 120 --chunk 4096 --prompt 0 --decode 128 --depth 32768,131072
  bench bench_many 90 --prompt 0 --decode 128 --parallel 8,32
  grep -hE '^(limits|phase|prefill|decode|fingerprint)' "$logs"/bench_*.log | tee -a "$table"
fi
echo
echo "== gpu_check: $([ $failed -eq 0 ] && echo 'everything passed' || echo 'SOMETHING FAILED')"
cat "$table"
exit $failed
