#include "weights/fingerprint.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace lily {

Hash128 fingerprint(const WeightFile& file) {
  constexpr size_t kSample = 4096;
  std::vector<const StoredTensor*> tensors;
  for (const StoredTensor& tensor : file.container().tensors()) tensors.push_back(&tensor);
  // The same in whatever order and number of files they lie.
  std::ranges::sort(tensors, {}, [](const StoredTensor* tensor) { return std::string_view(tensor->name); });
  Hasher hasher;
  hasher.update(fmt::format("{} {}\n", file.shape().name, file.shape().layers));
  for (const StoredTensor* tensor : tensors) {
    hasher.update(fmt::format("{} {} {} {}\n", tensor->name, tensor->type_name, fmt::join(tensor->shape, "x"),
                              tensor->data.size()));
    const size_t size = tensor->data.size(), sample = std::min(size, kSample);
    for (const size_t at : {size_t{0}, (size - sample) / 2, size - sample}) {
      hasher.update(tensor->data.subspan(at, sample));
    }
  }
  return hasher.digest();
}

}  // namespace lily
