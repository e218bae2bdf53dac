#include "tests/blocks/implementations.h"

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/cpu/kernels.h"
#include "reference/blocks.h"

namespace lily::test {

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
                     .router = 1e-5}});
    for (const cpu::IsaListing& isa : cpu::list_isas()) {
      if (isa.usable) {
        list.push_back({"cpu-" + std::string(isa.kernels->name),
                        [kernels = isa.kernels](unsigned threads) -> Result<std::unique_ptr<host::Blocks>> {
                          return std::unique_ptr<host::Blocks>(
                              std::make_unique<cpu::CpuBlocks>(*kernels, threads));
                        },
                        {.embed = 0,
                         .delta_net = 5e-4,
                         .attention = 4e-3,
                         .moe = 3e-4,
                         .head = 5e-5,
                         .state = 1e-4,
                         .model = 1e-2,
                         .router = 3e-4}});
      }
    }
    return list;
  }();
  return all;
}

}  // namespace lily::test
