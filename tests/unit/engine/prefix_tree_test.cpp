#include "engine/prefix_tree.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "backend/backend.h"

namespace lily {
namespace {

using Tokens = std::vector<int32_t>;

class Point final : public Checkpoint {
 public:
  explicit Point(size_t length) : length_(static_cast<uint32_t>(length)) {}
  uint32_t length() const override { return length_; }
  uint64_t bytes() const override { return 0; }
  Result<void> write_rows(uint32_t, uint32_t, ByteSink&) const override { return {}; }
  Result<void> write_rest(ByteSink&) const override { return {}; }

 private:
  uint32_t length_;
};

Tokens range(int32_t begin, int32_t end) {
  Tokens tokens;
  for (int32_t i = begin; i < end; ++i) tokens.push_back(i);
  return tokens;
}
Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
void keep(PrefixCache& cache, const Tokens& tokens) {
  cache.insert(tokens, std::make_unique<Point>(tokens.size()));
}

TEST(PrefixTree, FindsTheLongestCheckpointThatLeavesATokenToCompute) {
  PrefixCache cache;
  EXPECT_EQ(cache.find(range(0, 10)).kept, nullptr);
  keep(cache, range(0, 4));
  keep(cache, range(0, 8));
  EXPECT_EQ(cache.find(range(0, 10)).length, 8U);
  EXPECT_EQ(cache.find(range(0, 9)).length, 8U);
  EXPECT_EQ(cache.find(range(0, 8)).length, 4U);  // the exact repeat must sample again
  EXPECT_EQ(cache.find(range(0, 4)).kept, nullptr);
  EXPECT_EQ(cache.find(range(1, 10)).kept, nullptr);
  EXPECT_EQ(cache.find({}).kept, nullptr);
  EXPECT_TRUE(cache.holds(range(0, 8)));
  EXPECT_FALSE(cache.holds(range(0, 6)));
  EXPECT_FALSE(cache.holds(range(0, 9)));
}

TEST(PrefixTree, SaysWhereAPromptPartsFromWhatIsKept) {
  PrefixCache cache;
  keep(cache, range(0, 4));
  keep(cache, range(0, 20));
  const PrefixCache::Match match = cache.find(range(0, 9) + Tokens{77, 78});
  EXPECT_EQ(match.length, 4U);
  EXPECT_EQ(match.known, 9U);
  EXPECT_EQ(match.kept_token, 9);
  EXPECT_EQ(match.prompt_token, 77);
  const PrefixCache::Match longer = cache.find(range(0, 30));
  EXPECT_EQ(longer.length, 20U);
  EXPECT_EQ(longer.kept_token, -1);
  EXPECT_EQ(longer.prompt_token, 20);
  const PrefixCache::Match shorter = cache.find(range(0, 12));
  EXPECT_EQ(shorter.known, 12U);
  EXPECT_EQ(shorter.kept_token, 12);
  EXPECT_EQ(shorter.prompt_token, -1);
}

TEST(PrefixTree, AShortSideRequestDoesNotEvictALongConversation) {
  PrefixCache cache;
  const Tokens conversation = range(0, 30'000);
  keep(cache, conversation);
  cache.advance(30'000);
  for (int32_t i = 0; i < 50; ++i) {
    keep(cache, Tokens{-1 - i} + range(0, 200));
    cache.advance(200);
    ASSERT_TRUE(cache.evict());
    ASSERT_TRUE(cache.holds(conversation)) << "side request " << i;
  }
}

TEST(PrefixTree, WhatIsNeverUsedAgainGoesInTheEnd) {
  PrefixCache cache;
  const Tokens abandoned = range(0, 30'000);
  keep(cache, abandoned);
  int rounds = 0;
  while (cache.holds(abandoned) && rounds < 1000) {
    keep(cache, Tokens{-1 - rounds} + range(0, 8000));
    cache.advance(8000);
    cache.evict();
    ++rounds;
  }
  EXPECT_LT(rounds, 20);
  EXPECT_GT(rounds, 1);
}

TEST(PrefixTree, AChainIsThinnedNotCutOff) {
  PrefixCache cache;
  for (int32_t at = 1000; at <= 16'000; at += 1000) keep(cache, range(0, at));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(cache.evict());
  EXPECT_EQ(cache.size(), 4U);
  // Wherever a prompt parts from the conversation, not much more than a quarter of it is read again.
  for (int32_t at = 1001; at <= 16'001; at += 500) {
    EXPECT_GE(cache.find(range(0, at)).length + 8000U, static_cast<uint32_t>(at)) << at;
  }
}

TEST(PrefixTree, AUseKeepsThoseAboveItToo) {
  PrefixCache cache;
  keep(cache, range(0, 1000));
  keep(cache, range(0, 2000));
  keep(cache, Tokens{-5} + range(0, 1000));
  cache.advance(1'000'000);
  cache.find(range(0, 3000));
  ASSERT_TRUE(cache.evict());
  EXPECT_TRUE(cache.holds(range(0, 1000)));
  EXPECT_TRUE(cache.holds(range(0, 2000)));
}

TEST(PrefixTree, WhatWasDroppedIsRememberedForAWhile) {
  PrefixCache cache(5000);
  keep(cache, range(0, 1000));
  keep(cache, range(0, 2000));
  keep(cache, range(0, 1500) + range(7000, 7100));
  while (cache.evict() != nullptr) {
  }
  EXPECT_EQ(cache.size(), 0U);
  EXPECT_EQ(cache.tokens(), 2100U);
  const PrefixCache::Match match = cache.find(range(0, 1700));
  EXPECT_EQ(match.kept, nullptr);
  EXPECT_EQ(match.known, 1700U);
  EXPECT_EQ(match.dropped, 1000U);
  // Room is made by what was not used for longest: here, one branch and then the stem.
  cache.advance(1);
  cache.find(range(0, 2000));
  for (int32_t i = 0; i < 20; ++i) {
    cache.advance(1);
    keep(cache, Tokens{-1 - i} + range(0, 999));
    EXPECT_LE(cache.tokens(), std::max<uint64_t>(5000, cache.size() * 1000));
    cache.evict();
  }
  EXPECT_EQ(cache.known(range(0, 2000)), 0U);
}

TEST(PrefixTree, SaysHowConversationsWentOn) {
  constexpr int32_t kEnd = 99;
  PrefixCache cache(10'000);
  const Tokens prompt = range(0, 50);
  const auto went_on = [&](const Tokens& prefix) { return cache.continuations(prefix, kEnd, 16); };
  EXPECT_TRUE(went_on(prompt).empty());
  keep(cache, prompt);
  EXPECT_TRUE(went_on(prompt).empty());
  keep(cache, prompt + Tokens{60, 61, kEnd, 62});
  cache.advance(10);
  keep(cache, prompt + Tokens{60, 71, 72});
  using Answers = std::vector<Tokens>;
  EXPECT_EQ(went_on(prompt), (Answers{{60, 71, 72}, {60, 61}}));
  cache.advance(10);
  cache.find(prompt + Tokens{60, 61, kEnd, 62, 63});
  EXPECT_EQ(went_on(prompt), (Answers{{60, 61}, {60, 71, 72}}));
  EXPECT_EQ(went_on(prompt + Tokens{60, 71}), (Answers{{72}}));
  EXPECT_EQ(cache.continuations(prompt, kEnd, 1).size(), 1U);
  EXPECT_TRUE(went_on(prompt + Tokens{61}).empty());
}

// A keeper's rules over a memory that is counted in tokens of rows; a checkpoint's own part is as much as
// 3,000 of them, as at the large model's size.
class SmallMemory {
 public:
  explicit SmallMemory(double budget) : budget_(budget) {}
  // A prompt of so many tokens of a conversation: gives how many of them are read.
  uint32_t turn(int32_t conversation, uint32_t length) {
    const Tokens prompt = Tokens{-1 - conversation} + range(1, static_cast<int32_t>(length));
    const uint32_t found = cache_.find(prompt).length;
    for (uint32_t at = found; at < length;) {
      const uint32_t next = std::min(length, (at / kEvery + 1) * kEvery);
      cache_.advance(next - at);
      at = next;
      make_room(conversation, at);
      cache_.insert(std::span(prompt).first(at), std::make_unique<Point>(at));
      kept_[conversation].insert(at);
      make_room(conversation, at);
    }
    return length - found;
  }
  bool holds(int32_t conversation, uint32_t length) const {
    return cache_.holds(Tokens{-1 - conversation} + range(1, static_cast<int32_t>(length)));
  }

 private:
  static constexpr uint32_t kEvery = 2048;
  static constexpr double kOwn = 3000;
  void make_room(int32_t running, uint32_t absorbed) {
    while (used(running, absorbed) > budget_) {
      const std::shared_ptr<Checkpoint> gone = cache_.evict();
      if (gone == nullptr) return;
      for (auto& [conversation, lengths] : kept_) {
        if (lengths.contains(gone->length()) && !holds(conversation, gone->length()))
          lengths.erase(gone->length());
      }
    }
  }
  double used(int32_t running, uint32_t absorbed) const {
    double sum = kOwn;
    for (const auto& [conversation, lengths] : kept_) {
      uint32_t rows = conversation == running ? absorbed : 0;
      if (!lengths.empty()) rows = std::max(rows, *lengths.rbegin());
      sum += rows + kOwn * static_cast<double>(lengths.size());
    }
    return sum;
  }
  const double budget_;
  PrefixCache cache_{1 << 20};
  std::map<int32_t, std::set<uint32_t>> kept_;
};

TEST(PrefixTree, AConversationThatFillsTheMemoryGoesOnWhereItEnded) {
  SmallMemory memory(80'000);
  for (uint32_t length = 5000; length <= 75'000; length += 5000) {
    memory.turn(1, 300);
    EXPECT_LE(memory.turn(0, length), 10'000U) << length;
  }
}

TEST(PrefixTree, OfTwoLongConversationsInTurnNeitherIsLostAsAWhole) {
  const auto share_read = [](double budget) {
    SmallMemory memory(budget);
    uint64_t read = 0;
    uint64_t all = 0;
    for (uint32_t round = 0; round < 8; ++round) {
      for (const int32_t conversation : {0, 1}) {
        const uint32_t length = 100'000 + 500 * round;
        const uint32_t own = memory.turn(conversation, length);
        if (round == 0) continue;
        read += own;
        all += length;
      }
    }
    return static_cast<double>(read) / static_cast<double>(all);
  };
  // Both with a checkpoint each, and the one that runs, take 207,000.
  EXPECT_LT(share_read(250'000), 0.05);
  EXPECT_LT(share_read(210'000), 0.2);
  EXPECT_LT(share_read(190'000), 0.5);
}

TEST(PrefixTree, ManySideRequestsDoNotEvictALongConversationWithCheckpoints) {
  for (const uint32_t side : {300U, 3000U}) {
    SmallMemory memory(160'000);
    memory.turn(0, 100'000);
    for (int32_t i = 1; i <= 300'000 / static_cast<int32_t>(side); ++i) memory.turn(i, side);
    EXPECT_LE(memory.turn(0, 100'500), 500U + 2048U) << side;
  }
}

// Many conversations that part early cost nodes, not ids.
TEST(PrefixTree, WhatIsRememberedIsCountedWithItsNodes) {
  PrefixCache cache(10'000);
  for (int32_t i = 0; i < 2000; ++i) {
    cache.advance(1);
    cache.note(Tokens{i % 7, i % 11, i, i + 1});
    EXPECT_LE(cache.tokens(), 10'000U / PrefixCache::kNodeIds * 4);
  }
  EXPECT_EQ(cache.known(Tokens{1999 % 7, 1999 % 11, 1999, 2000}), 4U);
}

// Against a plain map, over an alphabet of three letters so that edges are cut and joined often.
RC_GTEST_PROP(PrefixTree, AgreesWithAMapOfPrefixes, ()) {
  // With room for what was dropped or without: what is found is the same.
  const uint64_t remembered = *rc::gen::element<uint64_t>(0, 0, 10, 100'000);
  PrefixCache cache(remembered);
  std::map<Tokens, const Checkpoint*> kept;
  const auto any_tokens = rc::gen::container<Tokens>(rc::gen::inRange<int32_t>(0, 3));
  const int steps = *rc::gen::inRange(1, 60);
  for (int i = 0; i < steps; ++i) {
    const Tokens tokens = *any_tokens;
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
      case 1:
        if (!tokens.empty()) {
          auto point = std::make_unique<Point>(tokens.size());
          kept[tokens] = point.get();
          cache.insert(tokens, std::move(point));
        }
        break;
      case 2:
        if (*rc::gen::arbitrary<bool>()) {
          cache.erase(tokens);
          kept.erase(tokens);
          break;
        }
        RC_ASSERT((cache.evict() != nullptr) == !kept.empty());
        std::erase_if(kept, [&](const auto& entry) { return !cache.holds(entry.first); });
        break;
      default:
        cache.advance(*rc::gen::inRange<uint64_t>(0, 10'000));
    }
    RC_ASSERT(cache.size() == kept.size());
    const PrefixCache::Match match = cache.find(tokens);
    size_t longest = 0;
    size_t known = 0;
    for (const auto& [prefix, point] : kept) {
      const auto parted = std::mismatch(prefix.begin(), prefix.end(), tokens.begin(), tokens.end());
      known = std::max(known, static_cast<size_t>(parted.first - prefix.begin()));
      if (parted.first == prefix.end() && prefix.size() < tokens.size())
        longest = std::max(longest, prefix.size());
    }
    RC_ASSERT(match.length == longest);
    const bool right = remembered > 0 ? match.known >= known : match.known == known;
    RC_ASSERT(right);
    RC_ASSERT((match.kept == nullptr) == (longest == 0));
    if (longest > 0) {
      RC_ASSERT(match.kept.get() ==
                kept.at(Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(longest))));
    }
  }
}

}  // namespace
}  // namespace lily
