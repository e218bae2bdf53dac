// Checkpoints of many conversations, found by the tokens that lead to them.
//
// A radix tree over token ids: conversations with a common beginning share it, and a checkpoint hangs where
// its last token ends. Data in, data out: the tree knows no device and no clock. Not thread-safe.
//
// What a checkpoint is worth: the tokens that would be read again without it (back to the next checkpoint
// above it), divided by the tokens that were computed since it was last used. So a short side request is
// worth little however new it is, a long conversation keeps its value while little else is computed, and of
// a chain of checkpoints every other one goes first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace lily {

class PrefixCache {
 public:
  PrefixCache();
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    // The longest checkpoint of a proper prefix of the prompt (at least one token is left to compute); null:
    // none. Valid until the next insert() or evict().
    const Checkpoint* checkpoint = nullptr;
    uint32_t length = 0;  // tokens the checkpoint spares; 0 without one
    uint32_t known = 0;   // leading tokens of the prompt that some kept conversation has too
    // Where prompt and kept conversations part, at token `known`: what one of them goes on with, and the
    // prompt. -1: that side ends there.
    int32_t kept_token = -1;
    int32_t prompt_token = -1;
  };
  // Counts as a use of the checkpoint found and of those above it.
  Match find(std::span<const int32_t> prompt);
  bool holds(std::span<const int32_t> tokens) const;  // a checkpoint of exactly these

  // `checkpoint` is of the state that has absorbed `tokens`, at least one. One that is there already is
  // replaced.
  void insert(std::span<const int32_t> tokens, std::unique_ptr<Checkpoint> checkpoint);
  // Drops the checkpoint of least worth. False: there is none.
  bool evict();
  // Tokens computed since the last call, of whatever request: what makes the unused grow old.
  void advance(uint64_t tokens) { now_ += tokens; }
  size_t size() const { return holders_.size(); }

 private:
  struct Node;
  struct Place {
    Node* node;     // the deepest node that the tokens reach into
    size_t inside;  // tokens of its edge that match; all of them: the node itself
    size_t depth;   // tokens matched in all
  };
  Place descend(std::span<const int32_t> tokens) const;
  Node& node_at(std::span<const int32_t> tokens);
  void prune(Node* node);
  double worth(const Node& node) const;

  std::unique_ptr<Node> root_;
  std::vector<Node*> holders_;  // nodes with a checkpoint
  uint64_t now_ = 0;
};

}  // namespace lily
