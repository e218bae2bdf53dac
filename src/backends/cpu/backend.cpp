#include "backends/cpu/backend.h"

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/cpu/kernels.h"
#include "backends/host/host_backend.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options) {
  LILY_TRY(const cpu::Kernels* kernels, cpu::choose_kernels(options.isa));
  auto blocks = std::make_unique<cpu::CpuBlocks>(*kernels, options.threads, options.packed_cache);
  DeviceInfo device{
      .name = "cpu",
      .description = fmt::format("{}, {} thread{}, {}", cpu::processor_name(), blocks->threads(),
                                 blocks->threads() == 1 ? "" : "s", kernels->name),
      .memory_bytes = host::memory_bytes(),
      .peak_bytes_per_second = 0,
      .features = {}};
  for (const cpu::IsaListing& isa : cpu::list_isas()) {
    if (isa.usable) {
      device.features.emplace_back(isa.kernels->name);
    }
  }
  return std::unique_ptr<Backend>(std::make_unique<host::HostBackend>(std::move(device), std::move(blocks)));
}

}  // namespace lily
