#include "tests/amx_emulator/emulated.h"

namespace lily::cpu::test {

bool can_emulate_amx() { return emulated_amx_tiles() != nullptr && choose_kernels("avx512vnni").has_value(); }

const Kernels* emulated_amx_kernels() {
  if (!can_emulate_amx()) {
    return nullptr;
  }
  static const Kernels table = with_tiles(kEmulatedAmx, *emulated_amx_tiles(), *avx512vnni_kernels());
  return &table;
}

const Kernels* emulated_amx_bf16_kernels() {
  if (!can_emulate_amx()) {
    return nullptr;
  }
  static const Kernels table =
      with_tiles(kEmulatedAmxBf16, *emulated_amx_bf16_tiles(), *avx512vnni_kernels());
  return &table;
}

}  // namespace lily::cpu::test
