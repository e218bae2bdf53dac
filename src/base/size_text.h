// Amounts of memory for people.
#pragma once

#include <cstdint>
#include <string>

namespace lily {

// In the largest unit of a thousand that leaves a digit before the point: "5.25 GB", "67.1 MB", "512 kB",
// "90 bytes".
std::string size_text(uint64_t bytes);

}  // namespace lily
