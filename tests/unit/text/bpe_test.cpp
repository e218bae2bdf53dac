// Byte-pair merging against a merge loop written down from its definition.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lily {
namespace {

std::array<uint32_t, 256> byte_ids() {
  std::array<uint32_t, 256> ids{};
  for (uint32_t i = 0; i < 256; ++i) ids[i] = i;
  return ids;
}

// Quadratic: of all pairs with a merge the lowest rank, the leftmost of equals.
std::vector<int32_t> by_definition(const std::vector<Bpe::Merge>& merges, std::string_view piece) {
  std::map<std::pair<uint32_t, uint32_t>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[{merges[rank].left, merges[rank].right}] = rank;
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({static_cast<uint32_t>(ids[i]), static_cast<uint32_t>(ids[i + 1])});
      if (found != ranks.end() && found->second < best) best = found->second, place = i;
    }
    if (best == merges.size()) return ids;
    ids[place] = static_cast<int32_t>(merges[best].result);
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

// Merges of random parts in random order: parts may be made by later merges than those that use them, a pair
// may come twice, two pairs may make one token.
std::vector<Bpe::Merge> random_merges(std::mt19937& random, size_t count, bool shuffled) {
  std::vector<uint32_t> tokens = {'a', 'b', 'c'};
  std::vector<Bpe::Merge> merges;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
    const uint32_t result =
        random() % 8 == 0 ? tokens[random() % tokens.size()] : 256 + static_cast<uint32_t>(i);
    merges.push_back({left, right, result});
    tokens.push_back(result);
  }
  if (shuffled) std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

std::string random_text(std::mt19937& random, size_t length) {
  std::string text;
  while (text.size() < length) text += static_cast<char>('a' + random() % (random() % 3 == 0 ? 4 : 2));
  return text;
}

TEST(Bpe, MergesByDefinition) {
  std::mt19937 random(3);
  Bpe::Scratch scratch;  // of one caller: kept over pieces and vocabularies
  for (int round = 0; round < 400; ++round) {
    const auto merges = random_merges(random, 1 + random() % 60, round % 2 == 1);
    const Bpe bpe(byte_ids(), merges);
    for (const size_t length : {1, 2, 5, 31, 32, 33, 34, 100, 300}) {
      const std::string text = random_text(random, length);
      std::vector<int32_t> out;
      bpe.encode(text, scratch, out);
      ASSERT_EQ(out, by_definition(merges, text)) << text;
    }
  }
}

TEST(Bpe, VeryLongPiecesMergeByDefinition) {
  std::mt19937 random(4);
  Bpe::Scratch scratch;
  for (int round = 0; round < 9; ++round) {
    // Ranks without pairs between the merges: all in one range of ranks, a few in each, or one.
    const int between = std::array{0, 20, 100}[round % 3];
    auto merges = random_merges(random, 60, round % 2 == 1);
    std::vector<Bpe::Merge> padded;
    for (const Bpe::Merge& merge : merges) {
      for (int i = 0; i < between; ++i)
        padded.push_back({10000, 10000 + static_cast<uint32_t>(padded.size()), 9999});
      padded.push_back(merge);
    }
    const Bpe bpe(byte_ids(), padded);
    const std::string text = random_text(random, Bpe::kLong + 500);
    std::vector<int32_t> out;
    bpe.encode(text, scratch, out);
    ASSERT_EQ(out, by_definition(padded, text));
  }
}

TEST(Bpe, WithoutMergesGivesBytes) {
  const Bpe bpe(byte_ids(), {});
  Bpe::Scratch scratch;
  for (const size_t length : {3, 40, 5000}) {
    std::vector<int32_t> out;
    bpe.encode(std::string(length, 'x'), scratch, out);
    EXPECT_EQ(out, std::vector<int32_t>(length, 'x'));
  }
}

}  // namespace
}  // namespace lily
