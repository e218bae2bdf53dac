// The packed matrices of a model in a file of their own (--repack-cache), which is mapped in place of
// packing. Little-endian: a header of one page, then every matrix in the order of for_each_matrix(), each at
// the next multiple of a page.
#pragma once

#include <filesystem>

#include "backends/cpu/packed_model.h"

namespace lily::cpu {

inline constexpr uint32_t kPackedVersion = 2;  // changes with the packed form

// Maps `path` and sets the data of all matrices of `model` (packed_forms(weights)). Refused, with the reason,
// unless the file is complete, of this version and of these formats, and some blocks of each matrix are those
// that packing `weights` gives. Nothing else of the file is read if the file system says that it was not
// changed since it was written; else all of it, and the hash that it was written with must be its own. What
// changes behind the file system's back, on the disk itself, goes unnoticed.
Result<void> map_packed(const std::filesystem::path& path, const ModelWeights& weights, PackedModel& model);

// Writes a packed model to `path`, which appears complete or not at all.
Result<void> write_packed(const std::filesystem::path& path, const ModelWeights& weights, PackedModel& model);

}  // namespace lily::cpu
