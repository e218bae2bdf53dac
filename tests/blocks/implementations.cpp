#include "tests/blocks/implementations.h"

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/cpu/kernels.h"
#include "backends/host/host_backend.h"
#include "reference/blocks.h"
#include "tests/amx_emulator/emulated.h"

namespace lily::test {
namespace {

// With products of bf16 for long segments.
constexpr Tolerances kHalves{.embed = 0,
                             .delta_net = 3.5e-2,
                             .attention = 8e-3,
                             .moe = 1.6e-2,
                             .head = 5e-5,
                             .state = 1e-2,
                             .model = 3e-2,
                             .router = 3e-4,
                             .worst_row = 0.3};

auto host_backend(const Implementation& implementation) {
  return [name = implementation.name, make = implementation.make, unit = implementation.reading_unit](
             unsigned threads, const ModelWeights& weights,
             const Plan& plan) -> Result<std::unique_ptr<Backend>> {
    LILY_TRY(std::unique_ptr<host::Blocks> blocks, make(threads));
    auto backend = std::make_unique<host::HostBackend>(
        DeviceInfo{.name = name, .reading = {.single_rows = 0, .unit = unit}}, std::move(blocks));
    LILY_TRY_VOID(backend->load(weights, plan, [](double) {}));
    return std::unique_ptr<Backend>(std::move(backend));
  };
}

}  // namespace

const std::vector<Implementation>& implementations() {
  static const std::vector<Implementation> all = [] {
    std::vector<Implementation> list;
    list.push_back({"reference",
                    [](unsigned threads) -> Result<std::unique_ptr<host::Blocks>> {
                      return std::unique_ptr<host::Blocks>(
                          std::make_unique<reference::ReferenceBlocks>(threads));
                    },
                    {.embed = 0,
                     .delta_net = 1e-5,
                     .attention = 1e-5,
                     .moe = 1e-5,
                     .head = 1e-5,
                     .state = 1e-5,
                     .model = 1e-4,
                     .router = 1e-5},
                    {}});
    std::vector<cpu::IsaListing> isas = cpu::list_isas();
    isas.push_back({cpu::test::emulated_amx_kernels(), cpu::test::can_emulate_amx()});
    isas.push_back({cpu::test::emulated_amx_bf16_kernels(), cpu::test::can_emulate_amx()});
    for (const cpu::IsaListing& isa : isas) {
      if (isa.usable) {
        list.push_back({"cpu-" + std::string(isa.kernels->name),
                        [kernels = isa.kernels](unsigned threads) -> Result<std::unique_ptr<host::Blocks>> {
                          return std::unique_ptr<host::Blocks>(
                              std::make_unique<cpu::CpuBlocks>(*kernels, threads));
                        },
                        isa.kernels->halves ? kHalves
                                            : Tolerances{.embed = 0,
                                                         .delta_net = 5e-4,
                                                         .attention = 4e-3,
                                                         .moe = 1.6e-2,
                                                         .head = 5e-5,
                                                         .state = 1e-4,
                                                         .model = 3e-2,
                                                         .router = 3e-4},
                        {}});
        list.back().reading_unit = isa.kernels->halves ? cpu::kDeltaChunk : 1;
      }
    }
    for (Implementation& implementation : list) {
      implementation.make_backend = host_backend(implementation);
    }
    for (auto* of_device : {cuda_implementations, metal_implementations}) {
      for (Implementation& implementation : of_device()) {
        list.push_back(std::move(implementation));
      }
    }
    return list;
  }();
  return all;
}

}  // namespace lily::test
