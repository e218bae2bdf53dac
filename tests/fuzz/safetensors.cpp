// Header parser of safetensors files: no input may crash it, and what it accepts lies inside the image.
#include <cstdlib>

#include "weights/container.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> image(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = lily::parse_safetensors(image, "fuzz.safetensors");
  if (!tensors) {
    if (tensors.error().message.empty() || tensors.error().details.size() > 300) {
      std::abort();
    }
    return 0;
  }
  uint64_t total = 0;
  for (const lily::StoredTensor& tensor : *tensors) {
    uint64_t bytes = lily::size_of(tensor.type);
    for (const uint64_t side : tensor.shape) {
      bytes *= side;
    }
    const bool inside =
        tensor.data.empty() || (tensor.data.data() >= image.data() &&
                                tensor.data.data() + tensor.data.size() <= image.data() + size);
    if (!inside || (tensor.type != lily::DType::other && bytes != tensor.data.size())) {
      std::abort();
    }
    total += tensor.data.size();
  }
  if (total > size) {
    std::abort();  // tensors overlap
  }
  return 0;
}
