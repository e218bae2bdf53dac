#include "tests/blocks/device/metal_blocks.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "backends/metal/kernel_args.h"
#include "model/rope.h"

namespace lily::test {
namespace {

constexpr size_t kPlaneBytes = size_t{metal::kPageTokens} * metal::kHeadSize * sizeof(uint16_t);

}  // namespace

MetalBlocks::~MetalBlocks() = default;

MemoryNeed MetalBlocks::estimate(const ModelWeights& weights, const Plan& plan) const {
  return metal::DeviceModel::estimate(weights, plan, {}, {.name = "any", .page_bytes = 4096});
}

Result<void> MetalBlocks::load(const ModelWeights& weights, const Plan& plan,
                               FunctionRef<void(double)> progress) {
  LILY_TRY(device_, make_(plan.shape.id == ShapeId::tiny));
  LILY_TRY(model_, metal::DeviceModel::load(*device_, weights, plan, {}, progress));
  context_ = std::make_shared<metal::StateContext>(*device_, plan, [] {});
  const uint64_t rows = plan.max_rows;
  LILY_TRY(ids_, device_->buffer(rows * 4, "ids"));
  LILY_TRY(turns_, device_->buffer(rows * 2 * metal::kRotaryHalf * 4, "rotations"));
  LILY_TRY(experts_, device_->buffer(plan.shape.layers * rows * metal::kTopExperts * 4, "chosen experts"));
  LILY_TRY(pages_, device_->buffer(rows * metal::StateContext::pages_for(plan.context) * 4, "page numbers"));
  return {};
}

void MetalBlocks::finish(std::unique_ptr<metal::Commands> commands) {
  must(commands->commit());
  must(commands->wait());
}

void MetalBlocks::upload_stream(const float* stream, uint32_t rows) {
  std::copy_n(stream, size_t{rows} * model_->plan().shape.hidden, model_->stream()->as<float>());
}
void MetalBlocks::download_stream(float* stream, uint32_t rows) {
  std::copy_n(model_->stream()->as<float>(), size_t{rows} * model_->plan().shape.hidden, stream);
}

void MetalBlocks::embed(std::span<const int32_t> ids, float* stream) {
  const auto rows = static_cast<uint32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), ids_->as<int32_t>());
  auto commands = must(device_->commands("embed"));
  model_->embed(*commands, metal::View(ids_).part(0, ids.size_bytes()), 0, rows);
  finish(std::move(commands));
  download_stream(stream, rows);
}

size_t MetalBlocks::page_plane(uint32_t layer, uint32_t which, uint32_t head) const {
  const Shape& shape = model_->plan().shape;
  return ((size_t{layer / Shape::kAttentionInterval} * 2 + which) * shape.kv_heads + head) * kPlaneBytes;
}

void MetalBlocks::upload_state(uint32_t layer, const host::Segment& segment, metal::MetalState& to) {
  const Shape& shape = model_->plan().shape;
  must(to.begin_rows(0, segment.position + segment.rows, false));
  if (!shape.is_attention(layer)) {
    const uint64_t delta = metal::DeviceModel::delta_bytes(shape);
    const uint64_t conv = metal::DeviceModel::conv_bytes(shape);
    std::byte* at =
        to.recurrent().as<std::byte>() + (layer - layer / Shape::kAttentionInterval) * (delta + conv);
    std::memcpy(at, segment.state->delta(layer), delta);
    std::memcpy(at + delta, segment.state->conv(layer), conv);
    return;
  }
  const uint32_t pages = metal::StateContext::pages_for(segment.position);
  std::vector<uint32_t> numbers(metal::StateContext::pages_for(segment.position + segment.rows));
  to.page_numbers(segment.position + segment.rows, numbers.data());
  for (uint32_t page = 0; page < pages; ++page) {
    std::byte* base = context_->pages->buffer()->contents() + numbers[page] * context_->pages->page_bytes();
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      std::memcpy(base + page_plane(layer, 0, head), segment.state->keys(layer, head, page), kPlaneBytes);
      std::memcpy(base + page_plane(layer, 1, head), segment.state->values(layer, head, page), kPlaneBytes);
    }
  }
}

void MetalBlocks::download_recurrent(uint32_t layer, const metal::MetalState& from, float* conv,
                                     float* delta) const {
  const Shape& shape = model_->plan().shape;
  const uint64_t delta_bytes = metal::DeviceModel::delta_bytes(shape);
  const uint64_t conv_bytes = metal::DeviceModel::conv_bytes(shape);
  const std::byte* at = from.recurrent().as<std::byte>() +
                        (layer - layer / Shape::kAttentionInterval) * (delta_bytes + conv_bytes);
  std::memcpy(delta, at, delta_bytes);
  std::memcpy(conv, at + delta_bytes, conv_bytes);
}

void MetalBlocks::download_pages(uint32_t layer, const host::Segment& segment,
                                 const metal::MetalState& from) {
  const uint32_t end = metal::StateContext::pages_for(segment.position + segment.rows);
  std::vector<uint32_t> numbers(end);
  from.page_numbers(segment.position + segment.rows, numbers.data());
  for (uint32_t page = segment.position / metal::kPageTokens; page < end; ++page) {
    const std::byte* base =
        context_->pages->buffer()->contents() + numbers[page] * context_->pages->page_bytes();
    for (uint32_t head = 0; head < model_->plan().shape.kv_heads; ++head) {
      std::memcpy(segment.state->keys(layer, head, page), base + page_plane(layer, 0, head), kPlaneBytes);
      std::memcpy(segment.state->values(layer, head, page), base + page_plane(layer, 1, head), kPlaneBytes);
    }
  }
}

void MetalBlocks::run_batch(uint32_t layer, metal::Batch batch) {
  batch.first_row = batch.segments[0].first_row;
  batch.rows = 0;
  for (const metal::Segment& segment : batch.segments) {
    batch.rows += segment.rows;
    for (uint32_t r = 0; r < segment.rows; ++r) {
      const Rotation turn = rotation_at(segment.position + r);
      float* to = turns_->as<float>() + size_t{segment.first_row + r} * 2 * metal::kRotaryHalf;
      std::copy(turn.cosine.begin(), turn.cosine.end(), to);
      std::copy(turn.sine.begin(), turn.sine.end(), to + metal::kRotaryHalf);
    }
  }
  auto commands = must(device_->commands("mixer"));
  if (model_->plan().shape.is_attention(layer)) {
    model_->attention(*commands, layer, batch,
                      {metal::View(context_->pages->buffer()), metal::View(turns_), metal::View(experts_)});
  } else {
    model_->delta_net(*commands, layer, batch);
  }
  finish(std::move(commands));
}

void MetalBlocks::mixer(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const uint32_t rows = segments.back().first_row + segments.back().rows;
  upload_stream(stream, rows);
  std::vector<std::unique_ptr<metal::MetalState>> states;
  std::vector<metal::Segment> few;  // those that go through a block together
  const auto flush = [&] {
    if (!few.empty()) {
      run_batch(layer, {.segments = few});
      few.clear();
    }
  };
  size_t used = 0;
  for (const host::Segment& segment : segments) {
    states.push_back(must(metal::MetalState::create(context_, context_->plan.context)));
    metal::MetalState& state = *states.back();
    upload_state(layer, segment, state);
    const size_t table = metal::StateContext::pages_for(segment.position + segment.rows) * sizeof(uint32_t);
    const metal::View numbers = metal::View(pages_).part(used, table);
    state.page_numbers(segment.position + segment.rows, numbers.as<uint32_t>());
    used += table;
    const bool many = !segment.provisional && segment.rows > metal::PassRunner::kSmallSlice;
    const uint32_t piece = segment.provisional ? 1 : segment.rows;
    const uint32_t waiting = few.empty() ? 0 : few.back().first_row + few.back().rows - few[0].first_row;
    if (segment.provisional || many || waiting + segment.rows > metal::DeviceModel::kSmallRows) {
      flush();
    }
    for (uint32_t first = 0; first < segment.rows; first += piece) {
      const metal::Segment part{state.recurrent(), numbers, segment.first_row + first,
                                std::min(piece, segment.rows - first), segment.position + first};
      if (segment.provisional || many) {
        run_batch(layer, {.many = many, .segments = std::span(&part, 1)});
      } else {
        few.push_back(part);
      }
      if (segment.provisional && segment.state->kept_conv(layer, first) != nullptr) {
        download_recurrent(layer, state, segment.state->kept_conv(layer, first),
                           segment.state->kept_delta(layer, first));
      }
    }
  }
  flush();
  for (size_t i = 0; i < segments.size(); ++i) {
    if (model_->plan().shape.is_attention(layer)) {
      download_pages(layer, segments[i], *states[i]);
    } else {
      download_recurrent(layer, *states[i], segments[i].state->conv(layer), segments[i].state->delta(layer));
    }
  }
  download_stream(stream, rows);
}

uint32_t MetalBlocks::moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const uint32_t rows = segments.back().first_row + segments.back().rows;
  upload_stream(stream, rows);
  const bool many = rows > metal::PassRunner::kSmallSlice;
  auto commands = must(device_->commands("moe"));
  model_->moe(*commands, layer, {.first_row = 0, .rows = rows, .many = many, .segments = {}},
              {metal::View(context_->pages->buffer()), metal::View(turns_), metal::View(experts_)});
  finish(std::move(commands));
  download_stream(stream, rows);
  const auto* chosen =
      experts_->as<uint32_t>() + size_t{layer} * model_->plan().max_rows * metal::kTopExperts;
  return static_cast<uint32_t>(std::set<uint32_t>(chosen, chosen + size_t{rows} * metal::kTopExperts).size());
}

void MetalBlocks::head(std::span<const uint32_t> rows, const float* stream, float* logits) {
  upload_stream(stream, *std::max_element(rows.begin(), rows.end()) + 1);
  const size_t vocab = model_->plan().shape.vocab;
  for (size_t first = 0; first < rows.size(); first += metal::DeviceModel::kHeadRows) {
    const size_t count = std::min<size_t>(metal::DeviceModel::kHeadRows, rows.size() - first);
    std::copy_n(rows.begin() + static_cast<ptrdiff_t>(first), count, ids_->as<uint32_t>());
    auto commands = must(device_->commands("head"));
    model_->head(*commands, metal::View(ids_).part(0, count * 4), static_cast<uint32_t>(count));
    finish(std::move(commands));
    std::copy_n(model_->logits()->as<float>(), count * vocab, logits + first * vocab);
  }
}

}  // namespace lily::test
