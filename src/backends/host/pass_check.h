// What a pass must keep to whatever memory its states are in, checked before anything of it is done.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/backend.h"
#include "base/function_ref.h"

namespace lily::host {

// What the checks ask of a state.
struct StateFacts {
  bool failed = false;       // a pass left it unusable
  bool provisional = false;  // rows wait for accept()
  bool samples = false;      // the last submitted pass samples a token for it
  uint32_t length = 0;
  uint32_t max_tokens = 0;
};
// nullopt: not a state of the backend that asks.
using FactsOf = FunctionRef<std::optional<StateFacts>(const SequenceState*)>;

// Checks a whole pass and changes nothing. A message names the slice by its index in the pass.
Result<void> check_pass(const Pass& pass, const Plan& plan, FactsOf facts_of);

}  // namespace lily::host
