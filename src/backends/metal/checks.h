// What every implementation of device.h checks alike. Each returns what is wrong, or nothing.
#pragma once

#include <string>
#include <string_view>

#include "backends/metal/device.h"

namespace lily::metal {

std::string fault_of_binding(uint32_t index, size_t size, size_t offset, size_t bytes);
std::string fault_of_bytes(uint32_t index, size_t bytes);
std::string fault_of_threadgroup(uint32_t index, size_t bytes);
std::string fault_of_dispatch(Size3 groups, Size3 threads, uint64_t max_threads);
Result<void> check_buffer(size_t bytes, const Traits& traits, std::string_view label);
Result<void> check_mapping(const void* address, size_t bytes, const Traits& traits, std::string_view label);

}  // namespace lily::metal
