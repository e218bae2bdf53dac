#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace lily {
namespace {

// Tokens computed after which a checkpoint of one token more is worth half: keeps the newest from being
// worth infinitely much.
constexpr double kFresh = 4096;

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

}  // namespace

struct PrefixCache::Node {
  Node* parent = nullptr;
  std::vector<int32_t> edge;                          // from the parent; empty only in the root
  uint32_t depth = 0;                                 // tokens from the root to the end of the edge
  std::map<int32_t, std::unique_ptr<Node>> children;  // by the first token of their edges
  std::unique_ptr<Checkpoint> checkpoint;
  uint64_t used = 0;  // `now_` of the last use
};

PrefixCache::PrefixCache() : root_(std::make_unique<Node>()) {}

// A chain of nodes may be as long as there are checkpoints: taken down leaf by leaf, not by recursion.
PrefixCache::~PrefixCache() {
  while (evict()) {
  }
}

PrefixCache::Place PrefixCache::descend(std::span<const int32_t> tokens) const {
  Place place{root_.get(), 0, 0};
  while (place.inside == place.node->edge.size() && place.depth < tokens.size()) {
    const auto child = place.node->children.find(tokens[place.depth]);
    if (child == place.node->children.end()) break;
    place.node = child->second.get();
    place.inside = common_prefix(place.node->edge, tokens.subspan(place.depth));
    place.depth += place.inside;
  }
  return place;
}

PrefixCache::Match PrefixCache::find(std::span<const int32_t> prompt) {
  const Place place = descend(prompt);
  Match match;
  match.known = static_cast<uint32_t>(place.depth);
  if (place.depth < prompt.size()) match.prompt_token = prompt[place.depth];
  if (place.inside < place.node->edge.size()) {
    match.kept_token = place.node->edge[place.inside];
  } else if (!place.node->children.empty()) {
    match.kept_token = place.node->children.begin()->first;
  }
  // A node that is matched in part, or that leaves nothing to compute, is of no use; those above it are.
  for (Node* node = place.node; node != nullptr; node = node->parent) {
    if (!node->checkpoint || node->depth > place.depth || node->depth >= prompt.size()) continue;
    if (match.checkpoint == nullptr) {
      match.checkpoint = node->checkpoint.get();
      match.length = node->depth;
    }
    node->used = now_;
  }
  return match;
}

bool PrefixCache::holds(std::span<const int32_t> tokens) const {
  const Place place = descend(tokens);
  return place.depth == tokens.size() && place.inside == place.node->edge.size() &&
         place.node->checkpoint != nullptr;
}

// The node that ends exactly where `tokens` end: made, or an edge cut in two, where there is none.
PrefixCache::Node& PrefixCache::node_at(std::span<const int32_t> tokens) {
  const Place place = descend(tokens);
  Node* at = place.node;
  if (place.inside < at->edge.size()) {
    auto upper = std::make_unique<Node>();
    upper->parent = at->parent;
    upper->edge.assign(at->edge.begin(), at->edge.begin() + static_cast<ptrdiff_t>(place.inside));
    upper->depth = static_cast<uint32_t>(place.depth);
    std::unique_ptr<Node>& slot = at->parent->children[at->edge.front()];
    at->edge.erase(at->edge.begin(), at->edge.begin() + static_cast<ptrdiff_t>(place.inside));
    at->parent = upper.get();
    upper->children[at->edge.front()] = std::move(slot);
    slot = std::move(upper);
    at = slot.get();
  }
  if (place.depth < tokens.size()) {
    auto leaf = std::make_unique<Node>();
    leaf->parent = at;
    leaf->edge.assign(tokens.begin() + static_cast<ptrdiff_t>(place.depth), tokens.end());
    leaf->depth = static_cast<uint32_t>(tokens.size());
    std::unique_ptr<Node>& slot = at->children[leaf->edge.front()];
    slot = std::move(leaf);
    at = slot.get();
  }
  return *at;
}

void PrefixCache::insert(std::span<const int32_t> tokens, std::unique_ptr<Checkpoint> checkpoint) {
  LILY_CHECK(checkpoint != nullptr && !tokens.empty() && checkpoint->length() == tokens.size());
  Node& node = node_at(tokens);
  if (!node.checkpoint) holders_.push_back(&node);
  node.checkpoint = std::move(checkpoint);
  node.used = now_;
}

// Removes what no checkpoint needs: `node` itself, or the joint between its parent and its only child.
void PrefixCache::prune(Node* node) {
  while (node->parent != nullptr && !node->checkpoint && node->children.empty()) {
    Node* parent = node->parent;
    parent->children.erase(node->edge.front());
    node = parent;
  }
  if (node->parent == nullptr || node->checkpoint || node->children.size() != 1) return;
  std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  node->parent->children[child->edge.front()] = std::move(child);  // destroys `node`
}

double PrefixCache::worth(const Node& node) const {
  const Node* above = node.parent;
  while (above->parent != nullptr && !above->checkpoint) above = above->parent;
  return (node.depth - above->depth) / (static_cast<double>(now_ - node.used) + kFresh);
}

bool PrefixCache::evict() {
  if (holders_.empty()) return false;
  // Among equals the one kept longest goes.
  const auto least = std::min_element(holders_.begin(), holders_.end(),
                                      [&](const Node* a, const Node* b) { return worth(*a) < worth(*b); });
  Node* node = *least;
  holders_.erase(least);
  node->checkpoint.reset();
  prune(node);
  return true;
}

}  // namespace lily
