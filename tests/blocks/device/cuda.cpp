#include "backends/cuda/backend.h"
#include "tests/blocks/device/cuda_blocks.h"
#include "tests/blocks/implementations.h"

namespace lily::test {

std::vector<Implementation> cuda_implementations() {
  Implementation cuda{.name = "cuda",
                      .make = [](unsigned) { return CudaBlocks::create(); },
                      .tolerances = {.embed = 0,
                                     .delta_net = 4e-2,
                                     .attention = 1e-2,
                                     .moe = 1e-2,
                                     .head = 5e-3,
                                     .state = 1e-2,
                                     .model = 6e-2,
                                     .router = 1e-2,
                                     .worst_row = 0.3},
                      .make_backend = [](unsigned, const ModelWeights& weights,
                                         const Plan& plan) -> Result<std::unique_ptr<Backend>> {
                        LILY_TRY(std::unique_ptr<cuda::CudaBackend> backend, cuda::CudaBackend::create());
                        LILY_TRY_VOID(backend->load(weights, plan, [](double) {}));
                        return std::unique_ptr<Backend>(std::move(backend));
                      }};
  if (const auto device = cuda::CudaBackend::create(); !device) {
    cuda.unusable = device.error().message;
  }
  return {cuda};
}

}  // namespace lily::test
