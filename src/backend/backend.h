// Everything the engine and a device say to each other. Only token ids go in; sampled ids and, on request,
// logits come out. One thread calls a backend; nothing here is thread-safe except Pass::cancel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "model/plan.h"
#include "model/program.h"
#include "sampling/sampling.h"

namespace lily {

class WeightFile;  // mapped, bound and checked by weights/

// Where a serialised checkpoint goes.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Result<void> write(std::span<const std::byte> bytes) = 0;
};

// Where it comes from again.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual Result<void> read(std::span<std::byte> into) = 0;  // fills it; fails where there is less
};

// Whether the rows of a slice stay provisional until accept() (verification of a draft).
enum class Keep : uint8_t { all_rows, until_accept };

// How the rows of a slice are computed. It is a matter of their last bits, and only on a device that says so
// (DeviceInfo::reading).
enum class ReadAs : uint8_t {
  by_number,  // as suits how many there are
  single,     // each to the bit as if it were alone in its slice, as those are that decoding computes
  many,       // by the kernels for many rows, even if there are few
};

// An opaque copy of a SequenceState at one length: what truncation cannot rebuild.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual uint32_t length() const = 0;  // tokens absorbed when it was taken
  virtual uint64_t bytes() const = 0;
  // For storing it: the keys and values of tokens [begin, end), and all the rest. `begin` is a multiple of
  // kRowUnit, `end` too unless it is length(). From any thread and beside passes, as long as the checkpoint
  // lives, which may end in any thread too. A device whose Backend::checkpoint_layout() is empty has neither.
  static constexpr uint32_t kRowUnit = 64;
  virtual Result<void> write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const {
    static_cast<void>(begin), static_cast<void>(end), static_cast<void>(sink);
    return fail(ErrorKind::unsupported, "checkpoints of this device cannot be stored");
  }
  virtual Result<void> write_rest(ByteSink& sink) const {
    static_cast<void>(sink);
    return fail(ErrorKind::unsupported, "checkpoints of this device cannot be stored");
  }
};

// How a stored checkpoint is read again.
struct StoredForm {
  uint32_t length = 0;
  // Rows [0, shared) are those of `base`, a checkpoint that began with the same tokens; the source has the
  // others, and then the rest. A multiple of Checkpoint::kRowUnit, at most the lengths of both.
  uint32_t shared = 0;
  const Checkpoint* base = nullptr;
};

// Key-value rows and recurrent states of one conversation. A backend's states may only be used with that
// backend, and must be destroyed before it. A pass that fails or is cancelled makes all its states unusable,
// a slice without finite logits its own: such a state must be resumed from a checkpoint or dropped. Failure
// is answered per slice: in a pass submitted before it was known, the slice of an unusable state is left out
// and its answer is not finite, while the other slices are computed as if it were not there; submit() refuses
// a state that is known to be unusable.
class SequenceState {
 public:
  virtual ~SequenceState() = default;
  virtual uint32_t length() const = 0;  // tokens absorbed by passes that were submitted
  // Both wait for submitted passes that use this state.
  virtual Result<std::unique_ptr<Checkpoint>> save() = 0;
  virtual Result<void> resume(const Checkpoint& checkpoint) = 0;  // the only way back; there is no truncate()
  // Settles a Keep::until_accept pass: keeps its first `rows` rows.
  virtual Result<void> accept(uint32_t rows) = 0;
  // Starts an answer: forgets the token counts of the last one, and takes `prompt` as what the repetition
  // penalty sees.
  virtual Result<void> begin_answer(std::span<const int32_t> prompt) = 0;
};

// One sequence's part of a pass.
struct Slice {
  SequenceState* state = nullptr;
  // n = prefill chunk or draft; 1 = decode; empty = one row, the token just sampled for this state by an
  // earlier pass (perhaps not collected yet), which never left the device. At most Plan::chunk.
  std::span<const int32_t> tokens{};
  Sampling sampling{};       // from the logits of the last row
  uint32_t logits_rows = 0;  // how many last rows of logits the caller wants to see
  Keep keep = Keep::all_rows;
  ReadAs read_as = ReadAs::by_number;  // one row that was just sampled is always a single one
};

// Sees the residual stream after each step: tests and tools only. `rows` x hidden floats, valid during the
// call.
using Probe = FunctionRef<void(const Step& step, std::span<const float> stream)>;

struct Pass {
  std::span<const Slice> slices;              // each with a state of its own
  const std::atomic<bool>* cancel = nullptr;  // looked at between blocks; a cancelled pass fails its states
  const Probe* probe = nullptr;
};

struct SliceOutput {
  int32_t token = -1;         // the sampled id, or -1 where none was asked for
  bool finite = true;         // false: logits were not finite; token is -1 and the state must be dropped
  std::vector<float> logits;  // logits_rows x vocab
};

struct Output {
  std::vector<SliceOutput> slices;  // in the order of the pass
  // What the pass had to read: each tensor it used once (of the experts, those it chose; of the embedding,
  // its rows), in the types of the file, and of each sequence the recurrent states and the keys and values.
  uint64_t bytes_read = 0;
  double seconds = 0;  // on the device
};

using Ticket = uint64_t;

// What ReadAs means on a device.
struct ReadingTraits {
  // 0: a row has the same bits however it is read. Else a slice that is read as single rows should have at
  // most so many, for they take longer.
  uint32_t single_rows = 0;
  // Slices read as many rows may be cut at the multiples of it that are positions of their sequence: that
  // changes no bit. A cut anywhere else does.
  uint32_t unit = 1;
};

struct DeviceInfo {
  std::string name;           // "cpu", "reference", ...: the value of --device
  std::string description{};  // "AMD EPYC, 2 threads, avx512"
  uint64_t memory_bytes = 0;
  double peak_bytes_per_second = 0;  // measured read bandwidth; 0 = not measured
  std::vector<std::string> features{};
  // Rows of a prompt in a pass where the user names none: so many that its kernels are near their best, and
  // no more, for running answers wait that long.
  uint32_t chunk = Limits::kDefaultChunk;
  ReadingTraits reading{};
};

// What the device can do at most with the threads it was given, measured. Every speed is a share of one of
// these.
struct DeviceLimits {
  double read_bytes_per_second = 0;     // of memory far larger than the caches
  double multiply_adds_per_second = 0;  // by the instruction below, with its inputs in registers
  std::string multiply{};               // the multiply instruction of the products: "vfmadd231ps zmm"
};

struct MemoryNeed {
  uint64_t weights = 0;       // beyond the mapped file: repacked copies
  uint64_t mapped = 0;        // pages of the file that stay in use
  uint64_t per_sequence = 0;  // one state of Plan::context tokens
  uint64_t workspace = 0;
  uint64_t total(uint32_t sequences) const { return weights + mapped + workspace + sequences * per_sequence; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& device() const = 0;
  // Takes about a second and, until it returns, memory of its own; before or after load(), with no pass in
  // flight.
  virtual Result<DeviceLimits> measure_limits() = 0;
  virtual Result<MemoryNeed> estimate(const WeightFile& file,
                                      const Plan& plan) const = 0;  // before anything is allocated
  // Maps or uploads, repacks, prepares; once. `file` must outlive the backend. Progress in [0, 1].
  virtual Result<void> load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) = 0;
  virtual Result<std::unique_ptr<SequenceState>> new_state(uint32_t max_tokens) = 0;
  // What all states and checkpoints hold now; rows that several of them share count once.
  virtual uint64_t state_bytes() const = 0;
  // Names the bytes that checkpoints write: what was written under a name can be read under it, by another
  // process and a later version too. Empty: checkpoints of this device cannot be stored.
  virtual std::string checkpoint_layout() const { return {}; }
  // From any thread and beside passes.
  virtual Result<std::unique_ptr<Checkpoint>> read_checkpoint(const StoredForm& form, ByteSource& source) {
    static_cast<void>(form);
    static_cast<void>(source);
    return fail(ErrorKind::unsupported, "checkpoints of the device '{}' cannot be stored", device().name);
  }
  // Checks the whole pass before it changes any state: ids in [0, vocab), room in each state, rows within the
  // plan. Copies what it needs of the slices; allocates nothing on the device, does not wait. At most
  // kMaxInFlight tickets may be uncollected.
  static constexpr uint32_t kMaxInFlight = 2;
  virtual Result<Ticket> submit(const Pass& pass) = 0;
  virtual Result<Output> collect(Ticket ticket) = 0;  // in the order of submission
  // The most memory of its own, beside the process's, that the device held so far; 0 where there is none.
  virtual uint64_t device_bytes() const { return 0; }
};

}  // namespace lily
