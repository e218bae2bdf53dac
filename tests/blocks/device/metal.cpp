#include "backends/metal/backend.h"
#include "tests/blocks/device/metal_blocks.h"
#include "tests/blocks/implementations.h"
#include "tests/metal_emulator/modules.h"

namespace lily::test {

// The emulated device; the number of threads seeds its orders of execution, which no result may depend on.
std::vector<Implementation> metal_implementations() {
  const auto device = [](unsigned threads) {
    return metal::make_emulated_device(
        {.seed = threads, .checked = false, .modules = metal::kernel_modules()});
  };
  return {{"metal-emulated",
           [device](unsigned threads) -> Result<std::unique_ptr<host::Blocks>> {
             return std::unique_ptr<host::Blocks>(std::make_unique<MetalBlocks>(device(threads)));
           },
           {.embed = 0,
            .delta_net = 2e-5,
            .attention = 4e-3,
            .moe = 1e-5,
            .head = 1e-5,
            .state = 1e-5,
            .model = 1e-2,
            .router = 3e-5},
           [device](unsigned threads, const ModelWeights& weights,
                    const Plan& plan) -> Result<std::unique_ptr<Backend>> {
             auto backend = std::make_unique<metal::MetalBackend>(device(threads), "metal-emulated");
             LILY_TRY_VOID(backend->load(weights, plan, [](double) {}));
             return std::unique_ptr<Backend>(std::move(backend));
           }}};
}

}  // namespace lily::test
