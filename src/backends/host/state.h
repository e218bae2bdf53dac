// What one conversation owns in host memory. Keys and values lie in blocks of kBlockTokens tokens that states
// and checkpoints share by reference; a shared block is copied before it is written. Recurrent states are
// plain arrays.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backends/host/state_progress.h"
#include "base/aligned.h"
#include "sampling/sampler.h"

namespace lily::host {

inline constexpr uint32_t kBlockTokens = 64;

// What all states and checkpoints of a backend hold, in bytes.
using MemoryCount = std::atomic<uint64_t>;

// Adds to a count for as long as it lives.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(std::shared_ptr<MemoryCount> count, uint64_t bytes) : count_(std::move(count)), bytes_(bytes) {
    if (count_) *count_ += bytes_;
  }
  MemoryCharge(MemoryCharge&& other) noexcept
      : count_(std::move(other.count_)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge other) noexcept {
    std::swap(count_, other.count_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() {
    if (count_) *count_ -= bytes_;
  }

 private:
  std::shared_ptr<MemoryCount> count_;
  uint64_t bytes_ = 0;
};

// Keys and values of kBlockTokens consecutive tokens in all attention layers:
// [attention layer][keys | values][kv head][token][kHeadDim], elements f32 or bf16.
struct KvBlock {
  AlignedBytes data;
  MemoryCharge charge;
  std::atomic<uint32_t> users = 1;  // BlockRefs
};

// Shared ownership of a KvBlock. Unlike std::shared_ptr it can say that nobody else refers to the block in a
// way that orders their last reads before this owner's writes.
class BlockRef {
 public:
  BlockRef() = default;
  static Result<BlockRef> allocate(size_t bytes, const std::shared_ptr<MemoryCount>& count);
  BlockRef(const BlockRef& other);
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef();

  bool empty() const { return block_ == nullptr; }
  bool exclusive() const { return block_->users.load(std::memory_order_acquire) == 1; }
  AlignedBytes& data() const { return block_->data; }

 private:
  KvBlock* block_ = nullptr;
};

// Sizes that every state of a backend has in common.
struct StateLayout {
  Shape shape;
  DType kv_type;
  std::shared_ptr<MemoryCount> memory{};  // where what they hold is counted; null: nowhere
  size_t kv_head_bytes() const { return size_t{kBlockTokens} * Shape::kHeadDim * size_of(kv_type); }
  size_t kv_block_bytes() const {
    return size_t{shape.attention_layers()} * 2 * shape.kv_heads * kv_head_bytes();
  }
  size_t conv_floats() const {
    return size_t{shape.conv_channels()} * (Shape::kConvKernel - 1);
  }  // of one layer
  size_t delta_floats() const {
    return size_t{shape.v_heads} * Shape::kKeyDim * Shape::kValueDim;
  }  // of one layer
  size_t recurrent_floats() const { return shape.delta_net_layers() * (conv_floats() + delta_floats()); }
  MemoryCharge charge_arrays(size_t arrays) const {
    return {memory, arrays * recurrent_floats() * sizeof(float)};
  }
  bool operator==(const StateLayout& other) const {
    return shape.id == other.shape.id && shape.layers == other.shape.layers && kv_type == other.kv_type;
  }
};

// What a state shares with the submitted passes that use it, and that may outlive it.
class PassGate {
 public:
  void enter();
  void leave();
  void wait();  // until no pass is inside

  // A pass failed and left the state unusable. Set by whoever runs passes.
  std::atomic<bool> failed = false;
  // The same, once the caller has collected a pass that says so; and how often the state was resumed since,
  // so that a pass collected later says nothing about the state of now.
  bool failure_known = false;
  uint32_t resumed = 0;

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  uint32_t inside_ = 0;
};

// Both arrays of all delta-net layers: [layer][conv | delta].
using RecurrentArrays = AlignedArray<float>;

// The token counts of the answer and the token sampled last: what sampling needs besides logits.
struct AnswerState {
  TokenCounts counts;
  int32_t sampled = -1;  // the token that an empty slice feeds; -1 = none
};

class HostCheckpoint final : public Checkpoint {
 public:
  HostCheckpoint(StateLayout layout, uint32_t length) : layout_(layout), length_(length) {}
  uint32_t length() const override { return length_; }
  // Key-value blocks count in full although others may share them.
  uint64_t bytes() const override;
  // Per block of kBlockTokens tokens its bytes, the last one whole. The rest are the recurrent arrays; the
  // counts of an answer and its last token are not stored: a checkpoint that was read starts a new answer.
  Result<void> write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const override;
  Result<void> write_rest(ByteSink& sink) const override;
  static Result<std::unique_ptr<HostCheckpoint>> read(const StateLayout& layout, const StoredForm& form,
                                                      ByteSource& source);

 private:
  friend class HostState;
  StateLayout layout_;
  uint32_t length_;
  MemoryCharge charge_;
  RecurrentArrays recurrent_;
  std::vector<BlockRef> blocks_;
  AnswerState answer_;
};

// Two threads touch a state: the caller's (SequenceState, submitted()) and the one that runs passes
// (begin_rows(), the accessors, answer()). The gate keeps the former out of what the latter uses.
class HostState final : public SequenceState {
 public:
  static Result<std::unique_ptr<HostState>> create(const StateLayout& layout, uint32_t max_tokens);
  ~HostState() override;  // waits for submitted passes

  uint32_t length() const override { return progress_.length; }
  // Fails while provisional rows wait for accept(), and after a failed pass.
  Result<std::unique_ptr<Checkpoint>> save() override;
  // Makes any state of the same backend what it was at the checkpoint, a failed one too.
  Result<void> resume(const Checkpoint& checkpoint) override;
  // 1 <= rows <= rows of the pass. Drafted tokens that stay (all but the first, which was sampled before)
  // count as the answer's. With fewer than all rows, the token that the pass sampled is forgotten.
  Result<void> accept(uint32_t rows) override;
  Result<void> begin_answer(std::span<const int32_t> prompt) override;

  // For Blocks. `layer` counts all layers of the model; it must be of the right kind.
  // conv: [kConvKernel - 1][conv_channels], oldest first. delta: [v_heads][kKeyDim][kValueDim].
  float* conv(uint32_t layer);
  float* delta(uint32_t layer);
  // Copies both for a later accept(row + 1). Does nothing for the last row of the pass.
  void keep_row(uint32_t layer, uint32_t row);
  // Where keep_row copies to, for blocks that write there themselves; null for the last row of the pass.
  float* kept_conv(uint32_t layer, uint32_t row);
  float* kept_delta(uint32_t layer, uint32_t row);
  // The first element of token block `block` of one head: kBlockTokens rows of kHeadDim. A block that holds a
  // row of the pass is this state's own; an earlier one may be shared and must only be read.
  std::byte* keys(uint32_t layer, uint32_t kv_head, uint32_t block);
  std::byte* values(uint32_t layer, uint32_t kv_head, uint32_t block);

  // For whoever runs passes. Call before the blocks of a pass: allocates or unshares what rows
  // [position, position + rows) are written to, and for a provisional pass the arrays of keep_row.
  Result<void> begin_rows(uint32_t position, uint32_t rows, bool provisional);
  AnswerState& answer() { return answer_; }

  // For whoever submits passes, in the caller's thread.
  const std::shared_ptr<PassGate>& gate() const { return gate_; }
  bool failed() const { return gate_->failed; }
  const StateLayout& layout() const { return layout_; }
  const StateProgress& progress() const { return progress_; }
  // Notes a submitted slice: `tokens` are its ids (rows of them), or empty for the sampled token.
  void submitted(std::span<const int32_t> tokens, Keep keep, bool samples) {
    progress_.submitted(tokens, keep, samples);
  }

 private:
  HostState(const StateLayout& layout, uint32_t max_tokens);
  size_t recurrent_offset(uint32_t layer) const;
  std::byte* kv(uint32_t layer, uint32_t which, uint32_t kv_head, uint32_t block);
  Result<void> make_own(BlockRef& block);

  StateLayout layout_;
  std::shared_ptr<PassGate> gate_ = std::make_shared<PassGate>();
  // The caller's side.
  StateProgress progress_;
  // The running side.
  MemoryCharge charge_;  // of the arrays
  RecurrentArrays recurrent_;
  std::vector<BlockRef> blocks_;
  std::vector<RecurrentArrays> kept_;  // [row]
  uint32_t kept_rows_ = 0;             // rows of the provisional pass but the last
  AnswerState answer_;
};

}  // namespace lily::host
