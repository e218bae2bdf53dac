#include "backends/metal/checks.h"

namespace lily::metal {

std::string fault_of_binding(uint32_t index, size_t size, size_t offset, size_t bytes) {
  if (index >= kMaxBindings) {
    return fmt::format("a buffer at index {}: expected at most {}", index, kMaxBindings - 1);
  }
  if (offset > size || (bytes != Commands::kRest && bytes > size - offset)) {
    return fmt::format("a buffer of {} bytes at index {}: bytes [{}, +{}) are not in it", size, index, offset,
                       bytes);
  }
  if (offset % 4 != 0) {
    return fmt::format("a buffer at index {}: offset {} is not a multiple of 4", index, offset);
  }
  return {};
}

std::string fault_of_bytes(uint32_t index, size_t bytes) {
  if (index >= kMaxBindings || bytes == 0 || bytes > kMaxSetBytes) {
    return fmt::format("set_bytes at index {} with {} bytes: expected an index below {} and 1 to {} bytes",
                       index, bytes, kMaxBindings, kMaxSetBytes);
  }
  return {};
}

std::string fault_of_threadgroup(uint32_t index, size_t bytes) {
  if (index >= kMaxBindings || bytes % 16 != 0 || bytes > kThreadgroupBytes) {
    return fmt::format("threadgroup memory {} of {} bytes: expected a multiple of 16, at most {}", index,
                       bytes, kThreadgroupBytes);
  }
  return {};
}

std::string fault_of_dispatch(Size3 groups, Size3 threads, uint64_t max_threads) {
  if (groups.count() == 0 || groups.count() > UINT32_MAX) {
    return fmt::format("dispatch of {} x {} x {} threadgroups", groups.x, groups.y, groups.z);
  }
  if (threads.count() == 0 || threads.count() > max_threads || threads.count() % kSimdWidth != 0) {
    return fmt::format("{} x {} x {} threads of a threadgroup: expected a multiple of {}, at most {}",
                       threads.x, threads.y, threads.z, kSimdWidth, max_threads);
  }
  return {};
}

Result<void> check_buffer(size_t bytes, const Traits& traits, std::string_view label) {
  if (bytes == 0 || bytes > traits.max_buffer_bytes) {
    return fail(ErrorKind::limit, "metal buffer '{}': {} bytes, expected 1 to {}", label, bytes,
                traits.max_buffer_bytes);
  }
  return {};
}

Result<void> check_mapping(const void* address, size_t bytes, const Traits& traits, std::string_view label) {
  const bool whole =
      bytes % traits.page_bytes == 0 && reinterpret_cast<uintptr_t>(address) % traits.page_bytes == 0;
  if (bytes == 0 || !whole || bytes > traits.max_buffer_bytes) {
    return fail(ErrorKind::internal,
                "metal mapping '{}': {} bytes at {}: expected whole pages of {}, at most {} bytes", label,
                bytes, address, traits.page_bytes, traits.max_buffer_bytes);
  }
  return {};
}

}  // namespace lily::metal
