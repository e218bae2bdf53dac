// What one conversation owns in the memory that host and device share: recurrent states, pages of keys and
// values that states and checkpoints share by reference (a shared page is copied before it is written), and a
// side buffer with the token sampled last and the counts that penalties look at.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backends/host/pass_rows.h"
#include "backends/host/state_progress.h"
#include "backends/metal/model.h"
#include "backends/metal/pages.h"

namespace lily::metal {

struct Remains;

// Sizes and pools that all states of a backend share. Of the device's thread alone, where nothing else is
// said.
struct StateContext {
  StateContext(Device& device, const Plan& plan, std::function<void()> settle);
  ~StateContext();
  // What a checkpoint held, from whatever thread it ended in, until the device's thread takes it back. It
  // must be taken back before the context can end.
  void bury(Remains remains);
  void take_back();

  Device& device;
  Plan plan;
  // Waits for the passes that are submitted and marks the states that they left unusable.
  std::function<void()> settle;
  std::shared_ptr<PagePool> pages;
  uint64_t buffer_bytes = 0;               // of recurrent states and side buffers, now
  std::atomic<uint64_t> stored_bytes = 0;  // of checkpoints that were read and not yet placed
  std::mutex mutex;  // of `buried`, and of the parts of checkpoints that place() changes
  std::vector<Remains> buried;

  static uint64_t page_bytes(const Shape& shape);
  static uint32_t pages_for(uint32_t tokens);
  // Side buffer: the sampled token, the bits of the prompt, the counts of the answer.
  static uint64_t bits_offset();
  static uint64_t counts_offset(const Shape& shape);
  static uint64_t side_bytes(const Shape& shape);
  static uint64_t bytes_per_sequence(const Plan& plan);
};

// A buffer that counts as memory of states for as long as it lives.
class StateBuffer {
 public:
  StateBuffer() = default;
  static Result<StateBuffer> allocate(const std::shared_ptr<StateContext>& context, size_t bytes,
                                      std::string_view label);
  StateBuffer(StateBuffer&&) noexcept = default;
  StateBuffer& operator=(StateBuffer&& other) noexcept;
  ~StateBuffer();
  const std::unique_ptr<Buffer>& get() const { return buffer_; }
  void copy_from(const StateBuffer& other) const;

 private:
  std::shared_ptr<StateContext> context_;
  std::unique_ptr<Buffer> buffer_;
};

struct Remains {
  StateBuffer recurrent, side;
  std::vector<PagePool::Page> pages;
};

using host::StateFlags;

// One that was read lies in the host's memory until a state resumes it: pages are taken by the device's
// thread alone.
class MetalCheckpoint final : public Checkpoint {
 public:
  MetalCheckpoint(std::shared_ptr<StateContext> context, uint32_t length)
      : context_(std::move(context)), length_(length) {}
  ~MetalCheckpoint() override;
  MetalCheckpoint(const MetalCheckpoint&) = delete;
  MetalCheckpoint& operator=(const MetalCheckpoint&) = delete;
  uint32_t length() const override { return length_; }
  // Pages count in full although others may share them.
  uint64_t bytes() const override;
  // Per page its bytes, the last one whole; the rest are the recurrent states. The counts of an answer and
  // its last token are not stored: a checkpoint that was read starts a new answer.
  Result<void> write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const override;
  Result<void> write_rest(ByteSink& sink) const override;
  static Result<std::unique_ptr<MetalCheckpoint>> read(const std::shared_ptr<StateContext>& context,
                                                       const StoredForm& form, ByteSource& source);

 private:
  friend class MetalState;
  // What was read: the pages that follow those of `held_`, and the recurrent states.
  struct Stored {
    explicit Stored(StateContext& of, size_t bytes) : context(of), data(bytes) {
      context.stored_bytes += bytes;
    }
    ~Stored() { context.stored_bytes -= data.size(); }
    Stored(const Stored&) = delete;
    Stored& operator=(const Stored&) = delete;
    StateContext& context;
    std::vector<std::byte> data;
  };
  Result<void> place() const;  // what is stored to where a state finds it

  std::shared_ptr<StateContext> context_;
  uint32_t length_;
  bool samples_ = false;
  mutable Remains held_;
  mutable std::shared_ptr<const Stored> stored_;
};

class MetalState final : public SequenceState {
 public:
  static Result<std::unique_ptr<MetalState>> create(std::shared_ptr<StateContext> context,
                                                    uint32_t max_tokens);
  ~MetalState() override;  // waits for submitted passes

  uint32_t length() const override { return progress_.length; }
  Result<std::unique_ptr<Checkpoint>> save() override;
  Result<void> resume(const Checkpoint& checkpoint) override;
  Result<void> accept(uint32_t rows) override;
  Result<void> begin_answer(std::span<const int32_t> prompt) override;

  // For whoever submits passes.
  const StateContext& context() const { return *context_; }
  const std::shared_ptr<StateFlags>& flags() const { return flags_; }
  host::StateFacts facts() const { return progress_.facts(flags_->failed); }
  // Pages for rows [position, position + rows) that are this state's own, and for a provisional pass the
  // buffers that keep the recurrent states after each row but the last.
  Result<void> begin_rows(uint32_t position, uint32_t rows, bool provisional);
  // Notes a submitted slice. Drafted tokens but the first count as the answer's: the pass has to count them.
  void submitted(std::span<const int32_t> tokens, Keep keep, bool samples) {
    progress_.submitted(tokens, keep, samples);
  }
  // Numbers of the pages of the first `tokens` tokens.
  void page_numbers(uint32_t tokens, uint32_t* to) const;
  View recurrent() const { return recurrent_.get(); }
  // Where the recurrent states after row `row` of the provisional pass go; empty for the last row.
  View kept(uint32_t row) const;
  View sampled() const { return View(side_.get()).part(0, sizeof(int32_t)); }
  View prompt_bits() const;
  View counts() const;

 private:
  MetalState(std::shared_ptr<StateContext> context, uint32_t max_tokens);
  void wait() const;

  std::shared_ptr<StateContext> context_;
  std::shared_ptr<StateFlags> flags_ = std::make_shared<StateFlags>();
  host::StateProgress progress_;
  StateBuffer recurrent_, side_;
  std::vector<PagePool::Page> pages_;
  std::vector<StateBuffer> kept_;
};

}  // namespace lily::metal
