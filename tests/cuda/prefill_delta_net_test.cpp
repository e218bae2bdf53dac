// The chunked Gated DeltaNet of prefill against the rule token by token, with ragged segments and passes.
#include "tests/cuda/rig.h"

namespace lily::cuda::test {
namespace {

constexpr uint32_t kDim = kDeltaDim;

// Constants of one layer, in host memory.
struct Layer {
  explicit Layer(const Dims& d) : dims(d) {
    conv = random_values(size_t{kConvTaps} * conv_channels(d), 31, 0.5F);
    norm = random_values(kDim, 32, 0.2F);
    for (float& w : norm) {
      w += 1;
    }
    for (uint32_t head = 0; head < d.v_heads; ++head) {
      decay_rate.push_back(uniform(33, head, 1.0F, 16.0F));
      dt_bias.push_back(std::log(std::expm1(std::exp(uniform(34, head, std::log(0.001F), std::log(0.1F))))));
    }
  }
  Dims dims;
  std::vector<float> conv, norm, decay_rate, dt_bias;
};

// One sequence: its projections for all tokens of the test, and what the rule makes of them.
struct Sequence {
  std::vector<float> mixed, z, gates;                // of all tokens, bf16 values (gates float)
  std::vector<float> q, k, v, out, log_decay, beta;  // expected
  std::vector<float> state;                          // [v_heads][kDim][kDim] after the last token
};

struct HeadInput {
  const float* q;
  const float* k;
  const float* v;
  double decay;
  double beta;
};

void rule(std::vector<double>& state, const HeadInput& in, float* out) {
  std::vector<double> change(kDim, 0.0);
  std::vector<double> sum(kDim, 0.0);
  for (uint32_t i = 0; i < kDim; ++i) {
    for (uint32_t j = 0; j < kDim; ++j) {
      state[i * kDim + j] *= in.decay;
      change[j] += state[i * kDim + j] * in.k[i];
    }
  }
  for (uint32_t j = 0; j < kDim; ++j) {
    change[j] = in.beta * (in.v[j] - change[j]);
  }
  for (uint32_t i = 0; i < kDim; ++i) {
    for (uint32_t j = 0; j < kDim; ++j) {
      state[i * kDim + j] += in.k[i] * change[j];
      sum[j] += state[i * kDim + j] * in.q[i];
    }
  }
  for (uint32_t j = 0; j < kDim; ++j) {
    out[j] = static_cast<float>(sum[j]);
  }
}

float silu(float x) { return x / (1 + std::exp(-x)); }

// Fills q, k, v (rounded to bf16, as the kernels keep them).
void convolve(const Layer& layer, Sequence& s, uint32_t tokens) {
  const Dims& d = layer.dims;
  const uint32_t channels = conv_channels(d);
  s.q.resize(size_t{tokens} * d.k_heads * kDim);
  s.k.resize(s.q.size());
  s.v.resize(size_t{tokens} * value_width(d));
  parallel(tokens, [&](size_t t) {
    for (uint32_t head = 0; head < 2 * d.k_heads + d.v_heads; ++head) {
      float y[kDim];
      double sum = 0;
      for (uint32_t i = 0; i < kDim; ++i) {
        const uint32_t c = head * kDim + i;
        float x = 0;
        for (uint32_t tap = 0; tap < kConvTaps; ++tap) {
          if (t + tap >= kConvTaps - 1) {
            x += layer.conv[size_t{tap} * channels + c] * s.mixed[(t + tap - (kConvTaps - 1)) * channels + c];
          }
        }
        y[i] = silu(x);
        sum += static_cast<double>(y[i]) * y[i];
      }
      const bool value = head >= 2 * d.k_heads;
      const double unit = 1 / std::sqrt(sum + 1e-6);
      const double factor = value ? 1 : head < d.k_heads ? unit / std::sqrt(128.0) : unit;
      float* to = value ? s.v.data() + t * value_width(d) + (head - 2 * d.k_heads) * kDim
                        : (head < d.k_heads ? s.q : s.k).data() + (t * d.k_heads + head % d.k_heads) * kDim;
      for (uint32_t i = 0; i < kDim; ++i) {
        to[i] = rounded(static_cast<float>(y[i] * factor));
      }
    }
  });
}

// Fills out (before the gated norm) and state.
void follow(const Layer& layer, Sequence& s, uint32_t tokens) {
  const Dims& d = layer.dims;
  s.out.resize(size_t{tokens} * value_width(d));
  s.state.resize(delta_floats(d));
  s.log_decay.resize(size_t{tokens} * d.v_heads);
  parallel(d.v_heads, [&](size_t head) {
    const uint32_t key_head = static_cast<uint32_t>(head) / (d.v_heads / d.k_heads);
    std::vector<double> state(size_t{kDim} * kDim, 0.0);
    double running = 0;
    for (uint32_t t = 0; t < tokens; ++t) {
      const float* gates = s.gates.data() + size_t{t} * 2 * d.v_heads;
      const double a = static_cast<double>(gates[head]) + layer.dt_bias[head];
      const double g = -layer.decay_rate[head] * (a > 20 ? a : std::log1p(std::exp(a)));
      running = t % prefill::kChunk == 0 ? g : running + g;
      s.log_decay[size_t{t} * d.v_heads + head] = static_cast<float>(running);
      const HeadInput in{s.q.data() + (size_t{t} * d.k_heads + key_head) * kDim,
                         s.k.data() + (size_t{t} * d.k_heads + key_head) * kDim,
                         s.v.data() + size_t{t} * value_width(d) + head * kDim, std::exp(g),
                         1 / (1 + std::exp(-static_cast<double>(gates[d.v_heads + head])))};
      rule(state, in, s.out.data() + size_t{t} * value_width(d) + head * kDim);
    }
    for (size_t i = 0; i < state.size(); ++i) {
      s.state[head * state.size() + i] = static_cast<float>(state[i]);
    }
  });
}

Sequence make_sequence(const Layer& layer, uint32_t tokens, uint64_t seed) {
  const Dims& d = layer.dims;
  Sequence s;
  s.mixed = random_values(size_t{tokens} * conv_channels(d), seed);
  // Neighbouring keys much alike make the triangular system hard: add a part that all tokens share.
  for (size_t i = 0; i < s.mixed.size(); ++i) {
    s.mixed[i] = rounded(s.mixed[i] + 0.8F * normal(seed + 7, i % conv_channels(d)));
  }
  s.z = to_floats(to_bf16(random_values(size_t{tokens} * value_width(d), seed + 1)));
  s.gates = random_values(size_t{tokens} * 2 * d.v_heads, seed + 2, 1.5F);
  convolve(layer, s, tokens);
  follow(layer, s, tokens);
  return s;
}

std::vector<float> gated_norm(const Layer& layer, const std::vector<float>& out,
                              const std::vector<float>& z) {
  std::vector<float> y(out.size());
  for (size_t head = 0; head < out.size() / kDim; ++head) {
    double sum = 0;
    for (uint32_t i = 0; i < kDim; ++i) {
      sum += std::pow(static_cast<double>(out[head * kDim + i]), 2);
    }
    for (uint32_t i = 0; i < kDim; ++i) {
      y[head * kDim + i] = static_cast<float>(out[head * kDim + i] / std::sqrt(sum / kDim + 1e-6) *
                                              layer.norm[i] * silu(z[head * kDim + i]));
    }
  }
  return y;
}

// The device's copy of a layer, of sequences and of their recurrent memory.
class Rig {
 public:
  Rig(const Layer& layer, size_t sequences, prefill::Device device)
      : layer_(layer),
        device_(device),
        conv_(layer.conv),
        norm_(layer.norm),
        decay_rate_(layer.decay_rate),
        dt_bias_(layer.dt_bias) {
    for (size_t i = 0; i < sequences; ++i) {
      // Two layers, of which the second is used.
      recurrent_.emplace_back(std::vector<float>(2 * recurrent_stride(layer.dims), 0.0F));
    }
  }

  struct Part {
    uint32_t sequence;
    uint32_t position;
    uint32_t rows;
  };
  struct Result {
    std::vector<float> q, k, v, log_decays, out, final;
  };

  // One pass over parts of the sequences.
  Result run(const std::vector<Sequence>& sequences, const std::vector<Part>& parts) {
    const Dims& d = layer_.dims;
    std::vector<Segment> segments;
    std::vector<float> mixed;
    std::vector<float> z;
    std::vector<float> gates;
    uint32_t rows = 0;
    uint32_t chunks = 0;
    for (const Part& part : parts) {
      const Sequence& s = sequences[part.sequence];
      segments.push_back({recurrent_[part.sequence].get(), nullptr, rows, part.rows, part.position, 0});
      chunks += prefill::chunks_of(segments.back());
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from, size_t width) {
        const auto begin = from.begin() + static_cast<ptrdiff_t>(part.position * width);
        to.insert(to.end(), begin, begin + static_cast<ptrdiff_t>(part.rows * width));
      };
      append(mixed, s.mixed, conv_channels(d));
      append(z, s.z, value_width(d));
      append(gates, s.gates, 2 * d.v_heads);
      rows += part.rows;
    }
    const Array<Segment> device_segments(segments);
    const Array<uint16_t> device_mixed(to_bf16(mixed));
    const Array<uint16_t> device_z(to_bf16(z));
    const Array<float> device_gates(gates);
    const size_t values = size_t{rows} * value_width(d);
    const size_t keys = size_t{rows} * d.k_heads * kDim;
    const Array<uint16_t> q(keys);
    const Array<uint16_t> k(keys);
    const Array<uint16_t> v(values);
    const Array<uint16_t> u(values);
    const Array<uint16_t> w(values);
    const Array<uint16_t> scores(size_t{rows} * d.v_heads * prefill::kChunk);
    const Array<float> log_decays(size_t{rows} * d.v_heads);
    const Array<uint16_t> out(values);
    prefill::DeltaArgs args{};
    args.dims = d;
    args.layer = 1;
    args.segments = device_segments.get();
    args.segment_count = static_cast<uint32_t>(segments.size());
    args.chunks = chunks;
    args.tokens = rows;
    args.conv = conv_.get();
    args.decay_rate = decay_rate_.get();
    args.dt_bias = dt_bias_.get();
    args.norm = norm_.get();
    args.mixed = device_mixed.get();
    args.z = device_z.get();
    args.gates = device_gates.get();
    args.q = q.get();
    args.k = k.get();
    args.v = v.get();
    args.u = u.get();
    args.w = w.get();
    args.scores = scores.get();
    args.log_decays = log_decays.get();
    args.out = out.get();
    prefill::delta_convolve(args, device_);
    expect_success();
    prefill::delta_prepare(args, device_);
    expect_success();
    prefill::delta_pass_states(args, device_);
    expect_success();
    Result result{to_floats(q.download()), to_floats(k.download()),   to_floats(v.download()),
                  log_decays.download(),   to_floats(out.download()), {}};
    prefill::delta_gated_norm(args, device_);
    expect_success();
    result.final = to_floats(out.download());
    return result;
  }

  std::vector<float> state(size_t sequence) const {
    std::vector<float> all = recurrent_[sequence].download();
    const auto begin = all.begin() + static_cast<ptrdiff_t>(recurrent_stride(layer_.dims));
    return {begin, begin + static_cast<ptrdiff_t>(delta_floats(layer_.dims))};
  }

 private:
  const Layer& layer_;
  prefill::Device device_;
  Array<float> conv_, norm_, decay_rate_, dt_bias_;
  std::vector<Array<float>> recurrent_;
};

std::vector<float> rows_of(const std::vector<float>& all, uint32_t first, uint32_t rows, size_t width) {
  const auto begin = all.begin() + static_cast<ptrdiff_t>(first * width);
  return {begin, begin + static_cast<ptrdiff_t>(rows * width)};
}

// q, k and scores are bf16 (2^-8 each at most, 1.65e-3 in the mean), u, w and out too.
constexpr double kOutTolerance = 8e-3;
constexpr double kStateTolerance = 5e-3;

class CudaPrefillDeltaNet : public NeedsGpu {
 protected:
  // A pass of one part against the expectation; results before and after the gated norm.
  static void expect_part(const Layer& layer, const Sequence& s, const Rig::Part& part,
                          const Rig::Result& found, uint32_t first_row) {
    const Dims& d = layer.dims;
    const size_t keys = size_t{d.k_heads} * kDim;
    const size_t values = value_width(d);
    const auto expected = [&](const std::vector<float>& all, size_t width) {
      return rows_of(all, part.position, part.rows, width);
    };
    const auto got = [&](const std::vector<float>& all, size_t width) {
      return rows_of(all, first_row, part.rows, width);
    };
    {
      SCOPED_TRACE("convolution");
      expect_rows(got(found.q, keys), expected(s.q, keys), kDim, 4e-3);
      expect_rows(got(found.k, keys), expected(s.k, keys), kDim, 4e-3);
      expect_rows(got(found.v, values), expected(s.v, values), kDim, 4e-3);
    }
    if (part.position % prefill::kChunk == 0) {
      SCOPED_TRACE("decays");
      expect_rows(got(found.log_decays, d.v_heads), expected(s.log_decay, d.v_heads), d.v_heads, 1e-5);
    }
    {
      SCOPED_TRACE("delta rule");
      expect_rows(got(found.out, values), expected(s.out, values), values, kOutTolerance);
    }
    SCOPED_TRACE("gated norm");
    expect_rows(got(found.final, values), gated_norm(layer, got(found.out, values), expected(s.z, values)),
                values, 4e-3);
  }
};

TEST_F(CudaPrefillDeltaNet, AnyNumberOfTokensOfBothShapes) {
  for (const Shape& shape : {kTiny, kQwen36}) {
    SCOPED_TRACE(shape.name);
    const Layer layer(dims_of(shape));
    for (const uint32_t tokens : {1U, 2U, 5U, 8U, 9U, 16U, 17U, 63U, 64U, 65U, 127U, 128U, 200U, 600U}) {
      if (shape.id == ShapeId::qwen36 && tokens != 65 && tokens != 200) {
        continue;
      }
      SCOPED_TRACE(tokens);
      const std::vector<Sequence> sequences = {make_sequence(layer, tokens, 41 + tokens)};
      for (const uint32_t shared_bytes :
           {device_.shared_bytes, 99U * 1024}) {  // two chunks in shared memory, and one
        prefill::Device device = device_;
        device.shared_bytes = shared_bytes;
        Rig rig(layer, 1, device);
        const Rig::Part all{0, 0, tokens};
        const Rig::Result found = rig.run(sequences, {all});
        expect_part(layer, sequences[0], all, found, 0);
        SCOPED_TRACE("state");
        expect_rows(rig.state(0), sequences[0].state, size_t{kDim} * kDim, kStateTolerance);
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(CudaPrefillDeltaNet, HowAPromptIsCutChangesLittle) {
  const Layer layer(dims_of(kTiny));
  const std::vector<Sequence> sequences = {make_sequence(layer, 300, 51)};
  for (const std::vector<uint32_t>& cuts : std::vector<std::vector<uint32_t>>{{300},
                                                                              {64, 236},
                                                                              {128, 64, 108},
                                                                              {1, 299},
                                                                              {63, 1, 1, 235},
                                                                              {3, 100, 2, 1, 194},
                                                                              {2, 2, 2, 294}}) {
    SCOPED_TRACE(::testing::PrintToString(cuts));
    Rig rig(layer, 1, device_);
    uint32_t position = 0;
    for (const uint32_t rows : cuts) {
      const Rig::Part part{0, position, rows};
      expect_part(layer, sequences[0], part, rig.run(sequences, {part}), 0);
      position += rows;
    }
    expect_rows(rig.state(0), sequences[0].state, size_t{kDim} * kDim, kStateTolerance);
    if (HasFailure()) {
      return;
    }
  }
}

// Where chunks end: DeviceInfo::reading says so.
TEST_F(CudaPrefillDeltaNet, ACutAtTheEndOfAChunkChangesNoBit) {
  for (const Shape& shape : {kTiny, kQwen36}) {
    const Layer layer(dims_of(shape));
    const std::vector<Sequence> sequences = {make_sequence(layer, 333, 71)};
    const size_t width = value_width(layer.dims);
    for (const uint32_t begin : {0U, 7U, 63U}) {
      const auto run = [&](const std::vector<uint32_t>& ends) {
        Rig rig(layer, 1, device_);
        uint32_t position = 0;
        std::vector<float> all;
        for (const uint32_t end : ends) {
          const Rig::Part part{0, position, end - position};
          const Rig::Result found = rig.run(sequences, {part});
          const std::vector<float> rows = rows_of(found.final, 0, part.rows, width);
          all.insert(all.end(), rows.begin(), rows.end());
          position = end;
        }
        const std::vector<float> state = rig.state(0);
        all.insert(all.end(), state.begin(), state.end());
        return all;
      };
      std::vector<uint32_t> first;
      if (begin > 0) first.push_back(begin);
      const auto with = [&](std::vector<uint32_t> ends) {
        ends.insert(ends.begin(), first.begin(), first.end());
        return run(ends);
      };
      const std::vector<float> whole = with({333});
      EXPECT_TRUE(with({64, 333}) == whole) << begin;
      EXPECT_TRUE(with({320, 333}) == whole) << begin;
      EXPECT_TRUE(with({64, 128, 192, 256, 320, 333}) == whole) << begin;
    }
  }
}

TEST_F(CudaPrefillDeltaNet, CompanionsChangeNoBit) {
  const Layer layer(dims_of(kTiny));
  std::vector<Sequence> sequences;
  for (uint32_t i = 0; i < 3; ++i) {
    sequences.push_back(make_sequence(layer, 200, 61 + i));
  }
  Rig together(layer, 3, device_);
  together.run(sequences, {{1, 0, 30}});
  const Rig::Result found = together.run(sequences, {{0, 0, 77}, {1, 30, 100}, {2, 0, 9}});
  expect_part(layer, sequences[0], {0, 0, 77}, found, 0);
  expect_part(layer, sequences[1], {1, 30, 100}, found, 77);
  expect_part(layer, sequences[2], {2, 0, 9}, found, 177);
  Rig alone(layer, 3, device_);
  alone.run(sequences, {{1, 0, 30}});
  const Rig::Result other = alone.run(sequences, {{1, 30, 100}});
  const size_t width = value_width(layer.dims);
  EXPECT_EQ(rows_of(found.final, 77, 100, width), other.final);
  EXPECT_EQ(together.state(1), alone.state(1));
}

}  // namespace
}  // namespace lily::cuda::test
