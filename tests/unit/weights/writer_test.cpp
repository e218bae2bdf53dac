#include "weights/writer.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "base/check.h"
#include "tests/support/checkpoint_builder.h"
#include "weights/container.h"
#include "weights/staged_folder.h"

namespace lily {
namespace {

using test::TempFolder;
using ::testing::HasSubstr;

// Random tensors, written in random pieces, read back by the container.
RC_GTEST_PROP(Writer, WhatIsWrittenIsReadBack, ()) {
  const auto count = *rc::gen::inRange<size_t>(1, 12);
  const auto shard_bytes = *rc::gen::inRange<uint64_t>(1, 4000);
  std::vector<TensorPlan> plans;
  std::vector<std::vector<std::byte>> contents;
  for (size_t i = 0; i < count; ++i) {
    const DType type = *rc::gen::element(DType::u32, DType::bf16, DType::f16, DType::f32);
    const auto shape = *rc::gen::container<std::vector<uint64_t>>(*rc::gen::inRange<size_t>(1, 4),
                                                                  rc::gen::inRange<uint64_t>(0, 9));
    plans.push_back({"tensor \"" + std::to_string(i), type, shape});
    contents.push_back(*rc::gen::container<std::vector<std::byte>>(
        plans.back().bytes(),
        rc::gen::map(rc::gen::arbitrary<uint8_t>(), [](uint8_t b) { return std::byte{b}; })));
  }
  const TempFolder folder;
  auto writer = CheckpointWriter::create(folder.path(), plans, shard_bytes);
  RC_ASSERT(writer.has_value());
  for (size_t i = count; i-- > 0;) {
    const size_t half = contents[i].size() / 2;
    RC_ASSERT(writer->write(i, half, std::span(contents[i]).subspan(half)).has_value());
    RC_ASSERT(writer->write(i, 0, std::span(contents[i]).first(half)).has_value());
  }
  RC_ASSERT(writer->finish().has_value());
  const auto container = Container::open(folder.path());
  RC_ASSERT(container.has_value());
  RC_ASSERT(container->total_bytes() == writer->total_bytes());
  for (size_t i = 0; i < count; ++i) {
    const StoredTensor* tensor = container->find(plans[i].name);
    RC_ASSERT(tensor != nullptr);
    RC_ASSERT(tensor->type == plans[i].type);
    RC_ASSERT(tensor->shape == plans[i].shape);
    RC_ASSERT(std::equal(tensor->data.begin(), tensor->data.end(), contents[i].begin(), contents[i].end()));
  }
}

TEST(Writer, ShardsAreNamedAsMlxNamesThem) {
  const TempFolder folder;
  auto writer = CheckpointWriter::create(
      folder.path(), {{"a", DType::u8, {10}}, {"b", DType::u8, {10}}, {"c", DType::u8, {30}}}, 20);
  ASSERT_TRUE(writer) << writer.error().text();
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(writer->write(i, 0, std::vector<std::byte>(i == 2 ? 30 : 10)));
  }
  ASSERT_TRUE(writer->finish());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model-00001-of-00002.safetensors"));
  const std::string index = test::read_file(folder.path() / "model.safetensors.index.json");
  EXPECT_THAT(index, HasSubstr("\"total_size\": 50"));
  EXPECT_THAT(index, HasSubstr("\"c\": \"model-00002-of-00002.safetensors\""));
}

TEST(Writer, AnUnfinishedTensorIsAFaultOfTheCaller) {
  const TempFolder folder;
  auto writer = CheckpointWriter::create(folder.path(), {{"a", DType::u8, {10}}});
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write(0, 0, std::vector<std::byte>(9)));
  EXPECT_THROW((void)writer->finish(), InternalError);
  EXPECT_THROW((void)writer->write(0, 5, std::vector<std::byte>(6)), InternalError);
  EXPECT_THROW((void)writer->write(1, 0, {}), InternalError);
}

// A limit on the size of files stands in for a full disk.
TEST(Writer, AFullDiskIsAClearErrorBeforeAnythingIsWritten) {
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto writer = CheckpointWriter::create(folder.path(), {{"a", DType::u8, {1 << 20}}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().kind, ErrorKind::io);
  EXPECT_THAT(writer.error().message,
              ::testing::AllOf(HasSubstr("cannot reserve"), HasSubstr("File too large")));
}

TEST(Writer, AFolderThatIsNotThere) {
  const TempFolder folder;
  const auto writer = CheckpointWriter::create(folder.path() / "none", {{"a", DType::u8, {1}}});
  ASSERT_FALSE(writer);
  EXPECT_THAT(writer.error().message, HasSubstr("none/model.safetensors"));
}

TEST(StagedFolder, AppearsWholeOrNotAtAll) {
  const TempFolder folder;
  const auto destination = folder.path() / "out";
  {
    const auto staged = StagedFolder::create(destination);
    ASSERT_TRUE(staged) << staged.error().text();
    ASSERT_TRUE(staged->write_file("x", "content"));
    EXPECT_FALSE(std::filesystem::exists(destination));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  auto staged = StagedFolder::create(destination);
  ASSERT_TRUE(staged);
  ASSERT_TRUE(staged->write_file("x", "content"));
  EXPECT_FALSE(staged->write_file("x", "again"));
  ASSERT_TRUE(staged->copy_file(staged->path() / "x", "y"));
  EXPECT_FALSE(staged->copy_file(staged->path() / "none", "z"));
  ASSERT_TRUE(staged->commit());
  EXPECT_EQ(test::read_file(destination / "y"), "content");
}

TEST(StagedFolder, AFolderFilledMeanwhileIsNotReplaced) {
  const TempFolder folder;
  const auto destination = folder.path() / "out";
  auto staged = StagedFolder::create(destination);
  ASSERT_TRUE(staged);
  std::filesystem::create_directories(destination);
  test::write_file(destination / "mine", "x");
  const auto committed = staged->commit();
  ASSERT_FALSE(committed);
  EXPECT_THAT(committed.error().message, HasSubstr("cannot rename to"));
  EXPECT_EQ(test::read_file(destination / "mine"), "x");
}

}  // namespace
}  // namespace lily
