// Attention of prefill over pages of keys and values, against sums in double.
#include <algorithm>
#include <numeric>

#include "model/rope.h"
#include "tests/cuda/rig.h"

namespace lily::cuda::test {
namespace {

constexpr uint32_t kDim = kHeadDim;

struct Part {
  uint32_t position;
  uint32_t rows;
};

// A sequence's pages on the device, in a scattered order, and the rows before a position filled with random
// values.
class Pages {
 public:
  Pages(const Dims& dims, uint32_t tokens, uint32_t filled, uint64_t seed)
      : dims_(dims),
        count_((tokens + kPageTokens - 1) / kPageTokens),
        memory_(count_ * page_elements(dims)),
        table_(count_) {
    std::vector<uint16_t> host(memory_.size(), 0xFFFF);  // NaN: what was never written must not be read
    for (uint32_t which = 0; which < 2; ++which) {
      for (uint32_t head = 0; head < dims.kv_heads; ++head) {
        parallel(filled, [&](size_t token) {
          for (uint32_t i = 0; i < kDim; ++i) {
            const uint64_t index = ((which * dims_.kv_heads + head) * uint64_t{1000000} + token) * kDim + i;
            host[offset(static_cast<uint32_t>(token), which, head) + i] = float_to_bf16(normal(seed, index));
          }
        });
      }
    }
    memory_.upload(host);
    std::vector<uint16_t*> table(count_);
    for (uint32_t page = 0; page < count_; ++page) {
      table[page] = memory_.get() + place(page) * page_elements(dims);
    }
    table_.upload(table);
  }
  uint16_t* const* table() const { return table_.get(); }
  std::vector<uint16_t> download() const { return memory_.download(); }
  // Element of a token's row in the downloaded memory.
  size_t offset(uint32_t token, uint32_t which, uint32_t head) const {
    return place(token / kPageTokens) * page_elements(dims_) + page_offset(dims_, 0, which, head) +
           size_t{token % kPageTokens} * kDim;
  }

 private:
  size_t place(uint32_t page) const { return count_ - 1 - page; }
  Dims dims_;
  uint32_t count_;
  Array<uint16_t> memory_;
  Array<uint16_t*> table_;
};

std::vector<float> norm_and_turn(const float* x, const std::vector<float>& weight, uint32_t position) {
  double sum = 0;
  for (uint32_t i = 0; i < kDim; ++i) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  std::vector<float> y(kDim);
  for (uint32_t i = 0; i < kDim; ++i) {
    y[i] = static_cast<float>(x[i] / std::sqrt(sum / kDim + 1e-6)) * weight[i];
  }
  rotate(rotation_at(position), y.data());
  return y;
}

// Equations 8 and 9 for one head, from what is in the pages.
std::vector<float> attend(const Pages& pages, const std::vector<uint16_t>& memory, const float* q,
                          uint32_t context, uint32_t kv_head) {
  std::vector<double> weights(context);
  for (uint32_t t = 0; t < context; ++t) {
    const uint16_t* key = memory.data() + pages.offset(t, 0, kv_head);
    float parts[8] = {};
    for (uint32_t i = 0; i < kDim; i += 8) {
      for (uint32_t j = 0; j < 8; ++j) {
        parts[j] += q[i + j] * bf16_to_float(key[i + j]);
      }
    }
    weights[t] = std::accumulate(parts, parts + 8, 0.0) / 16;
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double total = 0;
  std::vector<double> sums(kDim, 0.0);
  for (uint32_t t = 0; t < context; ++t) {
    const double weight = std::exp(weights[t] - largest);
    total += weight;
    if (weight > 1e-12) {
      const uint16_t* value = memory.data() + pages.offset(t, 1, kv_head);
      for (uint32_t i = 0; i < kDim; ++i) {
        sums[i] += weight * static_cast<double>(bf16_to_float(value[i]));
      }
    }
  }
  std::vector<float> out(kDim);
  for (uint32_t i = 0; i < kDim; ++i) {
    out[i] = static_cast<float>(sums[i] / total);
  }
  return out;
}

class CudaPrefillAttention : public NeedsGpu {
 protected:
  struct Inputs {
    explicit Inputs(const Dims& d, uint32_t context) : dims(d) {
      q_norm = random_values(kDim, 71, 0.2F);
      k_norm = random_values(kDim, 72, 0.2F);
      for (uint32_t i = 0; i < kDim; ++i) {
        q_norm[i] += 1.3F;  // sharper than 1: some keys matter
        k_norm[i] += 1;
      }
      rotary.resize(size_t{context} * kRotaryDim);
      parallel(context, [&](size_t position) {
        const Rotation rotation = rotation_at(static_cast<uint32_t>(position));
        for (uint32_t j = 0; j < kRotaryPairs; ++j) {
          rotary[position * kRotaryDim + 2 * j] = rotation.cosine[j];
          rotary[position * kRotaryDim + 2 * j + 1] = rotation.sine[j];
        }
      });
    }
    Dims dims;
    std::vector<float> q_norm, k_norm, rotary;
  };

  // One pass over parts of as many sequences; checks every `step`-th row of each.
  void run_and_check(const Inputs& inputs, const std::vector<Part>& parts, uint32_t step) {
    const Dims& d = inputs.dims;
    std::vector<Pages> pages;
    std::vector<Segment> segments;
    uint32_t rows = 0;
    for (const Part& part : parts) {
      pages.emplace_back(d, part.position + part.rows, part.position, 81 + rows);
      segments.push_back({nullptr, pages.back().table(), rows, part.rows, part.position, 0});
      rows += part.rows;
    }
    const uint32_t width = 2 * q_width(d) + 2 * kv_width(d);
    const std::vector<uint16_t> mixed = to_bf16(random_values(size_t{rows} * width, 91));
    const Array<Segment> device_segments(segments);
    const Array<uint16_t> device_mixed(mixed);
    const Array<float> q_norm(inputs.q_norm);
    const Array<float> k_norm(inputs.k_norm);
    const Array<float> rotary(inputs.rotary);
    const Array<uint16_t> q(size_t{rows} * q_width(d));
    const Array<uint16_t> out(size_t{rows} * q_width(d));
    const prefill::AttentionArgs args{.dims = d,
                                      .layer = 0,
                                      .segments = device_segments.get(),
                                      .host_segments = segments.data(),
                                      .segment_count = static_cast<uint32_t>(segments.size()),
                                      .tokens = rows,
                                      .q_norm = q_norm.get(),
                                      .k_norm = k_norm.get(),
                                      .rotary = rotary.get(),
                                      .mixed = device_mixed.get(),
                                      .q = q.get(),
                                      .out = out.get()};
    prefill::attention_enter(args, device_);
    expect_success();
    prefill::attention_attend(args, device_);
    expect_success();
    const std::vector<float> values = to_floats(mixed);
    const std::vector<float> found_q = to_floats(q.download());
    const std::vector<float> found = to_floats(out.download());
    for (size_t i = 0; i < parts.size(); ++i) {
      SCOPED_TRACE(i);
      check(inputs, parts[i], {&pages[i], &values, &found_q, &found, segments[i].first_row, step});
    }
  }

 private:
  struct Found {
    const Pages* pages;
    const std::vector<float>* mixed;
    const std::vector<float>* q;
    const std::vector<float>* out;
    uint32_t first_row;
    uint32_t step;
  };

  static void check(const Inputs& inputs, const Part& part, const Found& found) {
    const Dims& d = inputs.dims;
    const uint32_t width = 2 * q_width(d) + 2 * kv_width(d);
    const std::vector<uint16_t> memory = found.pages->download();
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < part.rows; row += found.step) {
      rows.push_back(row);
    }
    rows.push_back(part.rows - 1);
    std::vector<float> expected_q(rows.size() * q_width(d)), got_q(expected_q.size());
    std::vector<float> expected_kv(rows.size() * 2 * kv_width(d)), got_kv(expected_kv.size());
    std::vector<float> expected(expected_q.size()), got(expected_q.size());
    parallel(rows.size() * d.q_heads, [&](size_t index) {
      const uint32_t row = rows[index / d.q_heads];
      const auto head = static_cast<uint32_t>(index % d.q_heads);
      const size_t stream_row = found.first_row + row;
      const float* mixed = found.mixed->data() + stream_row * width;
      const uint32_t position = part.position + row;
      const auto copy = [](const float* from, std::vector<float>& to, size_t at) {
        std::copy_n(from, kDim, to.begin() + static_cast<ptrdiff_t>(at));
      };
      const float* q = found.q->data() + (stream_row * d.q_heads + head) * kDim;
      copy(norm_and_turn(mixed + size_t{head} * 2 * kDim, inputs.q_norm, position).data(), expected_q,
           index * kDim);
      copy(q, got_q, index * kDim);
      if (head < 2 * d.kv_heads) {
        const float* from = mixed + 2 * q_width(d) + size_t{head} * kDim;
        const size_t at = (index / d.q_heads * 2 * d.kv_heads + head) * kDim;
        const bool key = head < d.kv_heads;
        copy(key ? norm_and_turn(from, inputs.k_norm, position).data() : from, expected_kv, at);
        for (uint32_t i = 0; i < kDim; ++i) {
          got_kv[at + i] =
              bf16_to_float(memory[found.pages->offset(position, key ? 0 : 1, head % d.kv_heads) + i]);
        }
      }
      std::vector<float> out = attend(*found.pages, memory, q, position + 1, head / (d.q_heads / d.kv_heads));
      for (uint32_t i = 0; i < kDim; ++i) {
        out[i] /= 1 + std::exp(-mixed[(size_t{head} * 2 + 1) * kDim + i]);
      }
      copy(out.data(), expected, index * kDim);
      copy(found.out->data() + (stream_row * d.q_heads + head) * kDim, got, index * kDim);
    });
    {
      SCOPED_TRACE("queries");
      expect_rows(got_q, expected_q, kDim, 4e-3);
    }
    {
      SCOPED_TRACE("keys and values");
      expect_rows(got_kv, expected_kv, kDim, 4e-3);
    }
    SCOPED_TRACE("attention");
    // Weights are rounded to bf16 (at most 2^-8 of each, of random sign) and so is the result.
    expect_rows(got, expected, kDim, 6e-3);
  }
};

TEST_F(CudaPrefillAttention, AnyNumberOfTokensOfBothShapes) {
  for (const Shape& shape : {kTiny, kQwen36}) {
    SCOPED_TRACE(shape.name);
    const Inputs inputs(dims_of(shape), 1024);
    for (const uint32_t rows : {1U, 2U, 7U, 8U, 9U, 15U, 16U, 17U, 63U, 64U, 65U, 130U, 300U}) {
      SCOPED_TRACE(rows);
      for (const uint32_t position : {0U, 1U, 63U, 64U, 200U}) {
        SCOPED_TRACE(position);
        run_and_check(inputs, {{position, rows}}, shape.id == ShapeId::tiny ? 1 : 7);
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(CudaPrefillAttention, SmallerSharedMemoriesGiveTheSame) {
  const Inputs inputs(dims_of(kTiny), 1024);
  for (const uint32_t shared_bytes : {163U * 1024, 99U * 1024}) {
    SCOPED_TRACE(shared_bytes);
    device_.shared_bytes = shared_bytes;
    for (const Part& part : {Part{0, 1}, Part{0, 33}, Part{0, 200}, Part{70, 130}}) {
      run_and_check(inputs, {part}, 1);
    }
  }
}

TEST_F(CudaPrefillAttention, SegmentsOfSeveralSequences) {
  const Inputs inputs(dims_of(kQwen36), 1024);
  run_and_check(inputs, {{0, 20}, {100, 33}, {640, 1}, {63, 64}}, 3);
}

TEST_F(CudaPrefillAttention, LongContexts) {
  const Inputs inputs(dims_of(kQwen36), 262'144);
  run_and_check(inputs, {{20'000, 40}}, 13);
  run_and_check(inputs, {{262'144 - 17, 17}}, 16);
}

}  // namespace
}  // namespace lily::cuda::test
