// Runs a test for every instruction set this processor can use, and for AMX with emulated tiles.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "backends/cpu/kernels.h"
#include "tests/amx_emulator/emulated.h"

namespace lily::cpu::test {

inline std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const IsaListing& isa : list_isas()) {
    if (isa.usable) {
      names.emplace_back(isa.kernels->name);
    }
  }
  return names;
}

inline std::vector<std::string> tested_isas() {
  std::vector<std::string> names = usable_isas();
  if (can_emulate_amx()) {
    names.emplace_back(kEmulatedAmx);
    names.emplace_back(kEmulatedAmxBf16);
  }
  return names;
}

class IsaTest : public ::testing::TestWithParam<std::string> {
 protected:
  bool emulated() const { return GetParam() == kEmulatedAmx || GetParam() == kEmulatedAmxBf16; }
  const Kernels& kernels() const {
    return GetParam() == kEmulatedAmx       ? *emulated_amx_kernels()
           : GetParam() == kEmulatedAmxBf16 ? *emulated_amx_bf16_kernels()
                                            : **choose_kernels(GetParam());
  }
};

struct IsaName {
  std::string operator()(const ::testing::TestParamInfo<std::string>& isa) const {
    return isa.param == kEmulatedAmx       ? "amx_emulated"
           : isa.param == kEmulatedAmxBf16 ? "amxbf16_emulated"
                                           : isa.param;
  }
};

#define LILY_FOR_EACH_ISA(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::testing::ValuesIn(::lily::cpu::test::tested_isas()), \
                           ::lily::cpu::test::IsaName())

inline std::vector<float> randoms(size_t count, uint32_t seed, float size = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> out(count);
  for (float& value : out) {
    value = normal(engine);
  }
  return out;
}

// Half a unit in the last place of float32, relative.
inline constexpr double kUnit = 0x1p-24;

}  // namespace lily::cpu::test
