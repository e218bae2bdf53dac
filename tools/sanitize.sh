#!/usr/bin/env bash
# sanitize.sh [asan|tsan]: builds and runs, with AddressSanitizer and UndefinedBehaviorSanitizer or with ThreadSanitizer,
# the tests that have the most to find: parsers and text of others, the server and the engine with their threads, the pool.
# Both when none is named. Not all tests: what is left out computes much, shares few threads, or takes long to build.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A targets=(
  [asan]="unit_server unit_engine unit_host unit_text fuzz_safetensors fuzz_model_config fuzz_generation_config fuzz_tokenizer_json
          fuzz_tokenizer_encode fuzz_chat_template fuzz_text_stream fuzz_output_parser fuzz_chat_request fuzz_door_requests"
  [tsan]="unit_server unit_engine unit_host"
)
export UBSAN_OPTIONS=print_stacktrace=1
for preset in ${1:-asan tsan}; do
  read -ra names <<<"$(echo ${targets[$preset]})"
  [ -f "build-$preset/build.ninja" ] || cmake --preset "$preset"
  cmake --build "build-$preset" -j "${JOBS:-$(nproc)}" --target "${names[@]}"
  for name in "${names[@]}"; do
    echo "sanitize: $preset $name"
    case $name in
      fuzz_*) "build-$preset/tests/fuzz/$name" "tests/fuzz/corpus/${name#fuzz_}" ;;
      *) "build-$preset/tests/$name" --gtest_brief=1 ;;
    esac
  done
done
