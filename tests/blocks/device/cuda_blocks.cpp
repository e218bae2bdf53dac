#include "tests/blocks/device/cuda_blocks.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/cuda/pass.h"

namespace lily::test {
namespace {

using cuda::kConvTaps;
using cuda::kSmallRows;

}  // namespace

Result<std::unique_ptr<host::Blocks>> CudaBlocks::create() {
  std::unique_ptr<CudaBlocks> blocks(new CudaBlocks);
  cudaDeviceProp properties{};
  LILY_TRY_VOID(cuda::check(cudaGetDeviceProperties(&properties, 0), "the properties of the GPU"));
  blocks->traits_ = {.multiprocessors = static_cast<uint32_t>(properties.multiProcessorCount),
                     .compute_capability = static_cast<uint32_t>(properties.major * 10 + properties.minor),
                     .shared_bytes = static_cast<uint32_t>(properties.sharedMemPerBlockOptin)};
  LILY_TRY_VOID(cuda::check(cudaStreamCreateWithFlags(&blocks->queue_, cudaStreamNonBlocking), "a stream"));
  return std::unique_ptr<host::Blocks>(std::move(blocks));
}

CudaBlocks::~CudaBlocks() {
  static_cast<void>(cuda::finish(queue_));
  model_.reset();
  context_.reset();
  static_cast<void>(cudaStreamDestroy(queue_));
}

MemoryNeed CudaBlocks::estimate(const ModelWeights& weights, const Plan& plan) const {
  MemoryNeed need;
  need.weights = must(cuda::Residency::bytes(plan.shape, weights));
  need.workspace = cuda::DeviceModel::workspace_bytes(plan);
  return need;
}

Result<void> CudaBlocks::load(const ModelWeights& weights, const Plan& plan,
                              FunctionRef<void(double)> progress) {
  model_ = std::make_unique<cuda::DeviceModel>(plan, traits_, meter_, queue_);
  LILY_TRY_VOID(model_->load(weights, progress));
  context_ = std::make_shared<cuda::StateContext>(plan, meter_, queue_);
  LILY_TRY(tables_, cuda::DeviceMemory::allocate(size_t{plan.max_rows} * 64, meter_, "memory for tables"));
  return {};
}

void CudaBlocks::upload_stream(const float* stream, uint32_t rows) {
  must(cuda::copy_to_device(model_->stream(), stream, size_t{rows} * model_->dims().hidden * sizeof(float),
                            queue_));
}
void CudaBlocks::download_stream(float* stream, uint32_t rows) {
  must(cuda::copy_to_host(stream, model_->stream(), size_t{rows} * model_->dims().hidden * sizeof(float),
                          queue_));
  must(cuda::finish(queue_));
}

void CudaBlocks::embed(std::span<const int32_t> ids, float* stream) {
  const auto rows = static_cast<uint32_t>(ids.size());
  must(cuda::copy_to_device(tables_.bytes(), ids.data(), ids.size_bytes(), queue_));
  must(model_->embed(tables_.as<int32_t>(), nullptr, rows));
  download_stream(stream, rows);
}

// The convolution's inputs lie by position, those of the host by age.
void CudaBlocks::upload_state(uint32_t layer, const host::Segment& segment, cuda::CudaState& to) {
  const cuda::Dims& d = model_->dims();
  must(to.begin_rows(0, segment.position + segment.rows, false));
  if (!model_->plan().shape.is_attention(layer)) {
    std::vector<float> both(cuda::recurrent_stride(d));
    std::copy_n(segment.state->delta(layer), cuda::delta_floats(d), both.begin());
    const uint32_t channels = cuda::conv_channels(d);
    for (uint32_t age = 0; age < kConvTaps - 1; ++age) {
      const uint32_t row = (segment.position + 1 + age) % kConvTaps;  // position - 3 + age
      std::copy_n(segment.state->conv(layer) + size_t{age} * channels, channels,
                  both.begin() + static_cast<ptrdiff_t>(cuda::delta_floats(d) + size_t{row} * channels));
    }
    const size_t at = (layer - layer / Shape::kAttentionInterval) * both.size();
    must(cuda::copy_to_device(to.recurrent() + at, both.data(), both.size() * sizeof(float), queue_));
    must(cuda::finish(queue_));
    return;
  }
  const uint32_t pages = (segment.position + cuda::kPageTokens - 1) / cuda::kPageTokens;
  std::vector<uint16_t*> table(pages);
  must(cuda::copy_to_host(table.data(), to.segment(0, 1, 0).pages, pages * sizeof(uint16_t*), queue_));
  must(cuda::finish(queue_));
  for (uint32_t page = 0; page < pages; ++page) {
    for (uint32_t head = 0; head < d.kv_heads; ++head) {
      for (uint32_t which = 0; which < 2; ++which) {
        const std::byte* from =
            which == 0 ? segment.state->keys(layer, head, page) : segment.state->values(layer, head, page);
        must(cuda::copy_to_device(
            table[page] + cuda::page_offset(d, layer / Shape::kAttentionInterval, which, head), from,
            cuda::page_plane(d) * sizeof(uint16_t), queue_));
      }
    }
  }
  must(cuda::finish(queue_));
}

void CudaBlocks::download_recurrent(uint32_t layer, const cuda::CudaState& from, uint32_t length, float* conv,
                                    float* delta) {
  const cuda::Dims& d = model_->dims();
  std::vector<float> both(cuda::recurrent_stride(d));
  const size_t at = (layer - layer / Shape::kAttentionInterval) * both.size();
  must(cuda::copy_to_host(both.data(), from.recurrent() + at, both.size() * sizeof(float), queue_));
  must(cuda::finish(queue_));
  std::copy_n(both.begin(), cuda::delta_floats(d), delta);
  const uint32_t channels = cuda::conv_channels(d);
  for (uint32_t age = 0; age < kConvTaps - 1; ++age) {
    const uint32_t row = (length + 1 + age) % kConvTaps;
    std::copy_n(both.begin() + static_cast<ptrdiff_t>(cuda::delta_floats(d) + size_t{row} * channels),
                channels, conv + size_t{age} * channels);
  }
}

void CudaBlocks::download_pages(uint32_t layer, const host::Segment& segment, const cuda::CudaState& from) {
  const cuda::Dims& d = model_->dims();
  const uint32_t first = segment.position / cuda::kPageTokens;
  const uint32_t end = (segment.position + segment.rows + cuda::kPageTokens - 1) / cuda::kPageTokens;
  std::vector<uint16_t*> table(end);
  must(cuda::copy_to_host(table.data(), from.segment(0, 1, 0).pages, end * sizeof(uint16_t*), queue_));
  must(cuda::finish(queue_));
  for (uint32_t page = first; page < end; ++page) {
    for (uint32_t head = 0; head < d.kv_heads; ++head) {
      for (uint32_t which = 0; which < 2; ++which) {
        std::byte* to =
            which == 0 ? segment.state->keys(layer, head, page) : segment.state->values(layer, head, page);
        must(cuda::copy_to_host(
            to, table[page] + cuda::page_offset(d, layer / Shape::kAttentionInterval, which, head),
            cuda::page_plane(d) * sizeof(uint16_t), queue_));
      }
    }
  }
  must(cuda::finish(queue_));
}

// Rows of the segments, which lie one after the other in the stream.
void CudaBlocks::run_batch(uint32_t layer, std::span<const cuda::Segment> segments, bool prefill) {
  std::vector<cuda::Segment> own(segments.begin(), segments.end());
  std::vector<uint32_t> row_segment;
  cuda::Batch batch{.first_row = segments[0].first_row, .prefill = prefill};
  batch.single = true;
  for (cuda::Segment& segment : own) {
    row_segment.insert(row_segment.end(), segment.rows, batch.segment_count++);
    batch.rows += segment.rows;
    batch.single = batch.single && segment.rows == 1;
    segment.first_row -= prefill ? batch.first_row : 0;
  }
  const size_t offset = (own.size() * sizeof(cuda::Segment) + 255) / 256 * 256;
  must(cuda::copy_to_device(tables_.bytes(), own.data(), own.size() * sizeof(cuda::Segment), queue_));
  must(cuda::copy_to_device(tables_.bytes() + offset, row_segment.data(), row_segment.size() * 4, queue_));
  batch.segments = tables_.as<cuda::Segment>();
  batch.host_segments = own.data();
  batch.row_segment = reinterpret_cast<const uint32_t*>(tables_.bytes() + offset);
  must(model_->prepare(layer, cuda::Next::mixer, batch.first_row, batch.rows));
  must(model_->plan().shape.is_attention(layer) ? model_->attention(layer, batch)
                                                : model_->delta_net(layer, batch));
  must(cuda::finish(queue_));
}

void CudaBlocks::mixer(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const uint32_t rows = segments.back().first_row + segments.back().rows;
  upload_stream(stream, rows);
  std::vector<std::unique_ptr<cuda::CudaState>> states;
  std::vector<cuda::Segment> few;  // those that go through a launch together
  const auto flush = [&] {
    if (!few.empty()) {
      run_batch(layer, few, false);
      few.clear();
    }
  };
  for (const host::Segment& segment : segments) {
    states.push_back(must(cuda::CudaState::create(context_, context_->plan.context)));
    cuda::CudaState& state = *states.back();
    upload_state(layer, segment, state);
    const bool prefill =
        !segment.provisional && segment.rows > cuda::PassRunner::kSmallSlice && model_->takes_prefill();
    const uint32_t piece = segment.provisional ? 1 : prefill ? segment.rows : kSmallRows;
    const uint32_t waiting = few.empty() ? 0 : few.back().first_row + few.back().rows - few[0].first_row;
    if (segment.provisional || segment.rows > cuda::PassRunner::kSmallSlice ||
        waiting + segment.rows > kSmallRows) {
      flush();
    }
    for (uint32_t first = 0; first < segment.rows; first += piece) {
      const uint32_t count = std::min(piece, segment.rows - first);
      const cuda::Segment part = state.segment(segment.first_row + first, count, segment.position + first);
      if (segment.provisional || segment.rows > cuda::PassRunner::kSmallSlice) {
        run_batch(layer, std::span(&part, 1), prefill);
      } else {
        few.push_back(part);
      }
      if (segment.provisional && segment.state->kept_conv(layer, first) != nullptr) {
        download_recurrent(layer, state, segment.position + first + 1, segment.state->kept_conv(layer, first),
                           segment.state->kept_delta(layer, first));
      }
    }
  }
  flush();
  for (size_t i = 0; i < segments.size(); ++i) {
    const host::Segment& segment = segments[i];
    if (model_->plan().shape.is_attention(layer)) {
      download_pages(layer, segment, *states[i]);
    } else {
      download_recurrent(layer, *states[i], segment.position + segment.rows, segment.state->conv(layer),
                         segment.state->delta(layer));
    }
  }
  download_stream(stream, rows);
}

uint32_t CudaBlocks::moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const uint32_t rows = segments.back().first_row + segments.back().rows;
  const size_t words = size_t{model_->dims().layers} * cuda::DeviceModel::kExpertWords;
  must(cuda::clear(model_->experts_used(), words * 4, queue_));
  upload_stream(stream, rows);
  const bool prefill = rows > cuda::PassRunner::kSmallSlice && model_->takes_prefill();
  for (uint32_t first = 0; first < rows; first += prefill ? rows : kSmallRows) {
    cuda::Batch batch{.first_row = first, .prefill = prefill};
    batch.rows = prefill ? rows : std::min(kSmallRows, rows - first);
    must(model_->prepare(layer, cuda::Next::moe, first, batch.rows));
    must(model_->moe(layer, batch));
  }
  std::vector<uint32_t> used(words);
  must(cuda::copy_to_host(used.data(), model_->experts_used(), words * 4, queue_));
  download_stream(stream, rows);
  uint32_t count = 0;
  for (uint32_t i = 0; i < cuda::DeviceModel::kExpertWords; ++i) {
    count += static_cast<uint32_t>(std::popcount(used[layer * cuda::DeviceModel::kExpertWords + i]));
  }
  return count;
}

void CudaBlocks::head(std::span<const uint32_t> rows, const float* stream, float* logits) {
  upload_stream(stream, *std::max_element(rows.begin(), rows.end()) + 1);
  const size_t vocab = model_->dims().vocab;
  for (size_t first = 0; first < rows.size(); first += kSmallRows) {
    const size_t count = std::min<size_t>(kSmallRows, rows.size() - first);
    must(cuda::copy_to_device(tables_.bytes(), rows.data() + first, count * 4, queue_));
    must(model_->head(tables_.as<uint32_t>(), static_cast<uint32_t>(count)));
    must(cuda::copy_to_host(logits + first * vocab, model_->logits(), count * vocab * sizeof(float), queue_));
    must(cuda::finish(queue_));
  }
}

}  // namespace lily::test
