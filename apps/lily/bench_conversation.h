// `lily bench --conversation`: an agent's conversation, replayed turn by turn through the engine as a client
// of the server would have it: what of each prompt is read again, and how long the first token takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/function_ref.h"
#include "text/tokenizer.h"

namespace lily::app {

// What the client returns of the model's answers.
enum class History : uint8_t {
  preserved,  // the reasoning, and asks the template to keep that of earlier queries too
  returned,   // the reasoning; the template drops that of earlier queries
  dropped,    // text and calls alone
};
std::string_view to_string(History history);

struct ConversationOptions {
  uint32_t turns = 30;
  uint32_t length = 60'000;  // tokens of the last prompt, about
  // Every so many turns the prompt is read from its start too, and with `cache_folder` after a restart; 0 =
  // never.
  uint32_t cold_every = 1;
  // Where conversations are kept on disk, in a folder of their own that is removed afterwards; empty: they
  // are not.
  std::filesystem::path cache_folder{};
};

struct ConversationTurn {
  History history = History::returned;
  uint32_t turn = 0;
  bool query = false;   // a new question; otherwise the result of a tool
  uint32_t prompt = 0;  // tokens
  uint32_t least = 0;   // of them, those that no earlier prompt or answer began with
  uint32_t reread = 0;  // those that were computed
  double warm = 0;      // seconds to the first token
  double cold = 0;      // with nothing kept; 0 = not measured
  // The same turn of another conversation of this kind, whose earlier turns a process that has ended left on
  // disk; not what the system still has of the files in memory. 0 seconds = not measured.
  struct FromDisk {
    uint32_t least = 0;
    uint32_t reread = 0;
    double seconds = 0;
  } disk{};
};

// Answers are made up and read instead of sampled, in the words of a model that calls tools and with the
// blanks and the order of arguments that the template would not write. `backend` is loaded for `plan`, whose
// context holds kConversationRoom tokens more than `length`.
inline constexpr uint32_t kConversationRoom = 4096;
Result<void> replay_conversations(std::shared_ptr<Backend> backend, const Plan& plan,
                                  const Tokenizer& tokenizer, const ConversationOptions& options,
                                  const std::atomic<bool>& cancel,
                                  FunctionRef<void(const ConversationTurn&)> sink);

}  // namespace lily::app
