#include "backends/cuda/pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace lily::cuda {
namespace {

constexpr uint32_t kHalfRows = kTileRows / 2;
constexpr uint32_t kRowBytes = kTileCols / 2;  // of one plane in a tile

// One row of a block: its part, and its index there. Empty for padding.
struct SourceRow {
  const AffineMatrix* part = nullptr;
  uint32_t row = 0;
};

SourceRow source_row(const Recipe& recipe, uint32_t matrix, uint32_t block, uint32_t r) {
  const std::vector<AffineMatrix>& parts = recipe.matrices[matrix];
  if (recipe.interleaved) {
    const AffineMatrix& part = parts[r / kHalfRows];
    const uint32_t row = block * kHalfRows + r % kHalfRows;
    return row < part.rows ? SourceRow{&part, row} : SourceRow{};
  }
  uint32_t row = block * kTileRows + r;
  for (const AffineMatrix& part : parts) {
    if (row < part.rows) {
      return {&part, row};
    }
    row -= part.rows;
  }
  return {};
}

using PlaneRow = std::array<uint8_t, kRowBytes>;  // two inputs a byte, the first in the low bits

// The nibbles of one plane of 64 codes of a row.
PlaneRow plane_row(const SourceRow& source, uint32_t tile, uint32_t plane) {
  PlaneRow out{};
  if (source.part == nullptr) {
    return out;
  }
  const AffineMatrix& part = *source.part;
  const std::byte* codes =
      part.codes + size_t{source.row} * part.cols * part.bits / 8 + size_t{tile} * kTileCols * part.bits / 8;
  if (part.bits == 4) {
    if (plane == 0) {
      std::memcpy(out.data(), codes, kRowBytes);
    }
    return out;
  }
  for (uint32_t i = 0; i < kRowBytes; ++i) {
    const uint32_t low = (std::to_integer<uint32_t>(codes[2 * i]) >> (4 * plane)) & 15U;
    const uint32_t high = (std::to_integer<uint32_t>(codes[2 * i + 1]) >> (4 * plane)) & 15U;
    out[i] = static_cast<uint8_t>(low | high << 4U);
  }
  return out;
}

void pack_plane(const std::array<PlaneRow, kTileRows>& rows, uint8_t* out) {
  for (uint32_t g = 0; g < kHalfRows; ++g) {
    const PlaneRow& upper = rows[g];
    const PlaneRow& lower = rows[g + kHalfRows];
    for (uint32_t j = 0; j < 4; ++j) {
      for (uint32_t t = 0; t < 4; ++t) {
        const std::array<uint32_t, 4> bytes{upper[8 * j + t], lower[8 * j + t], upper[8 * j + t + 4],
                                            lower[8 * j + t + 4]};
        uint32_t word = 0;
        for (uint32_t i = 0; i < 4; ++i) {
          word |= (bytes[i] & 15U) << (4 * i) | (bytes[i] >> 4U) << (16 + 4 * i);
        }
        std::memcpy(out + (g * 4 + t) * 16 + j * 4, &word, sizeof(word));
      }
    }
  }
}

void pack_scales(const std::array<SourceRow, kTileRows>& sources, const PackedMatrix& form, uint32_t tile,
                 uint8_t* out) {
  const uint32_t halves = form.wide != 0 ? 2 : 1;
  for (uint32_t half = 0; half < halves; ++half) {
    for (uint32_t r = 0; r < kTileRows; ++r) {
      if (sources[r].part == nullptr) {
        continue;  // `out` was cleared
      }
      const AffineMatrix& part = *sources[r].part;
      const size_t index = size_t{sources[r].row} * (part.cols / part.group) +
                           (tile * kTileCols + half * kTileCols / 2) / part.group;
      if (form.wide != 0) {
        const std::array<float, 2> pair{load_float(part.scales, part.scale_type, index),
                                        load_float(part.biases, part.scale_type, index)};
        std::memcpy(out + (half * kTileRows + r) * sizeof(pair), pair.data(), sizeof(pair));
      } else {
        std::memcpy(out + r * 4, part.scales + index * 2, 2);
        std::memcpy(out + r * 4 + 2, part.biases + index * 2, 2);
      }
    }
  }
}

}  // namespace

Result<PackedMatrix> packed_form(const Recipe& recipe, std::string_view name) {
  LILY_CHECK(!recipe.matrices.empty() && !recipe.matrices[0].empty());
  PackedMatrix form{};
  form.matrices = static_cast<uint32_t>(recipe.matrices.size());
  form.planes = 1;
  for (const AffineMatrix& part : recipe.matrices[0]) {
    form.rows += part.rows;
  }
  const uint32_t cols = recipe.matrices[0][0].cols;
  for (const std::vector<AffineMatrix>& parts : recipe.matrices) {
    uint32_t rows = 0;
    for (const AffineMatrix& part : parts) {
      LILY_CHECK(part.experts == 1 && part.cols == cols);
      LILY_CHECK(!recipe.interleaved || (parts.size() == 2 && part.rows == parts[0].rows));
      rows += part.rows;
      if (part.cols % kTileCols != 0 || (part.bits != 4 && part.bits != 8) ||
          (part.group != 32 && part.group % kTileCols != 0)) {
        return fail(
            ErrorKind::unsupported,
            "device 'cuda': {}: expected codes of 4 or 8 bits, groups of 32, 64 or 128 and a multiple of "
            "{} inputs, found {} bits, groups of {} and {} inputs",
            name, kTileCols, part.bits, part.group, part.cols);
      }
      form.planes = std::max(form.planes, part.bits / 4);
      if (part.group == 32 || part.scale_type != DType::bf16) {
        form.wide = 1;
      }
    }
    LILY_CHECK(rows == form.rows);
  }
  form.row_blocks = recipe.interleaved ? (form.rows / 2 + kHalfRows - 1) / kHalfRows
                                       : (form.rows + kTileRows - 1) / kTileRows;
  form.k_tiles = cols / kTileCols;
  form.tile_bytes = tile_bytes_of(form.planes, form.wide);
  form.matrix_bytes = form.row_blocks * block_bytes(form);
  return form;
}

void pack_block(const Recipe& recipe, const PackedMatrix& form, uint32_t matrix, uint32_t block,
                uint8_t* out) {
  std::array<SourceRow, kTileRows> sources;
  for (uint32_t r = 0; r < kTileRows; ++r) {
    sources[r] = source_row(recipe, matrix, block, r);
  }
  for (uint32_t tile = 0; tile < form.k_tiles; ++tile, out += form.tile_bytes) {
    std::array<PlaneRow, kTileRows> rows;
    for (uint32_t plane = 0; plane < form.planes; ++plane) {
      for (uint32_t r = 0; r < kTileRows; ++r) {
        rows[r] = plane_row(sources[r], tile, plane);
      }
      pack_plane(rows, out + plane * kPlaneBytes);
    }
    uint8_t* scales = out + form.planes * kPlaneBytes;
    std::memset(scales, 0, form.tile_bytes - form.planes * kPlaneBytes);
    pack_scales(sources, form, tile, scales);
  }
}

}  // namespace lily::cuda
