// The kernel of a whole step on an emulated grid: against the reference, and to the bit whatever the order in
// which warps run and copies and words arrive.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>

#include "backends/cuda/kernels/whole_step.cuh"
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

// The full width, but for the head, which would take most of the time.
using FullWidthsOfFewTokens = step::Widths<32, 64, 64, 8, 256, 4096, 1>;

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

Dims dims_of_shape(const Shape& s) {
  return {.hidden = s.hidden,
          .layers = s.layers,
          .vocab = s.vocab,
          .q_heads = s.q_heads,
          .kv_heads = s.kv_heads,
          .k_heads = s.k_heads,
          .v_heads = s.v_heads,
          .experts = s.experts,
          .ffn = s.expert_ffn};
}

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
        table[page][i] = static_cast<uint16_t>(__float_as_uint(x) >> 16);
      }
    }
    length = tokens;
  }
  uint32_t length = 0;
  int32_t sampled = 0;
};

// The matrices of a layer as the kernels of decode.h take them.
struct LayerForms {
  PackedMatrix in_proj, out_proj, router, gate_up, down;
};

class Model {
 public:
  Model(const Shape& shape, const ModelWeights& weights) : dims_(dims_of_shape(shape)) {
    layers_.resize(shape.layers);
    forms_.resize(shape.layers);
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const LayerWeights& from = weights.layers[i];
      StepLayer& to = layers_[i];
      LayerForms& form = forms_[i];
      to = {};
      if (const auto* w = std::get_if<DeltaNetWeights>(&from.mixer)) {
        to.in_proj =
            packed({.matrices = {{w->in_proj_qkv, w->in_proj_z, w->in_proj_a, w->in_proj_b}}}, form.in_proj);
        to.out_proj = packed({.matrices = {{w->out_proj}}}, form.out_proj);
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
        to.in_proj = packed({.matrices = {{a.q_proj, a.k_proj, a.v_proj}}}, form.in_proj);
        to.out_proj = packed({.matrices = {{a.o_proj}}}, form.out_proj);
        to.q_norm = floats(a.q_norm.to_floats());
        to.k_norm = floats(a.k_norm.to_floats());
        norms_.push_back(floats(a.input_norm.to_floats()));
      }
      experts(from.moe, to, form);
    }
    norms_.push_back(floats(weights.head.norm.to_floats()));
    for (uint32_t i = 0; i < shape.layers; ++i) {
      layers_[i].next_norm = norms_[i + 1];
    }
    head_ = packed({.matrices = {{weights.head.lm_head}}}, head_form_);
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

  // One token of each sequence; returns their logits.
  std::vector<float> step(const std::vector<Sequence*>& of, const std::vector<int32_t>& ids,
                          emulator::Grid::Options options) {
    const auto rows = static_cast<uint32_t>(of.size());
    if (board_.empty()) {
      board_.emplace_back((uint64_t{step::board_of(dims_, kStepRows).layer} * (dims_.layers + 1)) * 8);
      board_.back().clear();
      partial_.emplace_back(size_t{kStepRows} * dims_.q_heads * kMaxSplits * kHeadDim * 4);
    }
    std::vector<Segment> segments;
    std::vector<uint32_t> row_segment;
    std::vector<const int32_t*> sampled;
    for (uint32_t i = 0; i < rows; ++i) {
      segments.push_back({of[i]->recurrent.as<float>(), of[i]->table.data(), i, 1, of[i]->length++, 0});
      row_segment.push_back(i);
      sampled.push_back(&of[i]->sampled);
    }
    std::vector<float> logits(size_t{rows} * dims_.vocab, NAN);
    used_.assign(size_t{dims_.layers} * kStepExpertWords, 0xffffffffu);
    StepArgs args{};
    args.dims = dims_;
    args.layers = layers_.data();
    args.embed = embed_;
    args.embed.ids = ids.data();
    args.embed.sampled = sampled.data();
    args.embed.rows = rows;
    args.head = head_;
    args.segments = segments.data();
    args.row_segment = row_segment.data();
    args.rotary = rotary_;
    args.partial = partial_[0].as<float>();
    args.board = board_[0].as<uint64_t>();
    args.tag = ++tag_;
    args.rows = rows;
    args.logits = logits.data();
    args.experts_used = used_.data();
    options.threads = step::kWarps * 32;
    if (dims_.hidden != kTiny.hidden) {
      run<FullWidthsOfFewTokens>(options, args);
    } else if (rows == 1) {
      run<step::TinyWidths<1>>(options, args);
    } else if (rows == 2) {
      run<step::TinyWidths<2>>(options, args);
    } else if (rows == 3) {
      run<step::TinyWidths<3>>(options, args);
    } else {
      EXPECT_EQ(rows, 8U);
      run<step::TinyWidths<8>>(options, args);
    }
    return logits;
  }
  const std::vector<uint32_t>& used() const { return used_; }

  // The same by the kernels of decode.h, one after the other.
  std::vector<float> step_by_kernels(const std::vector<Sequence*>& of, const std::vector<int32_t>& ids);

 private:
  template <class W>
  void run(emulator::Grid::Options options, const StepArgs& args) const {
    options.shared_bytes = step::shared_of<W>(step::gate_units(dims_, W::kRows, options.blocks)).total;
    EXPECT_LE(options.shared_bytes, 227U * 1024);
    emulator::Grid grid(options);
    grid.run([&] { step::whole_step<W>(args, dynamic_shared()); });
  }
  const uint8_t* packed(const Recipe& recipe, PackedMatrix& to) {
    auto form = packed_form(recipe, "a matrix");
    EXPECT_TRUE(form.has_value());
    EXPECT_EQ(form->wide, 0U);
    Memory& memory = memory_.emplace_back(packed_bytes(*form));
    for (uint32_t m = 0; m < form->matrices; ++m) {
      for (uint32_t block = 0; block < form->row_blocks; ++block) {
        pack_block(recipe, *form, m, block,
                   memory.as() + (size_t{m} * form->row_blocks + block) * block_bytes(*form));
      }
    }
    to = *form;
    to.tiles = memory.as();
    return to.tiles;
  }
  const float* floats(const std::vector<float>& values) {
    Memory& memory = memory_.emplace_back(values.size() * 4);
    std::memcpy(memory.as(), values.data(), values.size() * 4);
    return memory.as<float>();
  }
  void experts(const MoeWeights& w, StepLayer& to, LayerForms& form) {
    to.router = packed({.matrices = {{w.router, w.shared_gate}}}, form.router);
    Recipe gate_up{.matrices = {}, .interleaved = true};
    Recipe down;
    for (uint32_t expert = 0; expert < w.gate.experts; ++expert) {
      gate_up.matrices.push_back({w.gate.expert(expert), w.up.expert(expert)});
      down.matrices.push_back({w.down.expert(expert)});
    }
    gate_up.matrices.push_back({w.shared_gate_proj, w.shared_up_proj});
    down.matrices.push_back({w.shared_down_proj});
    to.gate_up = packed(gate_up, form.gate_up);
    to.down = packed(down, form.down);
    to.post_norm = floats(w.post_norm.to_floats());
  }

  const Dims dims_;
  std::vector<Memory> memory_;
  std::vector<StepLayer> layers_;
  std::vector<LayerForms> forms_;
  PackedMatrix head_form_{};
  std::vector<const float*> norms_;
  const uint8_t* head_ = nullptr;
  EmbedArgs embed_{};
  const float* rotary_ = nullptr;
  std::vector<Memory> board_, partial_;
  std::vector<uint32_t> used_;
  uint32_t tag_ = 0;
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
        routing(kPublishedBytes + 256) {
    routing.clear();
  }
  Feed feed() const { return {x.as<uint16_t>(), squares.as<float>()}; }
  Feed heads_feed() const { return {heads.as<uint16_t>(), head_squares.as<float>()}; }
  Memory stream, x, squares, mixed, heads, head_squares, partial, partial_ml, router, h, routing;
};

void must(int error) { ASSERT_EQ(error, 0); }

std::vector<float> Model::step_by_kernels(const std::vector<Sequence*>& of, const std::vector<int32_t>& ids) {
  const auto rows = static_cast<uint32_t>(of.size());
  const DeviceTraits traits{.multiprocessors = 16, .compute_capability = 90, .shared_bytes = 227 * 1024};
  const Workspace ws(dims_, rows);
  std::vector<Segment> segments;
  std::vector<uint32_t> row_segment;
  for (uint32_t i = 0; i < rows; ++i) {
    segments.push_back({of[i]->recurrent.as<float>(), of[i]->table.data(), i, 1, of[i]->length++, 0});
    row_segment.push_back(i);
  }
  std::vector<float> logits(size_t{rows} * dims_.vocab, NAN);
  used_.assign(size_t{dims_.layers} * kStepExpertWords, 0xffffffffu);
  const auto stream = [&](const float* norm) {
    return StreamArgs{ws.stream.as<float>(), norm, ws.feed(), dims_.hidden};
  };
  const auto project = [&](const PackedMatrix& w, const Feed& feed, Scaling scaling, float* y,
                           const StreamArgs& to) {
    const LaunchShape shape = project_shape(w, rows, traits);
    must(launch_project({w, feed, y, y != nullptr ? step::padded(w.rows) : 0, rows, scaling, to, shape.stages,
                         shape.blocks, shape.shared},
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
    const StepLayer& w = layers_[layer];
    const LayerForms& form = forms_[layer];
    float* const mixed = ws.mixed.as<float>();
    project(form.in_proj, ws.feed(), Scaling::row, mixed, {});
    const uint32_t ld = form.in_proj.row_blocks * kTileRows;
    if (layer % 4 == 3) {
      must(launch_attend(
          {dims_, segments.data(), row_segment.data(), rows, rows, 0, mixed, ld, layer / 4, w.q_norm,
           w.k_norm, rotary_, ws.partial.as<float>(), ws.partial_ml.as<float>(), ws.heads_feed(), 1, 4},
          nullptr));
    } else {
      must(launch_delta_step({dims_, segments.data(), rows, mixed, ld, layer - layer / 4, w.conv,
                              w.decay_rate, w.dt_bias, w.norm, ws.heads_feed(), 0, 1, 0},
                             nullptr));
    }
    project(form.out_proj, ws.heads_feed(), layer % 4 == 3 ? Scaling::none : Scaling::head, nullptr,
            stream(w.post_norm));
    project(form.router, ws.feed(), Scaling::row, ws.router.as<float>(), {});
    ExpertArgs args{dims_,
                    form.gate_up,
                    ws.router.as<float>(),
                    form.router.row_blocks * kTileRows,
                    rows,
                    ws.feed(),
                    ws.h.as<uint16_t>(),
                    used_.data() + layer * kStepExpertWords,
                    {ws.routing.as<uint32_t>() + 64, ws.routing.as<uint32_t>(), layer + 1},
                    stream(w.next_norm),
                    0,
                    0,
                    0};
    const auto with = [&](const PackedMatrix& matrix, const LaunchShape& shape) {
      args.w = matrix;
      args.stages = shape.stages;
      args.blocks = shape.blocks;
      args.shared = shape.shared;
    };
    with(form.gate_up, gate_up_shape(form.gate_up, rows, traits));
    must(launch_gate_up(args, nullptr));
    with(form.down, down_shape(form.down, rows, traits));
    must(launch_down(args, nullptr));
  }
  project(head_form_, ws.feed(), Scaling::row, logits.data(), {});
  return logits;
}

// A minute, and 5 GB of memory: with --gtest_also_run_disabled_tests.
TEST(WholeStepAtFullWidth, DISABLED_IsToTheBitWhatTheKernelsOfItsPartsGive) {
  Shape shape = kQwen36.with_layers(4);
  shape.vocab = FullWidthsOfFewTokens::kVocab;
  const test::RandomWeights weights(shape, {.share_layers = true});
  Model model(shape, weights.get());
  const Dims& d = model.dims();
  Sequence whole(d);
  Sequence parts(d);
  whole.pretend(d, 3, 130);
  parts.pretend(d, 3, 130);
  const auto found =
      model.step({&whole}, {4242}, {.blocks = 132, .threads = 0, .shared_bytes = 0, .seed = 5});
  const auto used = model.used();
  const auto expected = model.step_by_kernels({&parts}, {4242});
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0);
  EXPECT_EQ(model.used(), used);
  EXPECT_EQ(std::memcmp(whole.recurrent.as(), parts.recurrent.as(),
                        (d.layers - d.layers / 4) * recurrent_stride(d) * 4),
            0);
}

class WholeStep : public ::testing::Test {
 protected:
  WholeStep() : shape_(kTiny.with_layers(4)), weights_(shape_), model_(shape_, weights_.get()) {
    host_ = std::make_unique<host::HostBackend>(DeviceInfo{.name = "reference"},
                                                std::make_unique<reference::ReferenceBlocks>(2));
    const auto plan = make_plan(shape_, {.context = kContext, .sequences = 2, .chunk = 64});
    EXPECT_TRUE(plan.has_value());
    EXPECT_TRUE(host_->load(weights_.get(), *plan, [](double) {}).has_value());
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
    return static_cast<int32_t>(test::mix(sequence * 1000 + position) % 8192);
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

TEST_F(WholeStep, OneRowIsToTheBitWhatTheKernelsOfItsPartsGive) {
  Sequence whole(model_.dims());
  Sequence parts(model_.dims());
  for (uint32_t i = 0; i < 3; ++i) {
    const auto expected = model_.step_by_kernels({&parts}, {token(0, i)});
    const auto used = model_.used();
    const auto found =
        model_.step({&whole}, {token(0, i)}, {.blocks = 20, .threads = 0, .shared_bytes = 0, .seed = i + 1});
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0) << "token " << i;
    EXPECT_EQ(model_.used(), used);
  }
}

// Splits of a context of several pages, some of them whole and one that begins with this token.
TEST_F(WholeStep, LongContextsAreToTheBitWhatTheKernelsOfTheirPartsGive) {
  const std::vector<std::vector<uint32_t>> contexts{{64}, {255, 130}};
  for (const std::vector<uint32_t>& lengths : contexts) {
    const Dims& d = model_.dims();
    std::deque<Sequence> whole;
    std::deque<Sequence> parts;
    std::vector<Sequence*> of_whole;
    std::vector<Sequence*> of_parts;
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      whole.emplace_back(d).pretend(d, 100 * i, lengths[i]);
      parts.emplace_back(d).pretend(d, 100 * i, lengths[i]);
      of_whole.push_back(&whole.back());
      of_parts.push_back(&parts.back());
      ids.push_back(token(i, lengths[i]));
    }
    const auto expected = model_.step_by_kernels(of_parts, ids);
    const auto found = model_.step(of_whole, ids, {.blocks = 19, .threads = 0, .shared_bytes = 0, .seed = 7});
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0);
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      const size_t states = (d.layers - d.layers / 4) * recurrent_stride(d) * 4;
      EXPECT_EQ(std::memcmp(whole[i].recurrent.as(), parts[i].recurrent.as(), states), 0);
      for (size_t page = 0; page < whole[i].pages.size(); ++page) {
        EXPECT_EQ(std::memcmp(whole[i].table[page], parts[i].table[page], page_elements(d) * 2), 0)
            << "page " << page;
      }
    }
  }
}

TEST_F(WholeStep, SeveralRowsAreToTheBitWhatTheKernelsOfTheirPartsGive) {
  for (const uint32_t rows : {2U, 3U, 8U}) {
    std::deque<Sequence> whole;
    std::deque<Sequence> parts;
    std::vector<Sequence*> of_whole;
    std::vector<Sequence*> of_parts;
    for (uint32_t i = 0; i < rows; ++i) {
      of_whole.push_back(&whole.emplace_back(model_.dims()));
      of_parts.push_back(&parts.emplace_back(model_.dims()));
      for (Sequence* sequence : {of_whole[i], of_parts[i]}) {
        sequence->pretend(model_.dims(), i, i * 37);
      }
    }
    for (uint32_t step = 0; step < 2; ++step) {
      std::vector<int32_t> ids;
      for (uint32_t i = 0; i < rows; ++i) {
        ids.push_back(token(i, step));
      }
      const auto expected = model_.step_by_kernels(of_parts, ids);
      const auto used = model_.used();
      const auto found = model_.step(
          of_whole, ids,
          {.blocks = 17 + step, .threads = 0, .shared_bytes = 0, .seed = step + rows, .delay = 40});
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0)
          << rows << " rows, step " << step;
      EXPECT_EQ(model_.used(), used);
    }
  }
}

TEST_F(WholeStep, LogitsAreThoseOfTheReference) {
  Sequence sequence(model_.dims());
  auto state = *host_->new_state(kContext);
  double sum = 0;
  constexpr uint32_t kTokens = 4;
  for (uint32_t i = 0; i < kTokens; ++i) {
    const auto logits = model_.step({&sequence}, {token(0, i)},
                                    {.blocks = 20, .threads = 0, .shared_bytes = 0, .seed = i + 1});
    const double far = distance(logits.data(), expected(*state, token(0, i)));
    EXPECT_LT(far, 0.3) << "token " << i;  // another expert may have been chosen
    sum += far;
  }
  EXPECT_LT(sum / kTokens, 6e-2);
}

}  // namespace
}  // namespace lily::cuda
