#include "backends/cpu/backend.h"

#include <algorithm>

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/cpu/kernels.h"
#include "backends/host/host_backend.h"
#include "base/log.h"
#include "base/threads.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options) {
  LILY_TRY(const cpu::Kernels* kernels, cpu::choose_kernels(options.isa));
  // Threads beyond the cores would have to wait for each other's turns, region by region.
  const unsigned cores = usable_cores();
  if (options.threads > cores) {
    log_warn("{} threads were asked for, this process may use {} cores: it computes with {} threads",
             options.threads, cores, cores);
  }
  auto blocks =
      std::make_unique<cpu::CpuBlocks>(*kernels, std::min(options.threads, cores), options.packed_cache);
  DeviceInfo device{
      .name = "cpu",
      .description = fmt::format("{}, {} thread{}, {}", cpu::processor_name(), blocks->threads(),
                                 blocks->threads() == 1 ? "" : "s", kernels->name),
      .memory_bytes = host::memory_bytes(),
      .peak_bytes_per_second = 0,
      .features = {}};
  if (kernels->halves) {  // what is multiplied in bf16 where a prompt is read is not where an answer is
    device.reading = {.single_rows = Limits::kDefaultChunk, .unit = cpu::kDeltaChunk};
  }
  for (const cpu::IsaListing& isa : cpu::list_isas()) {
    if (isa.usable) {
      device.features.emplace_back(isa.kernels->name);
    }
  }
  return std::unique_ptr<Backend>(std::make_unique<host::HostBackend>(std::move(device), std::move(blocks)));
}

}  // namespace lily
