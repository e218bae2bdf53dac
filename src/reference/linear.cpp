#include "reference/linear.h"

#include <algorithm>
#include <vector>

#include "weights/formats/affine.h"

namespace lily::reference {
namespace {

// Rows of weights that are dequantised together: enough to use a row of inputs several times while both are
// in the cache.
constexpr size_t kTileRows = 8;

}  // namespace

float dot(const float* a, const float* b, uint32_t n) {
  constexpr uint32_t kSums = 16;
  float sums[kSums] = {};
  for (; n >= kSums; n -= kSums, a += kSums, b += kSums) {
    for (size_t s = 0; s < kSums; ++s) {
      sums[s] += a[s] * b[s];
    }
  }
  for (size_t s = 0; s < n; ++s) {
    sums[s] += a[s] * b[s];
  }
  for (uint32_t half = kSums / 2; half > 0; half /= 2) {
    for (uint32_t s = 0; s < half; ++s) {
      sums[s] += sums[s + half];
    }
  }
  return sums[0];
}

void linear(ThreadPool& pool, const AffineMatrix& w, const float* x, uint32_t rows, float* y) {
  pool.for_each(w.rows, kTileRows, [&](size_t begin, size_t end) {
    std::vector<float> tile(kTileRows * w.cols);
    for (size_t first = begin; first < end; first += kTileRows) {
      const size_t count = std::min(kTileRows, end - first);
      for (size_t o = 0; o < count; ++o) {
        dequantize_row(w, static_cast<uint32_t>(first + o), {tile.data() + o * w.cols, w.cols});
      }
      for (size_t r = 0; r < rows; ++r) {
        for (size_t o = 0; o < count; ++o) {
          y[r * w.rows + first + o] = dot(tile.data() + o * w.cols, x + r * w.cols, w.cols);
        }
      }
    }
  });
}

void rms_norm(const float* x, const float* weight, uint32_t n, float* y) {
  const float mean = dot(x, x, n) / static_cast<float>(n);
  const float factor = 1.0F / std::sqrt(mean + Shape::kNormEps);
  for (uint32_t i = 0; i < n; ++i) {
    y[i] = x[i] * factor * weight[i];
  }
}

}  // namespace lily::reference
