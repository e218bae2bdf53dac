#include "weights/inspect.h"

#include <gmock/gmock.h>

#include "tests/support/checkpoint_builder.h"

namespace lily {
namespace {

using test::BuilderOptions;
using test::CheckpointBuilder;
using test::TempFolder;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Inspect, AValidCheckpoint) {
  BuilderOptions options;
  options.mtp = true;
  CheckpointBuilder builder(options);
  builder.tensors["vision_tower.pos_embed.weight"] = {"BF16", {4}, "12345678"};
  const TempFolder folder;
  builder.write(folder.path(), 2);
  const auto found = inspect_checkpoint(folder.path(), PlanOptions{1024, 2, Limits::kDefaultChunk});
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_THAT(found->faults, IsEmpty());
  EXPECT_EQ(found->layout, Layout::mlx);
  EXPECT_EQ(found->files, 2U);
  EXPECT_EQ(found->shape->layers, 4U);
  EXPECT_TRUE(found->mtp);
  EXPECT_EQ(found->weight_bytes + 8, found->total_bytes);
  EXPECT_EQ(found->plan->context, 1024U);
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> counts;
  for (const FormatGroup& group : found->formats) {
    bytes += group.bytes;
    counts[group.format] = group.tensors;
  }
  EXPECT_EQ(bytes, found->total_bytes);
  EXPECT_EQ(counts.at("8-bit, groups of 64, BF16 scales"), 2U * 5);
  // Embedding, head and fc; 5 matrices of each Gated DeltaNet, 4 of each attention, 6 of each mixture of
  // experts.
  EXPECT_EQ(counts.at("4-bit, groups of 64, BF16 scales"), 3U + 5 * 3 + 4 * 2 + 6 * 5);
  EXPECT_EQ(counts.at("vision, ignored"), 1U);
}

TEST(Inspect, FaultsOfAllPartsTogether) {
  CheckpointBuilder builder;
  builder.tensors.erase("language_model.model.norm.weight");
  builder.tensors["stray"] = {"U8", {1}, "x"};
  builder.generation_config = R"({"eos_token_id":9999999})";
  const TempFolder folder;
  builder.write(folder.path());
  const auto found = inspect_checkpoint(folder.path(), {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->faults.size(), 3U);
  EXPECT_THAT(found->faults, Contains(HasSubstr("eos_token_id 9999999")));
  EXPECT_THAT(found->faults, Contains(HasSubstr("'language_model.model.norm.weight': expected")));
  EXPECT_THAT(found->faults, Contains(HasSubstr("'stray': unexpected")));
}

TEST(Inspect, AFaultyConfigurationAndDamagedFiles) {
  CheckpointBuilder builder;
  builder.text_config()["hidden_size"] = 300;
  builder.text_config()["num_experts"] = 300;
  const TempFolder folder;
  builder.write(folder.path());
  auto found = inspect_checkpoint(folder.path(), {});
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->shape);
  EXPECT_EQ(found->faults.size(), 2U);
  EXPECT_GT(found->total_bytes, 0U);
  test::write_file(folder.path() / "model.safetensors", "short");
  found = inspect_checkpoint(folder.path(), {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->layout, Layout::unknown);
  EXPECT_THAT(found->faults, Contains(HasSubstr("too few")));
  EXPECT_THAT(found->faults, Contains(HasSubstr("hidden_size: expected 256, found 300")));
}

TEST(Inspect, ThePublishedLayoutIsRecognised) {
  CheckpointBuilder builder;
  builder.config.erase("quantization");
  builder.config.erase("quantization_config");
  builder.tensors = {{"model.language_model.norm.weight", {"BF16", {256}, std::string(512, 'x')}}};
  const TempFolder folder;
  builder.write(folder.path());
  const auto found = inspect_checkpoint(folder.path(), {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->layout, Layout::published);
  EXPECT_THAT(found->faults,
              Contains(HasSubstr(
                  "'model.language_model.embed_tokens.weight': expected BF16, F16 or F32 [8192,256]")));
}

TEST(Inspect, WhatIsNoFolderOrNoOption) {
  const TempFolder folder;
  EXPECT_THAT(inspect_checkpoint(folder.path() / "x", {}).error().message, HasSubstr("no such folder"));
  EXPECT_THAT(inspect_checkpoint(folder.path(), PlanOptions{1, 1, 1}).error().message,
              HasSubstr("context length"));
  const auto empty = inspect_checkpoint(folder.path(), {});
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->faults.size(), 2U);  // no config.json, no tensors
}

}  // namespace
}  // namespace lily
