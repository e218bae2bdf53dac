// Where the weights lie. Tensors of a mapped file are used where they are: whole pages of the mapping become
// buffers without a copy. What has no mapping, or lies at an address that a kernel cannot read, is copied
// once, tensor by tensor and in the same layout.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/metal/encoder.h"
#include "base/function_ref.h"
#include "model/tensors.h"

namespace lily::metal {

// A matrix, or stack of them, in device memory, in the layout of the file.
struct Matrix {
  View codes, scales, biases;
  uint32_t rows = 0, cols = 0;
};

using Mappings = std::span<const std::span<const std::byte>>;  // of the files, whole

class Residency {
 public:
  struct Need {
    uint64_t copied = 0;  // bytes of buffers that load() allocates
    uint64_t mapped = 0;  // bytes of pages that are used in place
  };
  // Call add() for everything, then need() or load().
  void add(const AffineMatrix& matrix, Matrix& to);
  void add(std::vector<float> values, View& to);

  Need need(Mappings mappings, const Traits& traits) const;
  // Fills in all that was added. `mappings` must outlive this.
  Result<void> load(Device& device, Mappings mappings, FunctionRef<void(double)> progress);

 private:
  // One array of a matrix: codes, scales or biases.
  struct Piece {
    const std::byte* data;
    size_t bytes;
    View* to;
  };
  struct Values {
    std::vector<float> floats;
    View* to;
  };
  // Consecutive whole pages that become one buffer, and the pieces [first, first + count) of `order` in it.
  struct Window {
    const std::byte* begin;
    size_t bytes;
    std::vector<const Piece*> pieces;
  };
  std::vector<Window> windows(Mappings mappings, const Traits& traits,
                              std::vector<const Piece*>& copied) const;
  Result<void> copy(Device& device, std::span<const Piece* const> pieces, FunctionRef<void(double)> progress);

  std::vector<Piece> pieces_;
  std::vector<Values> values_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace lily::metal
