#!/usr/bin/env bash
# tidy.sh [FILE...]: clang-tidy with the checks of .clang-tidy over these sources of ours, or all of src, apps and bench.
# Needs clang-tidy 14 or later and a configured build/ (make build). Slow: some 10 seconds of a core for each file, since every
# file is parsed with Boost's headers: JOBS files at a time. Not part of `make test`; run it on what a change touches.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "tidy: clang-tidy is not installed (apt-get install clang-tidy)" >&2; exit 1; }
[ -f build/compile_commands.json ] || { echo "tidy: build/ is not configured (make build)" >&2; exit 1; }
[ $# -gt 0 ] || mapfile -t sources < <(git ls-files 'src/*.cpp' 'apps/*.cpp' 'bench/*.cpp')
[ $# -eq 0 ] || sources=("$@")
# Found or not, every file is looked at.
status=0
printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} clang-tidy -p build --quiet "--header-filter=^$PWD/(src|apps|bench|tests)/" {} \
  2> >(grep -v ' warnings\? generated\.$' >&2) || status=1
[ $status -eq 0 ] && echo "tidy: ${#sources[@]} files, no findings"
exit $status
