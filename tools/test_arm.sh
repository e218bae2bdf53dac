#!/usr/bin/env bash
# test_arm.sh FOLDER: compiles the CPU kernels for 64-bit Arm into FOLDER and runs their tests in an emulated processor.
# Exit status 77, which ctest takes for a skip, where Debian's cross compiler or emulator is not installed
# (tools/setup.sh arm).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$1
compiler=aarch64-linux-gnu-g++
googletest=/usr/src/googletest/googletest
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if ! command -v $compiler >/dev/null || [ -z "$emulator" ] || [ ! -d $googletest ]; then
  echo "skipped: needs g++-aarch64-linux-gnu, qemu-user and libgtest-dev (tools/setup.sh arm)"
  exit 77
fi

# Debian's fmt and expected are headers that fit any processor; GoogleTest comes as source.
mkdir -p "$out/include"
for header in fmt tl; do ln -sfn "/usr/include/$header" "$out/include/$header"; done
flags=(-std=c++20 -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -DFMT_HEADER_ONLY -I"$root/src" -I"$root" -isystem "$out/include"
  -isystem $googletest/include -isystem $googletest)
sources=("$root"/src/backends/cpu/{isa,packed}.cpp "$root"/src/backends/cpu/isa/*.cpp "$root"/src/weights/formats/affine.cpp
  "$root"/src/base/{aligned,check,dtype}.cpp "$root"/tests/unit/cpu/{kernels,matmul}_test.cpp "$root"/tests/amx_emulator/*.cpp $googletest/src/gtest-all.cc
  $googletest/src/gtest_main.cc)
launcher=$(command -v ccache || true)
compile() {
  case $(basename "$1") in
    neon.cpp) set -- "$1" -march=armv8.2-a+dotprod ;;
    i8mm.cpp) set -- "$1" -march=armv8.2-a+dotprod+i8mm ;;
    *_test.cpp | gtest*) set -- "$1" -O1 -Wno-error ;;
  esac
  $launcher $compiler "${flags[@]}" "${@:2}" -c "$1" -o "$out/$(basename "${1%.*}").o"
}
running=()
for source in "${sources[@]}"; do
  compile "$source" & running+=($!)
  if [ ${#running[@]} -ge 2 ]; then wait "${running[0]}"; running=("${running[@]:1}"); fi
done
for job in "${running[@]}"; do wait "$job"; done
$compiler "$out"/*.o -static -pthread -o "$out/kernels_arm"

# Every suite for the two variants; of what has no variant, that both were compiled and are usable.
"$emulator" -cpu max "$out/kernels_arm" --gtest_brief=1 --gtest_filter='*/neon:*/i8mm' | tee "$out/tests.log"
# A processor without the instructions refuses the variants that need them.
"$emulator" -cpu cortex-a57 "$out/kernels_arm" --gtest_brief=1 --gtest_filter='*CompiledIsa*' | tee -a "$out/tests.log"
if grep -q " 0 tests" "$out/tests.log"; then echo "no test ran"; exit 1; fi
