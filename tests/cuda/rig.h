// What tests of the CUDA kernels share: the device or the reason to skip, arrays in its memory, packed random
// matrices, and the comparison of rows. Needs a GPU to do anything: without one every test skips itself.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/dims.h"
#include "backends/cuda/kernels/prefill_launch.h"
#include "backends/cuda/pack.h"
#include "base/dtype.h"
#include "base/threads.h"
#include "tests/support/random_weights.h"
#include "weights/formats/affine.h"

namespace lily::cuda::test {

using lily::test::normal;
using lily::test::uniform;

// The first GPU; processors == 0 where there is none.
inline prefill::Device find_device() {
  int count = 0;
  cudaDeviceProp properties{};
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    return {};
  }
  return {.processors = static_cast<uint32_t>(properties.multiProcessorCount),
          .shared_bytes = static_cast<uint32_t>(properties.sharedMemPerBlockOptin),
          .queue = nullptr};
}

class NeedsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = find_device();
    if (device_.processors == 0) {
      GTEST_SKIP() << "no usable NVIDIA GPU";
    }
  }
  prefill::Device device_{};
};

// Waits for the device; a failed launch or an access out of bounds shows here.
inline void expect_success() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
}

// Device memory. New memory is full of NaN patterns, so that a value nobody wrote is noticed.
template <typename T>
class Array {
 public:
  explicit Array(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xFF, count * sizeof(T)), cudaSuccess);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) { upload(values); }
  Array(Array&& other) noexcept : count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }

  T* get() const { return data_; }
  size_t size() const { return count_; }
  void upload(const std::vector<T>& values) {
    ASSERT_EQ(values.size(), count_);
    ASSERT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

inline std::vector<float> to_floats(const std::vector<uint16_t>& values) {
  std::vector<float> floats(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    floats[i] = bf16_to_float(values[i]);
  }
  return floats;
}
inline float rounded(float x) { return bf16_to_float(float_to_bf16(x)); }
inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = float_to_bf16(values[i]);
  }
  return out;
}
// Roughly normal values times `scale`.
inline std::vector<float> random_values(size_t count, uint64_t seed, float scale = 1.0F) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = scale * normal(seed, i);
  }
  return values;
}

inline ThreadPool& pool() {
  static ThreadPool threads(0);
  return threads;
}
// body(i) for i < count on all cores.
inline void parallel(size_t count, const std::function<void(size_t)>& body) {
  pool().for_each(count, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      body(i);
    }
  });
}

// Norm of the difference over the norm of what is expected; NaN if anything found is.
inline double distance(std::span<const float> found, std::span<const float> expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}
// Each row of `width` values is as near as `tolerance`.
inline void expect_rows(std::span<const float> found, std::span<const float> expected, size_t width,
                        double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  size_t wrong = 0;
  double worst = 0;
  for (size_t row = 0; row < expected.size() / width; ++row) {
    const double d = distance(found.subspan(row * width, width), expected.subspan(row * width, width));
    if (!(d <= tolerance)) {
      if (wrong++ == 0) {
        ADD_FAILURE() << "row " << row << " is off by " << d << ", tolerance " << tolerance;
      }
    }
    worst = std::isnan(d) ? d : std::max(worst, d);
  }
  ::testing::Test::RecordProperty("worst", std::to_string(worst));
  EXPECT_EQ(wrong, 0U) << "of " << expected.size() / width << " rows";
}

// A stack of affine matrices with random codes, and its packed form on the device.
struct MatrixOptions {
  uint32_t rows;
  uint32_t cols;
  uint32_t bits = 4;
  uint32_t group = 64;
  DType scale_type = DType::bf16;
  uint64_t seed = 1;
};

class RandomMatrix {
 public:
  explicit RandomMatrix(const MatrixOptions& options) {
    matrix_.rows = options.rows;
    matrix_.cols = options.cols;
    matrix_.bits = options.bits;
    matrix_.group = options.group;
    matrix_.scale_type = options.scale_type;
    codes_.resize(matrix_.code_bytes());
    for (size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = static_cast<std::byte>(lily::test::mix(options.seed * 977 + i) >> 20);
    }
    scales_.resize(matrix_.scale_bytes());
    biases_.resize(matrix_.scale_bytes());
    const float top = static_cast<float>((1U << options.bits) - 1);
    const float unit = std::sqrt(12.0F / static_cast<float>(options.cols)) / (top + 1);
    for (size_t i = 0; i < scales_.size() / size_of(options.scale_type); ++i) {
      const float scale =
          unit * uniform(options.seed + 1, i, 0.6F, 1.4F) * (lily::test::mix(i) % 2 == 0 ? 1.0F : -1.0F);
      store(scales_.data(), i, scale);
      store(biases_.data(), i, -scale * top * uniform(options.seed + 2, i, 0.45F, 0.55F));
    }
    matrix_.codes = codes_.data();
    matrix_.scales = scales_.data();
    matrix_.biases = biases_.data();
  }
  RandomMatrix(RandomMatrix&&) = default;  // the vectors keep their memory
  const AffineMatrix& get() const { return matrix_; }

  // [rows][cols]. Products are made of weights rounded to bf16; `exact` leaves them as they are.
  std::vector<float> weights(bool exact = false) const {
    std::vector<float> all(size_t{matrix_.rows} * matrix_.cols);
    parallel(matrix_.rows, [&](size_t row) {
      const std::span<float> out(all.data() + row * matrix_.cols, matrix_.cols);
      dequantize_row(matrix_, static_cast<uint32_t>(row), out);
      for (float& w : out) {
        w = exact ? w : rounded(w);
      }
    });
    return all;
  }

 private:
  void store(std::byte* at, size_t index, float value) const {
    if (matrix_.scale_type == DType::f32) {
      std::memcpy(at + index * 4, &value, 4);
    } else {
      const uint16_t bits = matrix_.scale_type == DType::bf16 ? float_to_bf16(value) : float_to_f16(value);
      std::memcpy(at + index * 2, &bits, 2);
    }
  }
  std::vector<std::byte> codes_, scales_, biases_;
  AffineMatrix matrix_;
};

class Packed {
 public:
  explicit Packed(const Recipe& recipe) : form_(form_of(recipe)), memory_(packed_bytes(form_)) {
    std::vector<uint8_t> host(packed_bytes(form_));
    parallel(size_t{form_.matrices} * form_.row_blocks, [&](size_t i) {
      const auto matrix = static_cast<uint32_t>(i / form_.row_blocks);
      const auto block = static_cast<uint32_t>(i % form_.row_blocks);
      pack_block(recipe, form_, matrix, block,
                 host.data() + matrix * form_.matrix_bytes + block * block_bytes(form_));
    });
    memory_.upload(host);
    form_.tiles = memory_.get();
  }
  explicit Packed(const RandomMatrix& matrix) : Packed(Recipe{.matrices = {{matrix.get()}}}) {}
  const PackedMatrix& get() const { return form_; }

 private:
  static PackedMatrix form_of(const Recipe& recipe) {
    auto form = packed_form(recipe, "test");
    LILY_CHECK(form.has_value());
    return *form;
  }
  PackedMatrix form_;
  Array<uint8_t> memory_;
};

// y[token][output] = w x in double.
inline std::vector<float> product(const std::vector<float>& w, const std::vector<float>& x, size_t cols) {
  const size_t rows = w.size() / cols;
  const size_t tokens = x.size() / cols;
  std::vector<float> y(tokens * rows);
  parallel(rows, [&](size_t row) {
    for (size_t token = 0; token < tokens; ++token) {
      double parts[8] = {};
      for (size_t i = 0; i < cols; i += 8) {
        for (size_t j = 0; j < 8; ++j) {
          parts[j] +=
              static_cast<double>(w[row * cols + i + j]) * static_cast<double>(x[token * cols + i + j]);
        }
      }
      double sum = 0;
      for (const double part : parts) {
        sum += part;
      }
      y[token * rows + row] = static_cast<float>(sum);
    }
  });
  return y;
}

inline Dims dims_of(const Shape& shape) {
  Dims dims = cuda::dims_of(shape);
  dims.layers = 4;
  return dims;
}

}  // namespace lily::cuda::test
