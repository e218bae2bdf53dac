// What is kept of many conversations, found by the tokens that lead to it.
//
// A radix tree over token ids: conversations with a common beginning share it, and what is kept hangs where
// its last token ends. Data in, data out: the tree knows no device and no clock. Not thread-safe.
//
// What something kept is worth: the tokens that would be read again without it (back to the next one above
// it), divided by the tokens that were computed since it was last used. So a short side request is worth
// little however new it is, a long conversation keeps its value while little else is computed, and of a chain
// of checkpoints every other one goes first.
//
// The token ids of what was dropped may stay for a while: they say how a conversation went on, and that it
// was known.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace lily {

class Checkpoint;
struct StoredCheckpoint;

template <class Kept>
class PrefixTree {
 public:
  // What a node of the tree takes beside its ids, in ids.
  static constexpr uint64_t kNodeIds = 64;

  // `max_tokens`: above so many token ids, with kNodeIds for each node, those of which nothing is kept any
  // more are forgotten, longest unused first.
  explicit PrefixTree(uint64_t max_tokens = 0);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  struct Match {
    // Of the longest kept proper prefix of the prompt (at least one token is left to compute); null: none.
    std::shared_ptr<Kept> kept;
    uint32_t length = 0;   // tokens it spares; 0 without one
    uint32_t known = 0;    // leading tokens of the prompt that some conversation in the tree has too
    uint32_t dropped = 0;  // tokens that something dropped since would have spared
    // Where prompt and tree part, at token `known`: what one conversation goes on with, and the prompt. -1:
    // that side ends there.
    int32_t kept_token = -1;
    int32_t prompt_token = -1;
  };
  // Counts as a use of what is found and of what lies above it.
  Match find(std::span<const int32_t> prompt);
  Match look(std::span<const int32_t> prompt) const;  // the same, and no use
  uint32_t known(std::span<const int32_t> prompt) const;
  bool holds(std::span<const int32_t> tokens) const;  // something is kept of exactly these
  // How conversations that begin with `prefix` went on, up to the first `end` (which is left out) or as far
  // as they are known; at most `most`, those used last first.
  std::vector<std::vector<int32_t>> continuations(std::span<const int32_t> prefix, int32_t end,
                                                  size_t most) const;

  // `kept` is of a state that has absorbed `tokens`, at least one. What is there already is replaced.
  void insert(std::span<const int32_t> tokens, std::shared_ptr<Kept> kept);
  // Makes `tokens` known, though nothing is kept of them.
  void note(std::span<const int32_t> tokens);
  // Drops what is worth least and gives it back; null: there is nothing.
  std::shared_ptr<Kept> evict();
  void erase(std::span<const int32_t> tokens);  // what is kept of exactly these, if anything is
  // Tokens computed since the last call, of whatever request: what makes the unused grow old.
  void advance(uint64_t tokens) { now_ += tokens; }
  size_t size() const { return holders_.size(); }
  uint64_t tokens() const { return tokens_; }  // ids that the tree holds

 private:
  struct Node;
  struct Place {
    Node* node;     // the deepest node that the tokens reach into
    size_t inside;  // tokens of its edge that match; all of them: the node itself
    size_t depth;   // tokens matched in all
  };
  static bool usable(const Node& node, size_t matched, size_t prompt);
  Place descend(std::span<const int32_t> tokens) const;
  Node& node_at(std::span<const int32_t> tokens);
  std::shared_ptr<Kept> drop(Node* node);
  void forget_leaf(Node* leaf);
  void join(Node* node);
  void trim();
  double worth(const Node& node) const;

  const uint64_t max_tokens_;
  std::unique_ptr<Node> root_;
  std::vector<Node*> holders_;  // nodes of which something is kept
  std::vector<Node*> ghosts_;   // childless nodes of which nothing is kept any more
  uint64_t tokens_ = 0;
  uint64_t nodes_ = 0;  // but for the root
  uint64_t now_ = 0;
};

using PrefixCache = PrefixTree<Checkpoint>;

}  // namespace lily
