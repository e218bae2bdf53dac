// Random weights that need no file: a checkpoint made in memory-backed storage whose names are gone once it
// is mapped, so that nothing is left behind whatever happens later.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>

#include "base/result.h"
#include "weights/bind.h"
#include "weights/synth.h"

namespace lily::app {

// Synthesises and maps, with progress on stderr. `scratch` is the folder to make it in; empty: a
// memory-backed one that has room, and the error says with numbers why none has. WeightFile::folder() no
// longer exists.
Result<std::unique_ptr<WeightFile>> make_random_model(const SynthOptions& options,
                                                      const std::filesystem::path& scratch);

}  // namespace lily::app
