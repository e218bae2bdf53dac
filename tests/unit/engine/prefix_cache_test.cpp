#include "engine/prefix_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace lily {
namespace {

using Tokens = std::vector<int32_t>;

class Point final : public Checkpoint {
 public:
  explicit Point(size_t length) : length_(static_cast<uint32_t>(length)) {}
  uint32_t length() const override { return length_; }
  uint64_t bytes() const override { return 0; }
  Result<void> write(ByteSink&) const override { return {}; }

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

TEST(PrefixCache, FindsTheLongestCheckpointThatLeavesATokenToCompute) {
  PrefixCache cache;
  EXPECT_EQ(cache.find(range(0, 10)).checkpoint, nullptr);
  keep(cache, range(0, 4));
  keep(cache, range(0, 8));
  EXPECT_EQ(cache.find(range(0, 10)).length, 8U);
  EXPECT_EQ(cache.find(range(0, 9)).length, 8U);
  EXPECT_EQ(cache.find(range(0, 8)).length, 4U);  // the exact repeat must sample again
  EXPECT_EQ(cache.find(range(0, 4)).checkpoint, nullptr);
  EXPECT_EQ(cache.find(range(1, 10)).checkpoint, nullptr);
  EXPECT_EQ(cache.find({}).checkpoint, nullptr);
  EXPECT_TRUE(cache.holds(range(0, 8)));
  EXPECT_FALSE(cache.holds(range(0, 6)));
  EXPECT_FALSE(cache.holds(range(0, 9)));
}

TEST(PrefixCache, SaysWhereAPromptPartsFromWhatIsKept) {
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

TEST(PrefixCache, AShortSideRequestDoesNotEvictALongConversation) {
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

TEST(PrefixCache, WhatIsNeverUsedAgainGoesInTheEnd) {
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

TEST(PrefixCache, AChainIsThinnedNotCutOff) {
  PrefixCache cache;
  for (int32_t at = 1000; at <= 16'000; at += 1000) keep(cache, range(0, at));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(cache.evict());
  EXPECT_EQ(cache.size(), 4U);
  // Wherever a prompt parts from the conversation, not much more than a quarter of it is read again.
  for (int32_t at = 1001; at <= 16'001; at += 500) {
    EXPECT_GE(cache.find(range(0, at)).length + 8000U, static_cast<uint32_t>(at)) << at;
  }
}

TEST(PrefixCache, AUseKeepsThoseAboveItToo) {
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

// Against a plain map, over an alphabet of three letters so that edges are cut and joined often.
RC_GTEST_PROP(PrefixCache, AgreesWithAMapOfPrefixes, ()) {
  PrefixCache cache;
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
        RC_ASSERT(cache.evict() == !kept.empty());
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
    RC_ASSERT(match.known == known);
    RC_ASSERT((match.checkpoint == nullptr) == (longest == 0));
    if (longest > 0) {
      RC_ASSERT(match.checkpoint ==
                kept.at(Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(longest))));
    }
  }
}

}  // namespace
}  // namespace lily
