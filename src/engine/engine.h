// The engine: jobs in, events out. It owns the device thread, the scheduler and the running sequences.
// Thread-safe: any thread may submit, cancel and read metrics.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "base/hash.h"
#include "base/result.h"
#include "sampling/sampling.h"
#include "text/prompt_tokens.h"
#include "text/token_memory.h"
#include "text/tokenizer.h"
#include "text/tool_schemas.h"

namespace lily {

// What a request asks for, already validated and resolved against the model's defaults. Ids are token ids.
struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  // Lengths of the prompt at which a checkpoint is worth keeping, ascending (text/prompt_tokens.h). What is
  // computed is cut there, or where a state can be kept just before (engine/reading.h), so that a prompt is
  // computed alike whether or not something of it is kept.
  std::vector<uint32_t> marks;
  // Where its turns begin, for saying where it parts from what is kept.
  std::vector<PromptTokens::Turn> turns;
  uint32_t recalled = 0;         // answers in it that were put back as they were generated (text/recall.h)
  bool starts_in_think = false;  // both from the rendered prompt
  bool continues_text = false;
  uint32_t max_tokens = 0;  // 0 = up to the context
  uint64_t client = 0;      // who asks: clients that wait take turns, whoever asks for more
  // From submit() to the end of the answer; 0 = no limit. What is there by then is the answer (`length`);
  // a job without a token by then fails with ErrorKind::timeout.
  double max_seconds = 0;
  Sampling sampling{};  // mode greedy or random; spans are ignored, see logit_bias
  std::vector<LogitBias> logit_bias;
  std::vector<int32_t> stop_ids;     // end the answer; their text is never sent
  std::vector<std::string> stop;     // looked for in content only, never in reasoning
  std::optional<uint32_t> logprobs;  // top alternatives per token (0 = the chosen one alone); absent = none
  // After so many tokens of an answer that is still thinking the next one is `think_end`, which closes the
  // block.
  std::optional<uint32_t> thinking_budget;
  int32_t think_end = -1;
  // A stop id sampled while it still thinks, and no call stands at the end of that, is read as `think_end`:
  // the answer goes on. With `starts_in_think` only. Each token waits for the one before while it thinks.
  bool close_thinking = false;
  std::shared_ptr<const ToolSchemas> tools;  // null: no text is a tool call
  enum class Calls : uint8_t {
    many,
    one,      // the answer ends with its first call
    dropped,  // calls are no part of the answer
  } calls = Calls::many;
};

struct TokenInfo {
  struct Choice {
    int32_t token;
    std::string bytes;
    double logprob;  // natural log, untempered, before penalties and bias
  };
  Choice chosen;
  std::vector<Choice> top;
};

enum class FinishReason : uint8_t {
  stop,        // a stop id or a stop string
  length,      // max_tokens or max_seconds are used up, or the context is full
  tool_calls,  // the answer ended with at least one whole tool call
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;      // of the prompt, not computed again
  uint32_t completion_tokens = 0;  // every sampled token, the stop id included
  uint32_t reasoning_tokens = 0;   // of them, up to and including </think>
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

// What of a prompt was kept from earlier requests, and where it parts from them.
struct PromptReuse {
  enum class Result : uint8_t {
    off,      // nothing is kept
    hit,      // all that was known was spared, but for a few tokens
    partial,  // less than that
    miss,     // nothing
  } result = Result::off;
  // Why it was not more.
  enum class Why : uint8_t {
    all,       // it was all but the last tokens of the prompt
    new_text,  // what follows was never read: the prompt goes on where a kept conversation ends
    parted,    // the prompt parts from every kept conversation, at token `known`
    dropped,   // a checkpoint that would have spared more was dropped for want of room
    failed,    // the checkpoint could not be resumed
  } why = Why::new_text;
  uint32_t cached = 0;        // tokens that are not computed again
  uint32_t known = 0;         // leading tokens that a known conversation has too; more than `cached` where no
                              // checkpoint lies at the end of them
  int32_t kept_token = -1;    // what follows the known tokens there; -1 = nothing
  int32_t prompt_token = -1;  // and in the prompt
  // The turn of the prompt that token `known` is in: its index and role. Empty: no such token or no turns.
  uint32_t turn = 0;
  std::string_view role{};
  uint32_t recalled = 0;   // GenerationRequest::recalled
  bool from_disk = false;  // the checkpoint was read from the disk for this request
};
std::string_view to_string(PromptReuse::Result result);
std::string_view to_string(PromptReuse::Why why);

// Events of a job, in this order: Started?, (PromptProgress | Delta)*, then exactly one of Finished | Failed.
struct Started {  // left the queue
  PromptReuse reuse;
};
struct PromptProgress {
  uint32_t done;  // prompt tokens computed or kept
  uint32_t total;
};
struct ToolCallDelta {
  uint32_t index = 0;     // of the call in the answer
  std::string name;       // of the function: in the first delta of a call alone
  std::string arguments;  // the next part of the JSON text of an object
  bool complete = false;  // the last delta of the call. A call that never gets it was cut off
};
// One of reasoning, content and call; never two.
struct Delta {
  std::string reasoning;
  std::string content;
  std::vector<TokenInfo> logprobs;  // of the tokens whose text this is, when asked for; none of calls
  std::optional<ToolCallDelta> call{};
};
struct Finished {
  FinishReason reason;
  std::string stop_string;  // which one, if any
  Usage usage;
};
struct Failed {
  Error error;
};
using Event = std::variant<Started, PromptProgress, Delta, Finished, Failed>;

// Called on the engine's thread: must not block and must not call the engine.
using EventSink = std::function<void(Event)>;

// A submitted job. Destroying the handle cancels it; after cancel() no event is delivered once the call in
// progress has returned (cancel() does not wait for it), except that a job that had already ended keeps its
// last event. A handle may outlive the engine.
class Job {
 public:
  virtual ~Job() = default;
  // True: it counts as cancelled. False: it had ended before, and its last event was delivered or is just
  // being.
  virtual bool cancel() = 0;
};

// Where checkpoints are kept beyond memory.
struct DiskOptions {
  std::filesystem::path folder;  // made where it is absent
  // Of all files, those of other models in there included; while one is written, it may be more by that one.
  uint64_t max_bytes = 0;
  Hash128 model;  // fingerprint of the weights: those of another one are of no use
};

struct EngineOptions {
  uint32_t queue = 64;  // waiting jobs beyond the running ones; one more is refused with ErrorKind::limit
  // Bytes for running sequences and kept checkpoints together (Backend::state_bytes): above it checkpoints
  // are dropped. 0: nothing is kept.
  uint64_t cache_bytes = 0;
  std::optional<DiskOptions> disk{};  // only with cache_bytes
  // Seconds that the device may have worked on a prompt before a copy of its state is put aside between two
  // passes: of a request that is cancelled while it is read no more than about this is read again.
  double unsaved_seconds = 0.5;
};

struct DiskMetrics {
  uint32_t checkpoints = 0;  // stored now
  uint64_t bytes = 0;        // of their files
  uint64_t written = 0, read = 0;
  uint64_t skipped = 0;    // not written: there was no room in the queue, or its memory was wanted
  uint64_t failed = 0;     // could not be written or read
  uint64_t evictions = 0;  // removed for want of room
};

struct CacheMetrics {
  // Prompts of which everything known was spared but for a few tokens, less than that, or nothing.
  uint64_t hits = 0, partial = 0, misses = 0;
  // Why it was not more (PromptReuse::Why); `parted` by the turn where it did: system, user, assistant, tool.
  std::array<uint64_t, 4> parted{};
  uint64_t dropped = 0;
  uint64_t recalled = 0;     // answers in prompts that were put back as they were generated
  uint64_t tokens = 0;       // prompt tokens that were not computed
  uint32_t checkpoints = 0;  // kept now
  uint64_t evictions = 0;    // checkpoints dropped for want of room
  uint64_t bytes = 0;  // of running sequences and kept checkpoints, as EngineOptions::cache_bytes counts
  std::optional<DiskMetrics> disk{};
};

// A sequence that runs.
struct SequenceMetrics {
  uint64_t job = 0;            // counted from 1 in the order in which jobs began to run
  uint32_t prompt_tokens = 0;  // of the prompt,
  uint32_t cached_tokens = 0;  // of them not computed again,
  uint32_t read_tokens = 0;    // and kept or computed so far
  uint32_t sampled_tokens = 0;
  uint32_t max_tokens = 0;  // of the answer
};

struct EngineMetrics {
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t jobs_finished = 0, jobs_failed = 0;
  uint64_t jobs_cancelled = 0;                        // by their owners, or by the end of the engine
  uint64_t prompt_tokens = 0, completion_tokens = 0;  // computed, of all jobs
  uint64_t thinking_closed = 0;                       // jobs that close_thinking made go on
  uint64_t passes = 0, bytes_read = 0;                // of the device
  double device_seconds = 0;
  CacheMetrics cache;
  std::vector<SequenceMetrics> sequences;  // oldest first, as of the last pass
};

class Engine {
 public:
  // Takes a loaded backend, which no other engine may use meanwhile. `tokenizer` must outlive the engine.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<Backend> backend, const Plan& plan,
                                                const Tokenizer& tokenizer, const EngineOptions& options);
  // Ends what runs or waits (Failed, ErrorKind::cancelled) and joins the device thread.
  virtual ~Engine() = default;

  // Refused at once, before any event: ErrorKind::limit when the queue is full or the prompt and one token
  // more do not fit the context, ErrorKind::invalid_input for an empty prompt or ids outside the vocabulary,
  // ErrorKind::cancelled after drain().
  virtual Result<std::unique_ptr<Job>> submit(GenerationRequest request, EventSink sink) = 0;
  virtual EngineMetrics metrics() const = 0;
  // What is known of earlier prompts and answers; null where nothing is kept.
  virtual const TokenMemory* memory() const { return nullptr; }
  virtual const Plan& plan() const = 0;
  virtual const DeviceInfo& device() const = 0;
  // Lets running jobs finish, refuses new ones, and returns when none is left or `seconds` have passed; what
  // is left then is cancelled and told so (Failed, ErrorKind::cancelled).
  virtual void drain(double seconds) = 0;
};

}  // namespace lily
