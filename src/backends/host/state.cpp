#include "backends/host/state.h"

#include <algorithm>
#include <cstring>

#include "backends/host/seam.h"
#include "base/check.h"

namespace lily::host {
namespace {

uint32_t blocks_for(uint32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

Result<RecurrentArrays> copy_of(const RecurrentArrays& from) {
  LILY_TRY(RecurrentArrays to, RecurrentArrays::allocate(from.size()));
  std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
  return to;
}

}  // namespace

Result<BlockRef> BlockRef::allocate(size_t bytes, const std::shared_ptr<MemoryCount>& count) {
  auto block = std::make_unique<KvBlock>();
  LILY_TRY(block->data, AlignedBytes::allocate(bytes));
  block->charge = MemoryCharge(count, bytes);
  BlockRef ref;
  ref.block_ = block.release();
  return ref;
}

BlockRef::BlockRef(const BlockRef& other) : block_(other.block_) {
  if (block_ != nullptr) {
    block_->users.fetch_add(1, std::memory_order_relaxed);
  }
}

BlockRef::~BlockRef() {
  if (block_ != nullptr && block_->users.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete block_;
  }
}

void PassGate::enter() {
  const std::lock_guard lock(mutex_);
  ++inside_;
}

void PassGate::leave() {
  const std::lock_guard lock(mutex_);
  if (--inside_ == 0) {
    idle_.notify_all();
  }
}

void PassGate::wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return inside_ == 0; });
}

uint64_t HostCheckpoint::bytes() const {
  return recurrent_.size() * sizeof(float) + blocks_.size() * uint64_t{layout_.kv_block_bytes()};
}

Result<void> HostCheckpoint::write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const {
  check_row_range(begin, end, length_);
  for (uint32_t block = begin / kBlockTokens; block < blocks_for(end); ++block) {
    LILY_TRY_VOID(sink.write({blocks_[block].data().data(), blocks_[block].data().size()}));
  }
  return {};
}

Result<void> HostCheckpoint::write_rest(ByteSink& sink) const {
  return sink.write(std::as_bytes(recurrent_.span()));
}

Result<std::unique_ptr<HostCheckpoint>> HostCheckpoint::read(const StateLayout& layout,
                                                             const StoredForm& form, ByteSource& source) {
  auto checkpoint = std::make_unique<HostCheckpoint>(layout, form.length);
  if (form.shared > 0) {
    const auto* base = dynamic_cast<const HostCheckpoint*>(form.base);
    LILY_TRY_VOID(check_base(base != nullptr && base->layout_ == layout ? base : nullptr, form));
    const auto blocks = static_cast<ptrdiff_t>(form.shared / kBlockTokens);
    checkpoint->blocks_.assign(base->blocks_.begin(), base->blocks_.begin() + blocks);
  }
  while (checkpoint->blocks_.size() < blocks_for(form.length)) {
    LILY_TRY(BlockRef block, BlockRef::allocate(layout.kv_block_bytes(), layout.memory));
    LILY_TRY_VOID(source.read({block.data().data(), block.data().size()}));
    checkpoint->blocks_.push_back(std::move(block));
  }
  LILY_TRY(checkpoint->recurrent_, RecurrentArrays::allocate(layout.recurrent_floats()));
  checkpoint->charge_ = layout.charge_arrays(1);
  LILY_TRY_VOID(source.read(std::as_writable_bytes(checkpoint->recurrent_.span())));
  return checkpoint;
}

HostState::HostState(const StateLayout& layout, uint32_t max_tokens)
    : layout_(layout), progress_(max_tokens) {
  blocks_.reserve(blocks_for(max_tokens));
}

HostState::~HostState() { gate_->wait(); }

Result<std::unique_ptr<HostState>> HostState::create(const StateLayout& layout, uint32_t max_tokens) {
  std::unique_ptr<HostState> state(new HostState(layout, max_tokens));
  LILY_TRY(state->recurrent_, RecurrentArrays::allocate(layout.recurrent_floats()));
  state->charge_ = layout.charge_arrays(1);
  return state;
}

Result<std::unique_ptr<Checkpoint>> HostState::save() {
  gate_->wait();
  LILY_TRY_VOID(check_save(failed(), progress_.draft_rows));
  auto checkpoint = std::make_unique<HostCheckpoint>(layout_, progress_.length);
  LILY_TRY(checkpoint->recurrent_, copy_of(recurrent_));
  checkpoint->charge_ = layout_.charge_arrays(1);
  checkpoint->blocks_.assign(blocks_.begin(), blocks_.begin() + blocks_for(progress_.length));
  checkpoint->answer_ = answer_;
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<void> HostState::resume(const Checkpoint& checkpoint) {
  gate_->wait();
  const auto* from = dynamic_cast<const HostCheckpoint*>(&checkpoint);
  LILY_TRY_VOID(
      check_resume(from != nullptr && from->layout_ == layout_ ? from : nullptr, progress_.max_tokens));
  std::memcpy(recurrent_.data(), from->recurrent_.data(), recurrent_.size() * sizeof(float));
  blocks_.assign(from->blocks_.begin(), from->blocks_.end());
  answer_ = from->answer_;
  progress_.resumed(from->length_, answer_.sampled >= 0);
  kept_rows_ = 0;
  gate_->failed = false;
  gate_->failure_known = false;
  ++gate_->resumed;
  return {};
}

Result<void> HostState::accept(uint32_t rows) {
  gate_->wait();
  LILY_TRY_VOID(check_accept(failed(), progress_.draft_rows, rows));
  if (rows < progress_.draft_rows) {
    std::memcpy(recurrent_.data(), kept_[rows - 1].data(), recurrent_.size() * sizeof(float));
    for (uint32_t row = rows; row < progress_.draft_rows; ++row) {
      answer_.counts.remove(progress_.draft_tokens[row]);
    }
    if (answer_.sampled >= 0) {
      answer_.counts.remove(answer_.sampled);
      answer_.sampled = -1;
    }
  }
  progress_.accepted(rows);
  blocks_.resize(blocks_for(progress_.length));
  kept_rows_ = 0;
  return {};
}

Result<void> HostState::begin_answer(std::span<const int32_t> prompt) {
  gate_->wait();
  answer_.counts.begin(prompt, layout_.shape.vocab);
  return {};
}

size_t HostState::recurrent_offset(uint32_t layer) const {
  LILY_CHECK(layer < layout_.shape.layers && !layout_.shape.is_attention(layer));
  const uint32_t index = layer - layer / Shape::kAttentionInterval;  // among the delta-net layers
  return index * (layout_.conv_floats() + layout_.delta_floats());
}

float* HostState::conv(uint32_t layer) { return recurrent_.data() + recurrent_offset(layer); }

float* HostState::delta(uint32_t layer) { return conv(layer) + layout_.conv_floats(); }

float* HostState::kept_conv(uint32_t layer, uint32_t row) {
  return row < kept_rows_ ? kept_[row].data() + recurrent_offset(layer) : nullptr;
}

float* HostState::kept_delta(uint32_t layer, uint32_t row) {
  float* conv = kept_conv(layer, row);
  return conv == nullptr ? nullptr : conv + layout_.conv_floats();
}

void HostState::keep_row(uint32_t layer, uint32_t row) {
  if (float* to = kept_conv(layer, row)) {
    std::memcpy(to, conv(layer), (layout_.conv_floats() + layout_.delta_floats()) * sizeof(float));
  }
}

std::byte* HostState::kv(uint32_t layer, uint32_t which, uint32_t kv_head, uint32_t block) {
  const Shape& shape = layout_.shape;
  LILY_CHECK(layer < shape.layers && shape.is_attention(layer) && block < blocks_.size());
  const size_t index = (size_t{layer / Shape::kAttentionInterval} * 2 + which) * shape.kv_heads + kv_head;
  return blocks_[block].data().data() + index * layout_.kv_head_bytes();
}

std::byte* HostState::keys(uint32_t layer, uint32_t kv_head, uint32_t block) {
  return kv(layer, 0, kv_head, block);
}

std::byte* HostState::values(uint32_t layer, uint32_t kv_head, uint32_t block) {
  return kv(layer, 1, kv_head, block);
}

// Leaves `block` allocated and referred to by this state alone, with its contents.
Result<void> HostState::make_own(BlockRef& block) {
  if (!block.empty() && block.exclusive()) {
    return {};
  }
  LILY_TRY(BlockRef own, BlockRef::allocate(layout_.kv_block_bytes(), layout_.memory));
  if (!block.empty()) {
    std::memcpy(own.data().data(), block.data().data(), own.data().size());
  }
  block = std::move(own);
  return {};
}

Result<void> HostState::begin_rows(uint32_t position, uint32_t rows, bool provisional) {
  LILY_CHECK(rows > 0 && position + rows <= progress_.max_tokens);
  const uint32_t first = position / kBlockTokens;
  const uint32_t end = blocks_for(position + rows);
  if (blocks_.size() < end) {
    blocks_.resize(end);
  }
  for (uint32_t block = first; block < end; ++block) {
    LILY_TRY_VOID(make_own(blocks_[block]));
  }
  kept_rows_ = provisional ? rows - 1 : 0;
  while (kept_.size() < kept_rows_) {
    LILY_TRY(RecurrentArrays arrays, RecurrentArrays::allocate(layout_.recurrent_floats()));
    kept_.push_back(std::move(arrays));
    charge_ = layout_.charge_arrays(1 + kept_.size());
  }
  return {};
}

}  // namespace lily::host
