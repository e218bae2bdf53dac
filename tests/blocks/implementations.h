// The implementations that the block and model tests run over. To add one, add an entry in
// implementations.cpp; its tolerances are those of docs/NUMERICS.md.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backends/host/blocks.h"

namespace lily::test {

// The largest norm of a difference over the norm of the reference, per row of what a block adds to the
// stream.
struct Tolerances {
  double embed;
  double delta_net;
  double attention;
  double moe;
  double head;
  double state;  // of the recurrent states after a block
  double model;  // of the logits of kTiny, all layers
  double
      router;  // absolute, of a router logit: rows whose eighth and ninth expert are closer are not compared
  // Of the logits of the worst row, where rounding may choose another expert for it; 0: as `model`.
  double worst_row = 0;
};

struct Implementation {
  std::string name;
  std::function<Result<std::unique_ptr<host::Blocks>>(unsigned threads)> make;
  Tolerances tolerances;
  // The backend with these weights loaded; they must outlive it.
  std::function<Result<std::unique_ptr<Backend>>(unsigned threads, const ModelWeights& weights,
                                                 const Plan& plan)>
      make_backend;
  std::string unusable{};     // why its tests are skipped on this machine, if they are
  uint32_t reading_unit = 1;  // ReadingTraits::unit of what make() makes
};
inline void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }

// Those that this machine can run, the reference first, and those of devices that this build has.
const std::vector<Implementation>& implementations();

// In tests/blocks/device: what computes in memory of its own. Empty where this build has no such device.
std::vector<Implementation> cuda_implementations();
std::vector<Implementation> metal_implementations();  // the emulated device

}  // namespace lily::test
