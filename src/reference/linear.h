// The arithmetic that the reference blocks share, in float32.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/threads.h"
#include "model/tensors.h"

namespace lily::reference {

// sum of a[i]*b[i]: product i goes into partial sum i mod 16, and these are added in a tree. The error is
// that of sums of n/16 terms, and the order never changes.
float dot(const float* a, const float* b, uint32_t n);

// y[r][o] = sum over i of w[o][i] * x[r][i], w dequantised a few rows at a time. x: [rows][w.cols],
// y: [rows][w.rows].
void linear(ThreadPool& pool, const AffineMatrix& w, const float* x, uint32_t rows, float* y);

// Equation 1: y = x * rsqrt(mean(x^2) + eps) * weight, over n values. `weight` has the +1 folded in already.
// x may be y.
void rms_norm(const float* x, const float* weight, uint32_t n, float* y);

inline float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
inline float silu(float x) { return x / (1.0F + std::exp(-x)); }
// Linear above 20, where log1p(exp(x)) is x in float32.
inline float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

}  // namespace lily::reference
