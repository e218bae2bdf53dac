// The host implementations that the block and model tests run over. To add one, add an entry in
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
};

struct Implementation {
  std::string name;
  std::function<Result<std::unique_ptr<host::Blocks>>(unsigned threads)> make;
  Tolerances tolerances;
};
inline void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }

// Those that this machine can run, the reference first.
const std::vector<Implementation>& implementations();

}  // namespace lily::test
