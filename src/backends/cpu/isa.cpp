#include <algorithm>
#include <cstring>

#include "backends/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lily::cpu {
namespace {

#if defined(__x86_64__)
// What the processor says of itself; zeros where it has no such leaf.
struct Cpuid {
  unsigned a = 0, b = 0, c = 0, d = 0;
  explicit Cpuid(unsigned leaf, unsigned subleaf = 0) { __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d); }
};
#endif

bool has_avx2() {
#if defined(__x86_64__)
  // Clang 14 has no name for f16c in __builtin_cpu_supports.
  const bool f16c = (Cpuid(1).c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

// GCC 12 has no name for it in __builtin_cpu_supports.
bool has_avxvnni() {
#if defined(__x86_64__)
  return has_avx2() && (Cpuid(7, 1).a & (1U << 4)) != 0;
#else
  return false;
#endif
}

bool has_avx512() {
#if defined(__x86_64__)
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool has_avx512vnni() {
#if defined(__x86_64__)
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

// Tiles also need the system's permission, once for the process.
bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool has = [] {
    constexpr unsigned kTilesAndInt8 = 3U << 24;
    constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr int kTileData = 18;
    return has_avx512vnni() && (Cpuid(7).d & kTilesAndInt8) == kTilesAndInt8 &&
           ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

bool has_amx_bf16() {
#if defined(__x86_64__)
  return has_amx() && (Cpuid(7).d & (1U << 22)) != 0;
#else
  return false;
#endif
}

#if defined(__aarch64__)
#if defined(__APPLE__)
bool system_says(const char* feature) {
  int value = 0;
  size_t size = sizeof(value);
  return ::sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif
// Bits of the system's description of the processor (asm/hwcap.h).
bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1UL << 20;
  return (::getauxval(AT_HWCAP) & kDotProducts) != 0;
#elif defined(__APPLE__)
  return system_says("hw.optional.arm.FEAT_DotProd");
#else
  return false;
#endif
}

bool has_i8mm() {
#if defined(__linux__)
  constexpr unsigned long kInt8Matrices = 1UL << 13;
  return has_dotprod() && (::getauxval(AT_HWCAP2) & kInt8Matrices) != 0;
#elif defined(__APPLE__)
  return has_dotprod() && system_says("hw.optional.arm.FEAT_I8MM");
#else
  return false;
#endif
}
#endif

std::string usable_names() {
  std::string names;
  for (const IsaListing& isa : list_isas()) {
    if (isa.usable) {
      names += names.empty() ? "" : ", ";
      names += isa.kernels->name;
    }
  }
  return names;
}

}  // namespace

// Here and not beside the tiles: this file runs on every processor.
Kernels with_tiles(std::string_view name, const TileKernels& tiles, const Kernels& vectors) {
  Kernels kernels = vectors;
  kernels.name = name;
  kernels.word = tiles.word;
  kernels.halves = tiles.halves;
  kernels.panel_rows = tiles.panel_rows;
  kernels.matmul = tiles.matmul;
  kernels.delta_chunks = tiles.delta_chunks;
  kernels.attend_rows = tiles.attend_rows;
  kernels.multiply = tiles.multiply;
  kernels.multiply_add_peak = tiles.multiply_add_peak;
  return kernels;
}

const Kernels* amx_kernels() {
  if (amx_tiles() == nullptr || avx512vnni_kernels() == nullptr) {
    return nullptr;
  }
  static const Kernels table = with_tiles("amx", *amx_tiles(), *avx512vnni_kernels());
  return &table;
}

const Kernels* amx_bf16_kernels() {
  if (amx_bf16_tiles() == nullptr || avx512vnni_kernels() == nullptr) {
    return nullptr;
  }
  static const Kernels table = with_tiles("amxbf16", *amx_bf16_tiles(), *avx512vnni_kernels());
  return &table;
}

std::vector<IsaListing> list_isas() {
  std::vector<IsaListing> isas;
  if (const Kernels* kernels = amx_bf16_kernels()) {
    isas.push_back({kernels, has_amx_bf16()});
  }
  if (const Kernels* kernels = amx_kernels()) {
    isas.push_back({kernels, has_amx()});
  }
  if (const Kernels* kernels = avx512vnni_kernels()) {
    isas.push_back({kernels, has_avx512vnni()});
  }
  if (const Kernels* kernels = avx512_kernels()) {
    isas.push_back({kernels, has_avx512()});
  }
  if (const Kernels* kernels = avxvnni_kernels()) {
    isas.push_back({kernels, has_avxvnni()});
  }
  if (const Kernels* kernels = avx2_kernels()) {
    isas.push_back({kernels, has_avx2()});
  }
#if defined(__aarch64__)
  if (const Kernels* kernels = i8mm_kernels()) {
    isas.push_back({kernels, has_i8mm()});
  }
  if (const Kernels* kernels = neon_kernels()) {
    isas.push_back({kernels, has_dotprod()});
  }
#endif
  isas.push_back({&kScalarKernels, true});
  return isas;
}

Result<const Kernels*> choose_kernels(std::string_view name) {
  for (const IsaListing& isa : list_isas()) {
    if (name.empty() && isa.usable) {
      return isa.kernels;
    }
    if (isa.kernels->name == name) {
      if (!isa.usable) {
        return fail(ErrorKind::unsupported,
                    "instruction set '{}' is not available on this processor; it has {}", name,
                    usable_names());
      }
      return isa.kernels;
    }
  }
  return fail(ErrorKind::invalid_input, "unknown instruction set '{}'; this processor can use {}", name,
              usable_names());
}

std::string processor_name() {
#if defined(__x86_64__)
  unsigned registers[12] = {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* part = registers + size_t{leaf} * 4;
    if (__get_cpuid(0x80000002U + leaf, &part[0], &part[1], &part[2], &part[3]) == 0) {
      return "cpu";
    }
  }
  char text[sizeof(registers) + 1] = {};
  std::memcpy(text, registers, sizeof(registers));
  std::string name(text);
  const size_t begin = name.find_first_not_of(' ');
  if (begin == std::string::npos) {
    return "cpu";
  }
  return name.substr(begin, name.find_last_not_of(' ') - begin + 1);
#else
  return "cpu";
#endif
}

}  // namespace lily::cpu
