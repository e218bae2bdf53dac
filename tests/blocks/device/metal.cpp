#include "backends/metal/backend.h"
#include "tests/blocks/device/metal_blocks.h"
#include "tests/blocks/device/metal_device.h"
#include "tests/blocks/implementations.h"

namespace lily::test {

// The number of threads seeds the emulator's orders of execution, which no result may depend on.
std::vector<Implementation> metal_implementations() {
  Implementation metal{
      .name = kMetalName,
      .make = [](unsigned threads) -> Result<std::unique_ptr<host::Blocks>> {
        return std::unique_ptr<host::Blocks>(std::make_unique<MetalBlocks>(
            [threads](bool checked) { return metal_device({.seed = threads, .checked = checked}); }));
      },
      .tolerances = {.embed = 0,
                     .delta_net = 1e-5,
                     .attention = 4e-3,
                     .moe = 1e-5,
                     .head = 1e-5,
                     .state = 1e-5,
                     .model = 1e-2,
                     .router = 2e-5},
      .make_backend = [](unsigned threads, const ModelWeights& weights,
                         const Plan& plan) -> Result<std::unique_ptr<Backend>> {
        LILY_TRY(auto device, metal_device({.seed = threads}));
        auto backend = std::make_unique<metal::MetalBackend>(std::move(device), kMetalName);
        LILY_TRY_VOID(backend->load(weights, plan, [](double) {}));
        return std::unique_ptr<Backend>(std::move(backend));
      }};
  if (const auto device = metal_device({}); !device) {
    metal.unusable = device.error().message;
  }
  return {metal};
}

}  // namespace lily::test
