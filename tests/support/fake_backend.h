// A device without a model: the next token is a hash of the whole token history of a state (and, when it
// samples at random, of the seed). It keeps to the contract of backend.h and checks that its caller does, so
// that a test of the engine fails where the engine would mislead a real device.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"

namespace lily::test {

// What a test sees of one slice.
struct SeenSlice {
  int state = 0;
  uint32_t position = 0;  // tokens absorbed before
  uint32_t rows = 0;
  bool decode = false;  // the empty slice
  bool samples = false;
  uint32_t logits_rows = 0;
  ReadAs read_as = ReadAs::by_number;
};
using SeenPass = std::vector<SeenSlice>;

// Shared between the test and the backend, which may be gone already.
struct FakeControl {
  using History = std::vector<int32_t>;
  std::chrono::microseconds pass_time{0};
  int state_cost = 0;  // of a state in Backend::state_bytes()
  // With single_rows a state knows how each of its tokens was read; by number, up to kFewRows are single
  // ones.
  ReadingTraits reading{};
  bool tells_reading = true;  // whether DeviceInfo says so
  // Set before the engine starts; called on the device thread.
  std::function<std::optional<int32_t>(const History&)> script;  // the next token, where not the hash
  std::function<int32_t(const History&, const std::vector<int32_t>& how)> script_read;  // the same, of both
  std::function<bool(const History&)> not_finite;                // after this history logits are NaN
  std::function<std::optional<Error>(const Pass&)> fail_submit;  // refuses a pass
  std::function<std::optional<Error>(size_t pass)> fail_collect;
  std::function<void(size_t pass)> on_collect;  // before a pass is computed; may throw
  std::function<std::optional<Error>(int state)> fail_new_state;
  std::function<bool(uint32_t length)> fail_resume;        // of a checkpoint of this length
  std::function<void(uint32_t length)> on_bytes;           // a checkpoint is asked for its size; may throw
  std::function<void(uint32_t length)> on_write, on_read;  // of a checkpoint; in another thread
  std::function<void(uint32_t begin, uint32_t end)> on_write_rows;  // the same

  std::vector<SeenPass> passes() const {
    const std::lock_guard lock(mutex);
    return seen;
  }
  // Breaches of the contract by the caller; a test ends with EXPECT_EQ(.., {}).
  std::vector<std::string> breaches() const {
    const std::lock_guard lock(mutex);
    return broken;
  }
  int live_states() const { return states_alive; }

  mutable std::mutex mutex;
  std::vector<SeenPass> seen;
  std::vector<std::string> broken;
  std::atomic<int> states_alive{0};
  std::atomic<int> checkpoints_alive{0};
  std::atomic<int> states_made{0};
  std::atomic<int> passes_cancelled{0};
};

inline constexpr size_t kFewRows = 4;

// One of the 256 ids that are bytes of the tiny tokenizer, so that every token shows in the text.
inline int32_t fake_next_token(const FakeControl::History& history, uint64_t seed) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL ^ seed;
  for (const int32_t token : history) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0xD6E8FEB86659FD93ULL;
    hash ^= hash >> 32;
  }
  return static_cast<int32_t>(hash % 256);
}

// How each token of a state was read, where that matters: 0 as a single row; of many rows where those begin
// that its unit was read with, counted from 1.
using HowRead = std::vector<int32_t>;

class FakeCheckpoint final : public Checkpoint {
 public:
  FakeCheckpoint(std::shared_ptr<FakeControl> control, FakeControl::History history, HowRead how)
      : control_(std::move(control)), history_(std::move(history)), how_(std::move(how)) {
    ++control_->checkpoints_alive;
  }
  ~FakeCheckpoint() override { --control_->checkpoints_alive; }
  FakeCheckpoint(const FakeCheckpoint&) = delete;
  FakeCheckpoint& operator=(const FakeCheckpoint&) = delete;
  uint32_t length() const override { return static_cast<uint32_t>(history_.size()); }
  uint64_t bytes() const override {
    if (control_->on_bytes) control_->on_bytes(length());
    return history_.size() * sizeof(int32_t);
  }
  Result<void> write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const override {
    if (control_->on_write_rows) control_->on_write_rows(begin, end);
    if (how_.empty()) return sink.write(std::as_bytes(std::span(history_).subspan(begin, end - begin)));
    for (uint32_t i = begin; i < end; ++i) {
      const std::array<int32_t, 2> row{history_[i], how_[i]};
      LILY_TRY_VOID(sink.write(std::as_bytes(std::span(row))));
    }
    return {};
  }
  Result<void> write_rest(ByteSink& sink) const override {
    if (control_->on_write) control_->on_write(length());
    const auto length = static_cast<int32_t>(history_.size());
    return sink.write(std::as_bytes(std::span(&length, 1)));
  }
  const FakeControl::History& history() const { return history_; }
  const HowRead& how() const { return how_; }

 private:
  std::shared_ptr<FakeControl> control_;
  FakeControl::History history_;
  HowRead how_;
};

class FakeState final : public SequenceState {
 public:
  FakeState(std::shared_ptr<FakeControl> control, int number, uint32_t capacity)
      : control_(std::move(control)), number_(number), capacity_(capacity) {
    ++control_->states_alive;
  }
  ~FakeState() override {
    if (in_flight > 0) breach("a state was destroyed while a pass used it");
    --control_->states_alive;
  }
  uint32_t length() const override { return submitted; }
  Result<std::unique_ptr<Checkpoint>> save() override {
    if (in_flight > 0) return fail(ErrorKind::internal, "the fake does not save a state in flight");
    return std::make_unique<FakeCheckpoint>(control_, history, how);
  }
  Result<void> resume(const Checkpoint& checkpoint) override {
    if (in_flight > 0) breach("resume() of a state in flight");
    if (failed) breach("resume() of a failed state");
    if (control_->fail_resume && control_->fail_resume(checkpoint.length())) {
      return fail(ErrorKind::internal, "the fake was told to fail");
    }
    history = dynamic_cast<const FakeCheckpoint&>(checkpoint).history();
    how = dynamic_cast<const FakeCheckpoint&>(checkpoint).how();
    submitted = static_cast<uint32_t>(history.size());
    last_token.reset();
    begun = false;
    return {};
  }
  Result<void> accept(uint32_t) override { return {}; }
  Result<void> begin_answer(std::span<const int32_t> prompt) override {
    prompt_size = prompt.size();
    begun = true;
    return {};
  }
  void breach(const std::string& what) {
    const std::lock_guard lock(control_->mutex);
    control_->broken.push_back(what);
  }
  int number() const { return number_; }
  uint32_t capacity() const { return capacity_; }

  FakeControl::History history;  // of computed passes
  HowRead how;
  uint32_t submitted = 0;             // tokens of submitted passes
  std::optional<int32_t> last_token;  // sampled, not absorbed
  bool will_have_token = false;       // by the passes submitted
  bool failed = false;
  bool begun = false;
  int in_flight = 0;
  size_t prompt_size = 0;

 private:
  std::shared_ptr<FakeControl> control_;
  int number_;
  uint32_t capacity_;
};

class FakeBackend final : public Backend {
 public:
  FakeBackend(const Plan& plan, std::shared_ptr<FakeControl> control)
      : plan_(plan), control_(std::move(control)) {
    info_.name = "fake";
    info_.description = "a hash";
    if (control_->tells_reading) info_.reading = control_->reading;
  }
  ~FakeBackend() override {
    if (control_->states_alive > 0) breach("the backend was destroyed before its states");
    if (!flights_.empty()) breach("the backend was destroyed with passes in flight");
  }

  const DeviceInfo& device() const override { return info_; }
  Result<DeviceLimits> measure_limits() override { return DeviceLimits{1e9, 1e9, "hash"}; }
  Result<MemoryNeed> estimate(const WeightFile&, const Plan&) const override { return MemoryNeed{}; }
  Result<void> load(const WeightFile&, const Plan&, FunctionRef<void(double)>) override { return {}; }

  Result<std::unique_ptr<SequenceState>> new_state(uint32_t max_tokens) override {
    const int number = control_->states_made++;
    if (control_->fail_new_state) {
      if (auto error = control_->fail_new_state(number)) return fail(*error);
    }
    return std::make_unique<FakeState>(control_, number, max_tokens);
  }

  // A checkpoint costs one.
  uint64_t state_bytes() const override {
    return static_cast<uint64_t>(control_->checkpoints_alive + control_->state_cost * control_->states_alive);
  }

  std::string checkpoint_layout() const override { return "fake 1"; }
  Result<std::unique_ptr<Checkpoint>> read_checkpoint(const StoredForm& form, ByteSource& source) override {
    if (control_->on_read) control_->on_read(form.length);
    FakeControl::History history(form.length);
    HowRead how(control_->reading.single_rows > 0 ? form.length : 0);
    if (form.shared > 0) {
      const auto& base = dynamic_cast<const FakeCheckpoint&>(*form.base);
      std::copy_n(base.history().begin(), form.shared, history.begin());
      if (!how.empty()) std::copy_n(base.how().begin(), form.shared, how.begin());
    }
    int32_t length = 0;
    if (how.empty()) {
      LILY_TRY_VOID(source.read(std::as_writable_bytes(std::span(history).subspan(form.shared))));
    }
    for (uint32_t i = form.shared; i < how.size(); ++i) {
      std::array<int32_t, 2> row{};
      LILY_TRY_VOID(source.read(std::as_writable_bytes(std::span(row))));
      history[i] = row[0];
      how[i] = row[1];
    }
    LILY_TRY_VOID(source.read(std::as_writable_bytes(std::span(&length, 1))));
    if (length != static_cast<int32_t>(form.length)) breach("a checkpoint was read in another form");
    return std::make_unique<FakeCheckpoint>(control_, std::move(history), std::move(how));
  }

  Result<Ticket> submit(const Pass& pass) override {
    if (control_->fail_submit) {
      if (auto error = control_->fail_submit(pass)) return fail(*error);
    }
    check(pass);
    Flight flight{.cancel = pass.cancel, .slices = {}};
    SeenPass seen;
    for (const Slice& slice : pass.slices) {
      auto& state = dynamic_cast<FakeState&>(*slice.state);
      const auto rows = static_cast<uint32_t>(std::max<size_t>(slice.tokens.size(), 1));
      const bool samples = slice.sampling.mode != Sampling::Mode::none;
      seen.push_back({state.number(), state.submitted, rows, slice.tokens.empty(), samples, slice.logits_rows,
                      slice.read_as});
      state.submitted += rows;
      state.will_have_token = samples;
      ++state.in_flight;
      flight.slices.push_back({&state,
                               {slice.tokens.begin(), slice.tokens.end()},
                               slice.sampling,
                               slice.logits_rows,
                               is_many(slice)});
    }
    flights_.push_back(std::move(flight));
    const std::lock_guard lock(control_->mutex);
    control_->seen.push_back(std::move(seen));
    return next_ticket_++;
  }

  Result<Output> collect(Ticket ticket) override {
    if (flights_.empty() || ticket != collected_) breach("collect() out of order");
    const size_t number = collected_++;
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    for (const FakeSlice& slice : flight.slices) --slice.state->in_flight;
    if (control_->on_collect) control_->on_collect(number);
    const bool lost = !wait(flight);
    std::optional<Error> error;
    if (control_->fail_collect) error = control_->fail_collect(number);
    if (lost || error) {
      for (const FakeSlice& slice : flight.slices) slice.state->failed = true;
      if (error) return fail(*error);
      ++control_->passes_cancelled;
      return fail(ErrorKind::cancelled, "the pass was cancelled");
    }
    Output output;
    output.bytes_read = 1;
    output.seconds = std::chrono::duration<double>(control_->pass_time).count();
    for (const FakeSlice& slice : flight.slices) output.slices.push_back(compute(slice));
    return output;
  }

 private:
  struct FakeSlice {
    FakeState* state;
    std::vector<int32_t> tokens;
    Sampling sampling;
    uint32_t logits_rows;
    bool many;
  };
  struct Flight {
    const std::atomic<bool>* cancel;
    std::vector<FakeSlice> slices;
  };

  void breach(const std::string& what) {
    const std::lock_guard lock(control_->mutex);
    control_->broken.push_back(what);
  }

  void check(const Pass& pass) {
    std::set<const SequenceState*> states;
    uint32_t rows = 0;
    if (flights_.size() >= kMaxInFlight) breach("more than kMaxInFlight passes");
    if (pass.slices.empty()) breach("an empty pass");
    for (const Slice& slice : pass.slices) {
      auto& state = dynamic_cast<FakeState&>(*slice.state);
      if (!states.insert(slice.state).second) breach("a state twice in a pass");
      if (slice.tokens.size() > plan_.chunk) breach("a slice above the chunk");
      if (slice.tokens.empty() && !state.will_have_token) breach("a decode row without a sampled token");
      if (state.failed) breach("a failed state was used");
      if (!state.begun) breach("no begin_answer()");
      const auto n = static_cast<uint32_t>(std::max<size_t>(slice.tokens.size(), 1));
      rows += n;
      if (state.submitted + n > state.capacity()) breach("more tokens than the state holds");
    }
    if (rows > plan_.max_rows) breach("more rows than the plan");
  }

  static bool is_many(const Slice& slice) {
    if (slice.tokens.empty() || slice.read_as == ReadAs::single) return false;
    return slice.read_as == ReadAs::many || slice.tokens.size() > kFewRows;
  }

  void note_reading(FakeState& state, size_t rows, bool many) const {
    const ReadingTraits& reading = control_->reading;
    if (reading.single_rows == 0) return;
    const size_t first = state.how.size();
    for (size_t at = first; at < first + rows; ++at) {
      const size_t begin = std::max(first, at / reading.unit * reading.unit);
      state.how.push_back(many ? static_cast<int32_t>(begin) + 1 : 0);
    }
  }

  // Takes pass_time; false when cancelled meanwhile.
  bool wait(const Flight& flight) {
    const auto end = std::chrono::steady_clock::now() + control_->pass_time;
    do {
      if (flight.cancel != nullptr && *flight.cancel) return false;
      std::this_thread::sleep_for(
          std::min<std::chrono::microseconds>(control_->pass_time, std::chrono::microseconds(500)));
    } while (std::chrono::steady_clock::now() < end);
    return true;
  }

  SliceOutput compute(const FakeSlice& slice) {
    FakeState& state = *slice.state;
    SliceOutput output;
    if (state.failed) return {.token = -1, .finite = false, .logits = {}};  // by an earlier pass
    if (slice.tokens.empty()) {
      state.history.push_back(*state.last_token);
    } else {
      state.history.insert(state.history.end(), slice.tokens.begin(), slice.tokens.end());
    }
    note_reading(state, std::max<size_t>(slice.tokens.size(), 1), slice.many);
    state.last_token.reset();
    if (control_->not_finite && control_->not_finite(state.history)) {
      state.failed = true;
      output.finite = false;
      return output;
    }
    if (slice.sampling.mode == Sampling::Mode::none) return output;
    const uint32_t vocab = plan_.shape.vocab;
    std::optional<int32_t> token;
    if (control_->script) token = control_->script(state.history);
    const uint64_t seed = slice.sampling.mode == Sampling::Mode::random ? slice.sampling.seed + 1 : 0;
    if (control_->script_read) token = control_->script_read(state.history, state.how);
    output.token = token.value_or(fake_next_token(state.history, seed));
    for (const LogitBias& bias : slice.sampling.bias) {
      if (bias.bias > 1e6F) output.token = bias.token;  // nothing else can be the largest
    }
    if (slice.logits_rows > 0) {
      output.logits.assign(size_t{slice.logits_rows} * vocab, 0.0F);
      output.logits[output.logits.size() - vocab + static_cast<size_t>(output.token)] = 8.0F;
    }
    state.last_token = output.token;
    return output;
  }

  const Plan plan_;
  std::shared_ptr<FakeControl> control_;
  DeviceInfo info_;
  std::deque<Flight> flights_;
  Ticket next_ticket_ = 0;
  Ticket collected_ = 0;
};

}  // namespace lily::test
