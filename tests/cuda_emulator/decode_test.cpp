// The kernels for few rows on an emulated grid, one after the other as a decoding step has them: against the
// reference, and to the bit whatever the companions of a row.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "backends/cuda/dims.h"
#include "backends/cuda/kernels/decode.h"
#include "backends/cuda/pack.h"
#include "backends/cuda/tuning.h"
#include "backends/host/host_backend.h"
#include "model/plan.h"
#include "model/rope.h"
#include "reference/blocks.h"
#include "tests/support/random_weights.h"

namespace lily::cuda {
namespace {

constexpr uint32_t kContext = 512;
constexpr uint32_t kExpertWords = 8;

uint32_t padded(uint32_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

// Aligned as device memory is, and full of nonsense at first.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes + 256, 0xff) {
    at_ = bytes_.data() + (256 - reinterpret_cast<uintptr_t>(bytes_.data()) % 256) % 256;
  }
  Memory(Memory&&) = default;
  template <class T = uint8_t>
  T* as() const {
    return reinterpret_cast<T*>(at_);
  }
  void clear() { std::fill(bytes_.begin(), bytes_.end(), 0); }

 private:
  std::vector<uint8_t> bytes_;
  uint8_t* at_;
};

struct Sequence {
  Sequence(const Dims& d) : recurrent(d.layers * recurrent_stride(d) * 4) {
    recurrent.clear();
    for (uint32_t i = 0; i < kContext / kPageTokens; ++i) {
      pages.emplace_back(page_elements(d) * 2);
      pages.back().clear();
      table.push_back(pages.back().as<uint16_t>());
    }
  }
  Memory recurrent;
  std::vector<Memory> pages;
  std::vector<uint16_t*> table;
  // As if it had read `tokens` tokens: random states, keys and values.
  void pretend(const Dims& d, uint64_t seed, uint32_t tokens) {
    for (size_t i = 0; i < (d.layers - d.layers / 4) * recurrent_stride(d); ++i) {
      recurrent.as<float>()[i] = 0.1F * test::normal(seed, i);
    }
    for (size_t page = 0; page < pages.size(); ++page) {
      for (size_t i = 0; i < page_elements(d); ++i) {
        const float x = test::normal(seed + 1 + page, i);
        uint32_t bits = 0;
        std::memcpy(&bits, &x, 4);
        table[page][i] = static_cast<uint16_t>(bits >> 16);
      }
    }
    length = tokens;
  }
  uint32_t length = 0;
};

PackedMatrix packed(const Recipe& recipe, std::deque<Memory>& memories) {
  auto form = packed_form(recipe, "a matrix");
  EXPECT_TRUE(form.has_value());
  EXPECT_EQ(form->wide, 0U);
  Memory& memory = memories.emplace_back(packed_bytes(*form));
  for (uint32_t m = 0; m < form->matrices; ++m) {
    for (uint32_t block = 0; block < form->row_blocks; ++block) {
      pack_block(recipe, *form, m, block,
                 memory.as() + (size_t{m} * form->row_blocks + block) * block_bytes(*form));
    }
  }
  form->tiles = memory.as();
  return *form;
}

// A layer as the kernels of decode.h take it; the vectors of the other kind of mixer are null.
struct Layer {
  PackedMatrix in_proj, out_proj, router, gate_up, down;
  const float *conv, *decay_rate, *dt_bias, *norm;
  const float *q_norm, *k_norm;
  const float *post_norm, *next_norm;
};

class Model {
 public:
  Model(const Shape& shape, const ModelWeights& weights) : dims_(dims_of(shape)) {
    layers_.resize(shape.layers);
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const LayerWeights& from = weights.layers[i];
      Layer& to = layers_[i];
      if (const auto* w = std::get_if<DeltaNetWeights>(&from.mixer)) {
        to.in_proj = packed({.matrices = {{w->in_proj_qkv, w->in_proj_z, w->in_proj_a, w->in_proj_b}}});
        to.out_proj = packed({.matrices = {{w->out_proj}}});
        std::vector<float> conv(w->conv1d.count());
        for (uint32_t channel = 0; channel < w->conv1d.rows; ++channel) {
          for (uint32_t tap = 0; tap < kConvTaps; ++tap) {
            conv[size_t{tap} * w->conv1d.rows + channel] = w->conv1d.at(size_t{channel} * kConvTaps + tap);
          }
        }
        to.conv = floats(conv);
        std::vector<float> rate = w->a_log.to_floats();
        for (float& x : rate) {
          x = std::exp(x);
        }
        to.decay_rate = floats(rate);
        to.dt_bias = floats(w->dt_bias.to_floats());
        to.norm = floats(w->norm.to_floats());
        norms_.push_back(floats(w->input_norm.to_floats()));
      } else {
        const auto& a = std::get<AttentionWeights>(from.mixer);
        to.in_proj = packed({.matrices = {{a.q_proj, a.k_proj, a.v_proj}}});
        to.out_proj = packed({.matrices = {{a.o_proj}}});
        to.q_norm = floats(a.q_norm.to_floats());
        to.k_norm = floats(a.k_norm.to_floats());
        norms_.push_back(floats(a.input_norm.to_floats()));
      }
      experts(from.moe, to);
    }
    norms_.push_back(floats(weights.head.norm.to_floats()));
    for (uint32_t i = 0; i < shape.layers; ++i) {
      layers_[i].next_norm = norms_[i + 1];
    }
    head_ = packed({.matrices = {{weights.head.lm_head}}});
    const AffineMatrix& table = weights.embed.table;
    embed_ = {};
    embed_.codes = reinterpret_cast<const uint8_t*>(table.codes);
    embed_.scales = reinterpret_cast<const uint8_t*>(table.scales);
    embed_.biases = reinterpret_cast<const uint8_t*>(table.biases);
    embed_.bits = table.bits;
    embed_.group = table.group;
    embed_.scale_kind = table.scale_type == DType::bf16 ? 0 : table.scale_type == DType::f16 ? 1 : 2;
    embed_.vocab = shape.vocab;
    embed_.to.next_norm = norms_[0];
    std::vector<float> turns;
    for (uint32_t position = 0; position < kContext; ++position) {
      for (uint32_t i = 0; i < kRotaryDim / 2; ++i) {
        const float angle = static_cast<float>(position) * rotary_frequencies()[i];
        turns.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
        turns.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
      }
    }
    rotary_ = floats(turns);
  }
  const Dims& dims() const { return dims_; }

  // One token of each sequence, or with `each` so many of each, one after the other; returns their logits.
  std::vector<float> step(const std::vector<Sequence*>& of, const std::vector<int32_t>& ids,
                          uint32_t each = 1);
  // Bits of the experts that the last step used.
  const std::vector<uint32_t>& used() const { return used_; }

 private:
  PackedMatrix packed(const Recipe& recipe) { return lily::cuda::packed(recipe, memory_); }
  const float* floats(const std::vector<float>& values) {
    Memory& memory = memory_.emplace_back(values.size() * 4);
    std::memcpy(memory.as(), values.data(), values.size() * 4);
    return memory.as<float>();
  }
  void experts(const MoeWeights& w, Layer& to) {
    to.router = packed({.matrices = {{w.router, w.shared_gate}}});
    Recipe gate_up{.matrices = {}, .interleaved = true};
    Recipe down;
    for (uint32_t expert = 0; expert < w.gate.experts; ++expert) {
      gate_up.matrices.push_back({w.gate.expert(expert), w.up.expert(expert)});
      down.matrices.push_back({w.down.expert(expert)});
    }
    gate_up.matrices.push_back({w.shared_gate_proj, w.shared_up_proj});
    down.matrices.push_back({w.shared_down_proj});
    to.gate_up = packed(gate_up);
    to.down = packed(down);
    to.post_norm = floats(w.post_norm.to_floats());
  }

  const Dims dims_;
  std::deque<Memory> memory_;
  std::vector<Layer> layers_;
  std::vector<const float*> norms_;
  PackedMatrix head_{};
  EmbedArgs embed_{};
  const float* rotary_ = nullptr;
  std::vector<uint32_t> used_;
};

// What the kernels hand to one another.
struct Workspace {
  Workspace(const Dims& d, uint32_t rows)
      : stream(rows * d.hidden * 4),
        x(rows * d.hidden * 2),
        squares(rows * d.hidden / 4),
        mixed(rows * 16384 * 4),
        heads(rows * 8192),
        head_squares(rows * 4096),
        partial(size_t{rows} * d.q_heads * kMaxSplits * kHeadDim * 4),
        partial_ml(size_t{rows} * d.q_heads * kMaxSplits * 8),
        router(rows * 512 * 4),
        h(rows * kUses * d.ffn * 2),
        expert_y(rows * kUses * d.hidden * 4),
        routing(kPublishedBytes + 256) {
    routing.clear();
  }
  Feed feed() const { return {x.as<uint16_t>(), squares.as<float>()}; }
  Feed heads_feed() const { return {heads.as<uint16_t>(), head_squares.as<float>()}; }
  Memory stream, x, squares, mixed, heads, head_squares, partial, partial_ml, router, h, expert_y, routing;
};

void must(int error) { ASSERT_EQ(error, 0); }

std::vector<float> Model::step(const std::vector<Sequence*>& of, const std::vector<int32_t>& ids,
                               uint32_t each) {
  const auto count = static_cast<uint32_t>(of.size());
  const uint32_t rows = count * each;
  const DeviceTraits traits{.multiprocessors = 5, .compute_capability = 90, .shared_bytes = 227 * 1024};
  const Workspace ws(dims_, rows);
  std::vector<Segment> segments;
  std::vector<uint32_t> row_segment;
  for (uint32_t i = 0; i < count; ++i) {
    segments.push_back({of[i]->recurrent.as<float>(), of[i]->table.data(), i * each, each, of[i]->length, 0});
    of[i]->length += each;
    row_segment.insert(row_segment.end(), each, i);
  }
  std::vector<float> logits(size_t{rows} * dims_.vocab, NAN);
  used_.assign(size_t{dims_.layers} * kExpertWords, 0xffffffffU);
  const auto stream = [&](const float* norm) {
    return StreamArgs{.from = ws.stream.as<float>(),
                      .stream = ws.stream.as<float>(),
                      .next_norm = norm,
                      .feed = ws.feed(),
                      .hidden = dims_.hidden};
  };
  const auto project = [&](const PackedMatrix& w, const Feed& feed, Scaling scaling, float* y,
                           const StreamArgs& to) {
    const LaunchShape shape = project_shape(w, rows, traits);
    must(launch_project({.w = w,
                         .feed = feed,
                         .y = y,
                         .ld_y = y != nullptr ? padded(w.rows) : 0,
                         .rows = rows,
                         .scaling = scaling,
                         .to = to,
                         .stages = shape.stages,
                         .blocks = shape.blocks,
                         .shared = shape.shared},
                        nullptr));
  };
  EmbedArgs embed = embed_;
  embed.ids = ids.data();
  embed.rows = rows;
  embed.clear = used_.data();
  embed.clear_count = static_cast<uint32_t>(used_.size());
  embed.to = stream(norms_[0]);
  must(launch_embed(embed, nullptr));
  for (uint32_t layer = 0; layer < dims_.layers; ++layer) {
    const Layer& w = layers_[layer];
    auto* const mixed = ws.mixed.as<float>();
    project(w.in_proj, ws.feed(), Scaling::row, mixed, {});
    const bool attends = layer % 4 == 3;
    if (attends) {
      must(launch_attend({.dims = dims_,
                          .segments = segments.data(),
                          .row_segment = row_segment.data(),
                          .segment_count = count,
                          .rows = rows,
                          .first_row = 0,
                          .mixed = mixed,
                          .ld = w.in_proj.row_blocks * kTileRows,
                          .layer = layer / 4,
                          .q_norm = w.q_norm,
                          .k_norm = w.k_norm,
                          .rotary = rotary_,
                          .partial = ws.partial.as<float>(),
                          .partial_ml = ws.partial_ml.as<float>(),
                          .out = ws.heads_feed(),
                          .single = each == 1 ? 1U : 0U,
                          .warps = 4},
                         nullptr));
    } else {
      const LaunchShape shape = delta_step_shape(w.in_proj, dims_, count, rows, traits);
      must(launch_delta_step({.dims = dims_,
                              .segments = segments.data(),
                              .segment_count = count,
                              .mixed = mixed,
                              .ld = w.in_proj.row_blocks * kTileRows,
                              .layer = layer - layer / 4,
                              .conv = w.conv,
                              .decay_rate = w.decay_rate,
                              .dt_bias = w.dt_bias,
                              .norm = w.norm,
                              .out = ws.heads_feed(),
                              .first_row = 0,
                              .single = each == 1 ? 1U : 0U,
                              .blocks = shape.blocks,
                              .stages = shape.stages,
                              .shared = shape.shared},
                             nullptr));
    }
    project(w.out_proj, ws.heads_feed(), attends ? Scaling::none : Scaling::head, nullptr,
            stream(w.post_norm));
    project(w.router, ws.feed(), Scaling::row, ws.router.as<float>(), {});
    ExpertArgs args{.dims = dims_,
                    .w = w.gate_up,
                    .router = ws.router.as<float>(),
                    .ld_router = w.router.row_blocks * kTileRows,
                    .rows = rows,
                    .feed = ws.feed(),
                    .h = ws.h.as<uint16_t>(),
                    .y = ws.expert_y.as<float>(),
                    .experts_used = used_.data() + layer * kExpertWords,
                    .routing = {ws.routing.as<uint32_t>() + 64, ws.routing.as<uint32_t>(), layer + 1},
                    .to = stream(w.next_norm),
                    .stages = 0,
                    .blocks = 0,
                    .shared = 0};
    const auto with = [&](const PackedMatrix& matrix, const LaunchShape& shape) {
      args.w = matrix;
      args.stages = shape.stages;
      args.blocks = shape.blocks;
      args.shared = shape.shared;
    };
    with(w.gate_up, gate_up_shape(w.gate_up, rows, traits));
    must(launch_gate_up(args, nullptr));
    with(w.down, down_shape(w.down, rows, traits));
    must(launch_down(args, nullptr));
  }
  project(head_, ws.feed(), Scaling::row, logits.data(), {});
  return logits;
}

class Decode : public ::testing::Test {
 protected:
  Decode() : shape_(few_layers_and_tokens()), weights_(shape_), model_(shape_, weights_.get()) {
    host_ = std::make_unique<host::HostBackend>(DeviceInfo{.name = "reference"},
                                                std::make_unique<reference::ReferenceBlocks>(2));
    const auto plan = make_plan(shape_, {.context = kContext, .sequences = 2, .chunk = 64});
    EXPECT_TRUE(plan.has_value());
    EXPECT_TRUE(host_->load(weights_.get(), *plan, [](double) {}).has_value());
  }
  static Shape few_layers_and_tokens() {
    Shape shape = kTiny.with_layers(4);
    shape.vocab = 1024;  // else most of the time would be the head's
    return shape;
  }
  // Logits of the token in the reference.
  std::vector<float> expected(SequenceState& state, int32_t token) {
    const std::vector<int32_t> tokens{token};
    const Slice slice{.state = &state, .tokens = tokens, .logits_rows = 1};
    const auto ticket = host_->submit({.slices = std::span(&slice, 1)});
    EXPECT_TRUE(ticket.has_value()) << ticket.error().message;
    auto output = host_->collect(*ticket);
    EXPECT_TRUE(output.has_value());
    return output->slices[0].logits;
  }
  static int32_t token(uint32_t sequence, uint32_t position) {
    return static_cast<int32_t>(test::mix(sequence * 1000 + position) % 1024);
  }
  static double distance(const float* found, const std::vector<float>& expected) {
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double{found[i]} - expected[i], 2);
      size += std::pow(double{expected[i]}, 2);
    }
    return std::sqrt(difference / size);
  }

  const Shape shape_;
  const test::RandomWeights weights_;
  Model model_;
  std::unique_ptr<host::HostBackend> host_;
};

// Every number of rows that has kernels of its own, at the start of a context.
TEST_F(Decode, LogitsAreThoseOfTheReference) {
  for (const uint32_t rows : {1U, 2U, 3U, 8U, 24U, 32U}) {
    std::deque<Sequence> sequences;
    std::vector<Sequence*> of;
    for (uint32_t i = 0; i < rows; ++i) {
      of.push_back(&sequences.emplace_back(model_.dims()));
    }
    // The reference takes the first, one in the middle and the last.
    const std::set<uint32_t> compared{0, rows / 2, rows - 1};
    std::map<uint32_t, std::unique_ptr<SequenceState>> states;
    for (const uint32_t i : compared) {
      states[i] = *host_->new_state(kContext);
    }
    double sum = 0;
    const uint32_t tokens = rows <= 2 ? 2 : 1;
    for (uint32_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> ids;
      for (uint32_t i = 0; i < rows; ++i) {
        ids.push_back(token(i, t));
      }
      const auto logits = model_.step(of, ids);
      for (const uint32_t i : compared) {
        const double far =
            distance(logits.data() + size_t{i} * model_.dims().vocab, expected(*states[i], ids[i]));
        EXPECT_LT(far, 0.3) << "row " << i << " of " << rows;  // another expert may have been chosen
        sum += far;
      }
    }
    EXPECT_LT(sum / (tokens * static_cast<double>(compared.size())), 6e-2) << rows << " rows";
  }
}

// Rows of every kind of launch, their contexts of different lengths.
TEST_F(Decode, ARowHasTheSameBitsWhateverItsCompanions) {
  for (const uint32_t rows : {3U, 19U}) {
    const Dims& d = model_.dims();
    std::deque<Sequence> together;
    std::vector<Sequence*> of;
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < rows; ++i) {
      together.emplace_back(d).pretend(d, 100 * i, 1 + 7 * i);
      of.push_back(&together.back());
      ids.push_back(token(i, 1 + i));
    }
    const auto found = model_.step(of, ids);
    for (const uint32_t i : {rows / 3, rows - 1}) {
      Sequence alone(d);
      alone.pretend(d, 100 * i, 1 + 7 * i);
      const auto expected = model_.step({&alone}, {ids[i]});
      EXPECT_EQ(std::memcmp(found.data() + size_t{i} * d.vocab, expected.data(), expected.size() * 4), 0)
          << "row " << i << " of " << rows;
      EXPECT_EQ(std::memcmp(together[i].recurrent.as(), alone.recurrent.as(),
                            (d.layers - d.layers / 4) * recurrent_stride(d) * 4),
                0);
    }
  }
}

// Several tokens of a sequence in a pass, as a prompt has them: each row to the bit as if it were alone, and
// so is what they leave; of one sequence and of several, where a page and a split of the context end.
TEST_F(Decode, RowsOfASequenceAreThoseOfSingleSteps) {
  struct Case {
    uint32_t sequences, each;
  };
  for (const Case of : {Case{1, 11}, {3, 5}, {6, 2}}) {
    const Dims& d = model_.dims();
    std::deque<Sequence> together, single;
    std::vector<Sequence*> all;
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < of.sequences; ++i) {
      together.emplace_back(d).pretend(d, 100 * i, 60 + 3 * i);
      single.emplace_back(d).pretend(d, 100 * i, 60 + 3 * i);
      all.push_back(&together.back());
      for (uint32_t t = 0; t < of.each; ++t) ids.push_back(token(i, t));
    }
    const auto found = model_.step(all, ids, of.each);
    const uint32_t stride = of.sequences > 1 ? of.sequences - 1 : 1;  // the first and the last
    for (uint32_t i = 0; i < of.sequences; i += stride) {
      for (uint32_t t = 0; t < of.each; ++t) {
        const auto expected = model_.step({&single[i]}, {token(i, t)});
        const float* const row = found.data() + (size_t{i} * of.each + t) * d.vocab;
        EXPECT_EQ(std::memcmp(row, expected.data(), expected.size() * 4), 0)
            << "token " << t << " of " << of.each << ", sequence " << i << " of " << of.sequences;
      }
      EXPECT_EQ(std::memcmp(together[i].recurrent.as(), single[i].recurrent.as(),
                            (d.layers - d.layers / 4) * recurrent_stride(d) * 4),
                0);
      for (size_t page = 0; page < together[i].table.size(); ++page) {
        EXPECT_EQ(std::memcmp(together[i].table[page], single[i].table[page], page_elements(d) * 2), 0);
      }
    }
  }
}

// A matrix of so many outputs that its blocks take them in turns, an odd number of units of 16: rows together
// have the bits that each has alone.
TEST(Project, RowsOfATallMatrixHaveTheSameBitsAlone) {
  const DeviceTraits traits{.multiprocessors = 3, .compute_capability = 90, .shared_bytes = 227 * 1024};
  Shape shape = kTiny.with_layers(4);
  shape.vocab = 1024 * kTileRows + 7;
  const test::RandomWeights weights(shape);
  std::deque<Memory> memories;
  const PackedMatrix w = packed({.matrices = {{weights.get().head.lm_head}}}, memories);
  EXPECT_EQ(w.row_blocks, 1025U);
  const uint32_t ld = padded(w.rows);
  Memory x(size_t{kSmallRows} * shape.hidden * 2);
  Memory squares(size_t{kSmallRows} * shape.hidden / kFeedBlock * 4);
  for (size_t i = 0; i < size_t{kSmallRows} * shape.hidden; ++i) {
    x.as<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(test::normal(1, i)) >> 16);
  }
  for (size_t i = 0; i < size_t{kSmallRows} * shape.hidden / kFeedBlock; ++i) {
    squares.as<float>()[i] = 1 + std::abs(test::normal(2, i));
  }
  const auto run = [&](uint32_t first, uint32_t rows, Scaling scaling) {
    std::vector<float> y(size_t{rows} * ld, NAN);
    const LaunchShape launch = project_shape(w, rows, traits);
    EXPECT_EQ(projects_in_turns(w, rows), rows > kFewRows);
    EXPECT_LE(launch.shared, traits.shared_bytes);
    must(launch_project({.w = w,
                         .feed = Feed{x.as<uint16_t>(), squares.as<float>()}.from(first, shape.hidden),
                         .y = y.data(),
                         .ld_y = ld,
                         .rows = rows,
                         .scaling = scaling,
                         .to = {},
                         .stages = launch.stages,
                         .blocks = launch.blocks,
                         .shared = launch.shared},
                        nullptr));
    return y;
  };
  for (const Scaling scaling : {Scaling::row, Scaling::none}) {
    const uint32_t compared[] = {0, 2, 10, 16, 31};
    std::map<uint32_t, std::vector<float>> alone;
    for (const uint32_t row : compared) {
      alone[row] = run(row, 1, scaling);
    }
    for (const uint32_t rows : {3U, 11U, 32U}) {
      const auto together = run(0, rows, scaling);
      for (const uint32_t row : compared) {
        if (row < rows) {
          EXPECT_EQ(std::memcmp(together.data() + size_t{row} * ld, alone[row].data(), size_t{ld} * 4), 0)
              << "row " << row << " of " << rows;
        }
      }
    }
  }
}

// More segments than there are blocks for, some with several rows: what each leaves is what it leaves alone.
TEST(DeltaStep, SegmentsHaveTheSameBitsAlone) {
  const DeviceTraits traits{.multiprocessors = 5, .compute_capability = 90, .shared_bytes = 227 * 1024};
  const Dims d = dims_of(kTiny);
  const uint32_t ld = padded(conv_channels(d) + value_width(d) + 2 * d.v_heads);
  const auto random = [](size_t count, uint64_t seed) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = test::normal(seed, i);
    }
    return values;
  };
  const auto mixed = random(size_t{kSmallRows} * ld, 1);
  const auto conv = random(size_t{kConvTaps} * conv_channels(d), 2);
  const auto bias = random(d.v_heads, 3);
  const auto norm = random(kDeltaDim, 4);
  const std::vector<float> rate(d.v_heads, 0.7F);
  constexpr uint32_t kSegments = kDeltaRingSegments + 4;
  Dims one_layer = d;
  one_layer.layers = 1;
  std::deque<Sequence> together, alone;
  std::vector<Segment> segments, own;
  uint32_t rows = 0;
  for (uint32_t i = 0; i < kSegments; ++i) {
    const uint32_t count = i % 3 == 0 ? 2 : 1;
    for (auto& [sequences, list] : {std::pair(&together, &segments), std::pair(&alone, &own)}) {
      Sequence& of = sequences->emplace_back(one_layer);
      for (size_t j = 0; j < recurrent_stride(d); ++j) {
        of.recurrent.as<float>()[j] = 0.1F * test::normal(100 + i, j);
      }
      list->push_back({of.recurrent.as<float>(), nullptr, rows, count, 5 + i, 0});
    }
    rows += count;
  }
  ASSERT_LE(rows, kSmallRows);
  PackedMatrix in_proj{};
  in_proj.row_blocks = ld / kTileRows;
  in_proj.k_tiles = 4;
  in_proj.planes = 1;
  in_proj.tile_bytes = tile_bytes_of(1, 0);
  const auto run = [&](const Segment* of, uint32_t count, uint32_t of_rows) {
    std::pair out(Memory(size_t{kSmallRows} * value_width(d) * 2),
                  Memory(size_t{kSmallRows} * value_width(d) / kFeedBlock * 4));
    const LaunchShape shape = delta_step_shape(in_proj, d, count, of_rows, traits);
    must(launch_delta_step({.dims = d,
                            .segments = of,
                            .segment_count = count,
                            .mixed = mixed.data(),
                            .ld = ld,
                            .layer = 0,
                            .conv = conv.data(),
                            .decay_rate = rate.data(),
                            .dt_bias = bias.data(),
                            .norm = norm.data(),
                            .out = {out.first.as<uint16_t>(), out.second.as<float>()},
                            .first_row = 0,
                            .single = 0,
                            .blocks = shape.blocks,
                            .stages = shape.stages,
                            .shared = shape.shared},
                           nullptr));
    return out;
  };
  const auto found = run(segments.data(), kSegments, rows);
  for (uint32_t i = 0; i < kSegments; i += 3) {
    const auto expected = run(&own[i], 1, own[i].rows);
    EXPECT_EQ(std::memcmp(segments[i].recurrent, own[i].recurrent, recurrent_stride(d) * 4), 0)
        << "state " << i;
    const size_t first = size_t{own[i].first_row} * value_width(d);
    const size_t count = size_t{own[i].rows} * value_width(d);
    EXPECT_EQ(
        std::memcmp(found.first.as<uint16_t>() + first, expected.first.as<uint16_t>() + first, count * 2), 0)
        << "outputs " << i;
    EXPECT_EQ(std::memcmp(found.second.as<float>() + first / kFeedBlock,
                          expected.second.as<float>() + first / kFeedBlock, count / kFeedBlock * 4),
              0)
        << "squares " << i;
  }
}

}  // namespace
}  // namespace lily::cuda
