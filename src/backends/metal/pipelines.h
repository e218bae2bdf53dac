// The compiled kernels: every library once, every kernel once for each set of function constants.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/metal/device.h"
#include "model/tensors.h"

namespace lily::metal {

// Bits, group size and type of scales: what the kernels are specialised for.
struct MatrixFormat {
  uint32_t bits, group, scale_kind;
};
MatrixFormat format_of(const AffineMatrix& matrix);

class Pipelines {
 public:
  // Compiles all libraries.
  static Result<std::unique_ptr<Pipelines>> open(Device& device);

  // A kernel of `library` with its function constants in the order of their indices. Made on first use and
  // kept; fails where it cannot run `threads` threads in a threadgroup.
  struct Wanted {
    std::string library;
    std::string kernel;
    std::vector<std::variant<bool, int32_t, uint32_t, float>> constants = {};
    uint32_t threads = 256;
  };
  Result<const Pipeline*> get(const Wanted& wanted);

 private:
  Pipelines() = default;
  std::map<std::string, std::unique_ptr<Library>> libraries_;
  std::map<std::string, std::unique_ptr<Pipeline>> made_;
};

}  // namespace lily::metal
