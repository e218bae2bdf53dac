#!/usr/bin/env bash
# try.sh FILE.metal ...: joins, translates and compiles kernel files as the build does, and says what is wrong with them.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT
flags=(-std=c++14 -Wall -Wvla -Werror -Wno-unknown-attributes -Wno-unused-function -Wno-unused-const-variable -Wno-unknown-pragmas
  -fno-exceptions -fno-rtti "-I$root/tests/metal_emulator/shim" -fsyntax-only)
status=0
for file in "$@"; do
  name="$(basename "$file" .metal)"
  cmake -D "IN=$(realpath "$file")" -D "ROOT=$root/src" -D "OUT=$out/$name.metal" -P "$root/cmake/join_metal.cmake"
  python3 "$root/tests/metal_emulator/translate.py" "$name" "$out/$name.metal" "$out/$name.cpp" &&
    clang++ "${flags[@]}" "$out/$name.cpp" &&
    clang++ "${flags[@]}" -DLILY_METAL_TYPES_ONLY -mavx512fp16 -fno-lax-vector-conversions "$out/$name.cpp" &&
    echo "$name: sound" || status=1
done
exit $status
