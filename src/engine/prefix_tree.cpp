#include "engine/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace lily {
namespace {

// Tokens computed after which something kept is worth half as much: keeps the newest from being worth
// infinitely much. With fewer, the checkpoints that a long prompt leaves behind as it is read drive out
// another long conversation that will be taken up next.
constexpr double kFresh = 16'384;

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

template <class Kept>
struct PrefixTree<Kept>::Node {
  Node* parent = nullptr;
  std::vector<int32_t> edge;                          // from the parent; empty only in the root
  uint32_t depth = 0;                                 // tokens from the root to the end of the edge
  std::map<int32_t, std::unique_ptr<Node>> children;  // by the first token of their edges
  std::shared_ptr<Kept> kept;
  bool dropped = false;  // something was kept here
  uint64_t used = 0;     // `now_` of the last use
};

template <class Kept>
PrefixTree<Kept>::PrefixTree(uint64_t max_tokens)
    : max_tokens_(max_tokens), root_(std::make_unique<Node>()) {}

// A chain of nodes may be as long as there are checkpoints: taken down leaf by leaf, not by recursion.
template <class Kept>
PrefixTree<Kept>::~PrefixTree() {
  while (!holders_.empty()) drop(holders_.back());
  while (!ghosts_.empty()) forget_leaf(ghosts_.back());
}

template <class Kept>
typename PrefixTree<Kept>::Place PrefixTree<Kept>::descend(std::span<const int32_t> tokens) const {
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

// A node that is matched in part, or that leaves nothing to compute, is of no use; those above it are.
template <class Kept>
bool PrefixTree<Kept>::usable(const Node& node, size_t matched, size_t prompt) {
  return node.depth <= matched && node.depth < prompt;
}

template <class Kept>
typename PrefixTree<Kept>::Match PrefixTree<Kept>::look(std::span<const int32_t> prompt) const {
  const Place place = descend(prompt);
  Match match;
  match.known = static_cast<uint32_t>(place.depth);
  if (place.depth < prompt.size()) match.prompt_token = prompt[place.depth];
  if (place.inside < place.node->edge.size()) {
    match.kept_token = place.node->edge[place.inside];
  } else if (!place.node->children.empty()) {
    match.kept_token = place.node->children.begin()->first;
  }
  for (const Node* node = place.node; node != nullptr && match.kept == nullptr; node = node->parent) {
    if (!usable(*node, place.depth, prompt.size())) continue;
    if (node->kept) {
      match.kept = node->kept;
      match.length = node->depth;
    } else if (node->dropped) {
      match.dropped = std::max(match.dropped, node->depth);
    }
  }
  return match;
}

template <class Kept>
typename PrefixTree<Kept>::Match PrefixTree<Kept>::find(std::span<const int32_t> prompt) {
  const Place place = descend(prompt);
  for (Node* node = place.node; node != nullptr; node = node->parent) {
    if (!node->kept || usable(*node, place.depth, prompt.size())) node->used = now_;
  }
  return look(prompt);
}

template <class Kept>
uint32_t PrefixTree<Kept>::known(std::span<const int32_t> prompt) const {
  return static_cast<uint32_t>(descend(prompt).depth);
}

template <class Kept>
bool PrefixTree<Kept>::holds(std::span<const int32_t> tokens) const {
  const Place place = descend(tokens);
  return place.depth == tokens.size() && place.inside == place.node->edge.size() &&
         place.node->kept != nullptr;
}

template <class Kept>
std::vector<std::vector<int32_t>> PrefixTree<Kept>::continuations(std::span<const int32_t> prefix,
                                                                  int32_t end, size_t most) const {
  struct Branch {
    const Node* node;
    size_t inside;  // tokens of its edge that lie before the branch
    size_t length;  // tokens of `path` that lead to it
  };
  std::vector<std::vector<int32_t>> found;
  const Place place = descend(prefix);
  if (place.depth < prefix.size()) return found;
  std::vector<int32_t> path;
  std::vector<Branch> branches{{place.node, place.inside, 0}};
  while (!branches.empty() && found.size() < most) {
    const Branch branch = branches.back();
    branches.pop_back();
    path.resize(branch.length);
    const auto begin = branch.node->edge.begin() + static_cast<ptrdiff_t>(branch.inside);
    const auto stop = std::find(begin, branch.node->edge.end(), end);
    path.insert(path.end(), begin, stop);
    if (stop != branch.node->edge.end() || branch.node->children.empty()) {
      if (!path.empty()) found.push_back(path);
      continue;
    }
    const size_t first = branches.size();
    for (const auto& [token, child] : branch.node->children)
      branches.push_back({child.get(), 0, path.size()});
    std::sort(branches.begin() + static_cast<ptrdiff_t>(first), branches.end(),
              [](const Branch& a, const Branch& b) { return a.node->used < b.node->used; });
  }
  return found;
}

// The node that ends exactly where `tokens` end: made, or an edge cut in two, where there is none.
template <class Kept>
typename PrefixTree<Kept>::Node& PrefixTree<Kept>::node_at(std::span<const int32_t> tokens) {
  const Place place = descend(tokens);
  Node* at = place.node;
  if (place.inside < at->edge.size()) {
    auto upper = std::make_unique<Node>();
    upper->parent = at->parent;
    upper->edge.assign(at->edge.begin(), at->edge.begin() + static_cast<ptrdiff_t>(place.inside));
    upper->depth = static_cast<uint32_t>(place.depth);
    upper->used = at->used;
    ++nodes_;
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
    tokens_ += leaf->edge.size();
    ++nodes_;
    std::erase(ghosts_, at);
    std::unique_ptr<Node>& slot = at->children[leaf->edge.front()];
    slot = std::move(leaf);
    at = slot.get();
  }
  return *at;
}

template <class Kept>
void PrefixTree<Kept>::insert(std::span<const int32_t> tokens, std::shared_ptr<Kept> kept) {
  LILY_CHECK(kept != nullptr && !tokens.empty());
  Node& node = node_at(tokens);
  if (!node.kept) holders_.push_back(&node);
  std::erase(ghosts_, &node);
  node.kept = std::move(kept);
  node.used = now_;
  trim();
}

template <class Kept>
void PrefixTree<Kept>::note(std::span<const int32_t> tokens) {
  Node& node = node_at(tokens);
  node.used = now_;
  const bool leaf = node.parent != nullptr && !node.kept && node.children.empty();
  if (leaf && std::ranges::find(ghosts_, &node) == ghosts_.end()) ghosts_.push_back(&node);
  trim();
}

// Joins a node that nothing needs with its only child.
template <class Kept>
void PrefixTree<Kept>::join(Node* node) {
  if (node->parent == nullptr || node->kept || node->children.size() != 1) return;
  if (node->dropped && max_tokens_ > 0) return;
  std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  --nodes_;
  node->parent->children[child->edge.front()] = std::move(child);  // destroys `node`
}

template <class Kept>
void PrefixTree<Kept>::forget_leaf(Node* leaf) {
  Node* parent = leaf->parent;
  std::erase(ghosts_, leaf);
  tokens_ -= leaf->edge.size();
  --nodes_;
  parent->children.erase(leaf->edge.front());
  if (parent->parent != nullptr && !parent->kept && parent->children.empty()) {
    ghosts_.push_back(parent);
  } else {
    join(parent);
  }
}

template <class Kept>
void PrefixTree<Kept>::trim() {
  while (tokens_ + nodes_ * kNodeIds > max_tokens_ && !ghosts_.empty()) {
    forget_leaf(*std::ranges::min_element(ghosts_, {}, [](const Node* node) { return node->used; }));
  }
}

template <class Kept>
std::shared_ptr<Kept> PrefixTree<Kept>::drop(Node* node) {
  std::erase(holders_, node);
  std::shared_ptr<Kept> kept = std::move(node->kept);
  node->kept.reset();
  node->dropped = true;
  if (node->children.empty()) {
    ghosts_.push_back(node);
  } else {
    join(node);
  }
  return kept;
}

template <class Kept>
double PrefixTree<Kept>::worth(const Node& node) const {
  const Node* above = node.parent;
  while (above->parent != nullptr && !above->kept) above = above->parent;
  return (node.depth - above->depth) / (static_cast<double>(now_ - node.used) + kFresh);
}

template <class Kept>
std::shared_ptr<Kept> PrefixTree<Kept>::evict() {
  if (holders_.empty()) return nullptr;
  // Among equals the one kept longest goes.
  const auto least = std::min_element(holders_.begin(), holders_.end(),
                                      [&](const Node* a, const Node* b) { return worth(*a) < worth(*b); });
  std::shared_ptr<Kept> kept = drop(*least);
  trim();
  return kept;
}

template <class Kept>
void PrefixTree<Kept>::erase(std::span<const int32_t> tokens) {
  const Place place = descend(tokens);
  if (place.depth < tokens.size() || place.inside < place.node->edge.size() || !place.node->kept) return;
  drop(place.node);
  trim();
}

template class PrefixTree<Checkpoint>;
template class PrefixTree<StoredCheckpoint>;

}  // namespace lily
