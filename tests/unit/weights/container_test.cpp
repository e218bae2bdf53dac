#include "weights/container.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/checkpoint_builder.h"

namespace lily {
namespace {

using test::BuiltTensor;
using test::BuiltTensors;
using test::TempFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string image_of(std::string header, std::string data = "") {
  std::string image(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(image.data(), &length, 8);
  return image + header + data;
}

Result<std::vector<StoredTensor>> parse(const std::string& image) {
  return parse_safetensors(std::as_bytes(std::span(image)), "x.safetensors");
}

std::string fault_of(const std::string& image) {
  const auto parsed = parse(image);
  return parsed ? "no fault" : parsed.error().text();
}

TEST(Safetensors, ReadsTensorsInPlace) {
  const std::string image = image_of(
      R"({"__metadata__":{"format":"mlx"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}   )",
      "abcdefghijkl");
  const auto tensors = parse(image);
  ASSERT_TRUE(tensors) << tensors.error().text();
  ASSERT_EQ(tensors->size(), 3U);
  EXPECT_EQ((*tensors)[0].name, "b");
  EXPECT_EQ((*tensors)[0].type, DType::f32);
  EXPECT_EQ((*tensors)[0].data.size(), 8U);
  EXPECT_EQ(static_cast<char>((*tensors)[0].data[0]), 'e');
  EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_TRUE((*tensors)[2].data.empty());
}

TEST(Safetensors, ReadsAScalar) {
  const auto tensors = parse(image_of(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "abcd"));
  ASSERT_TRUE(tensors) << tensors.error().text();
  EXPECT_TRUE((*tensors)[0].shape.empty());
}

struct Malformed {
  const char* name;
  std::string image;
  const char* message;
};
void PrintTo(const Malformed& fault, std::ostream* out) { *out << fault.name; }

std::string entry(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }

class MalformedImage : public ::testing::TestWithParam<Malformed> {};
TEST_P(MalformedImage, IsRefusedWithItsOwnMessage) {
  EXPECT_THAT(fault_of(GetParam().image), AllOf(HasSubstr("x.safetensors"), HasSubstr(GetParam().message)));
}

const std::string kGood = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
std::vector<Malformed> malformed_images() {
  const std::string deep = std::string(200'000, '[');
  return {
      {"empty", "", "0 bytes are too few"},
      {"short", "1234567", "7 bytes are too few"},
      {"git_lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"},
      {"length_huge", std::string(8, '\xff') + "{}", "a header of 18446744073709551615 bytes"},
      {"length_beyond_file", std::string("\x20\0\0\0\0\0\0\0", 8) + "{}",
       "the file has only 2 after its length"},
      {"not_an_object", image_of("[]"), "does not begin with '{'"},
      {"empty_header", image_of(""), "does not begin with '{'"},
      {"leading_space", image_of(" {}"), "does not begin with '{'"},
      {"cut_json", image_of("{\"t\":{\"dtype\""), "not valid JSON at byte"},
      {"after_json", image_of("{} {}"), "not valid JSON"},
      {"invalid_utf8", image_of("{\"\xff\":1}"), "not valid JSON"},
      {"deep", image_of("{\"t\":" + deep), "not valid JSON"},
      {"duplicate_tensor", image_of("{\"t\":{" + kGood + "},\"t\":{" + kGood + "}}", "abcd"),
       "the key 't' is there twice"},
      {"duplicate_escaped", image_of("{\"t\":{" + kGood + "},\"\\u0074\":{" + kGood + "}}", "abcd"),
       "the key 't' is there twice"},
      {"duplicate_field", image_of(entry(kGood + ",\"dtype\":\"F16\""), "abcd"),
       "the key 'dtype' is there twice"},
      {"entry_not_object", image_of("{\"t\":3}"), "tensor 't': expected an object, found 3"},
      {"no_dtype", image_of(entry(R"("shape":[1],"data_offsets":[0,4])"), "abcd"),
       "dtype: expected a string"},
      {"unknown_dtype", image_of(entry(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), "abcd"),
       "dtype 'F31' is unknown"},
      {"no_shape", image_of(entry(R"("dtype":"F32","data_offsets":[0,4])"), "abcd"),
       "shape: expected an array"},
      {"negative_size", image_of(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "abcd"),
       "shape: -1 is not a size"},
      {"fractional_size", image_of(entry(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), "abcd"),
       "is not a size"},
      {"rank", image_of(entry(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"), "abcd"),
       "9 dimensions"},
      {"size_overflow",
       image_of(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), "abcd"),
       "more than 2^64 bytes"},
      {"size_wraps",
       image_of(entry(R"("dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,4])"), "abcd"),
       "more than 2^64 bytes"},
      {"no_offsets", image_of(entry(R"("dtype":"F32","shape":[1])"), "abcd"),
       "data_offsets: expected [begin, end]"},
      {"three_offsets", image_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), "abcd"),
       "data_offsets: expected [begin, end]"},
      {"offsets_reversed", image_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "abcd"),
       "end 0 is before begin 4"},
      {"beyond_file", image_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "abcd"),
       "ends at byte 8 of the data, but the file has only 4"},
      {"size_differs", image_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "abcd"),
       "F32 of its shape takes 8 bytes, data_offsets give 4"},
      {"overlap",
       image_of(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
           "abcdef"),
       "'b' at bytes 2 to 6 overlaps 'a'"},
      {"gap", image_of(entry(R"("dtype":"U8","shape":[2],"data_offsets":[2,4])"), "abcd"),
       "2 bytes before tensor 't' belong to no tensor"},
      {"trailing", image_of(entry(kGood), "abcdXY"), "2 bytes after the last tensor"},
      {"metadata", image_of(R"({"__metadata__":{"a":1}})"), "__metadata__: expected an object of strings"},
      {"control_characters", image_of("{\"a\\n\\u0000b\":1}"), "'a\\x0a\\x00b'"},
  };
}
INSTANTIATE_TEST_SUITE_P(All, MalformedImage, ::testing::ValuesIn(malformed_images()),
                         [](const auto& param) { return param.param.name; });

TEST(Safetensors, ListsAllFaultsAtOnce) {
  const auto parsed =
      parse(image_of(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]},"b":2,"c":3})", "abcd"));
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().details.size(), 3U);
  EXPECT_THAT(parsed.error().message, HasSubstr("3 faults"));
}

TEST(Safetensors, AHostileHeaderCannotMakeTheListLong) {
  std::string header = "{";
  for (int i = 0; i < 5000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  }
  const auto parsed = parse(image_of(header + "}"));
  ASSERT_FALSE(parsed);
  EXPECT_LE(parsed.error().details.size(), 201U);
  EXPECT_THAT(parsed.error().details.back(), HasSubstr("and 4800 more"));
}

// Folders

BuiltTensors two_tensors() { return {{"a", {"U8", {4}, "aaaa"}}, {"b", {"U8", {2}, "bb"}}}; }

std::string folder_fault(const std::filesystem::path& folder) {
  const auto container = Container::open(folder);
  return container ? "no fault" : container.error().text();
}

class Folder : public ::testing::Test {
 protected:
  void file(const std::string& name, std::string_view content) { write_file(folder_.path() / name, content); }
  void shard(const std::string& name, const BuiltTensors& tensors) { file(name, safetensors_image(tensors)); }
  void index(const std::string& map) {
    file("model.safetensors.index.json", "{\"metadata\":{\"total_size\":6},\"weight_map\":" + map + "}");
  }
  std::string fault() const { return folder_fault(folder_.path()); }
  TempFolder folder_;
};

TEST_F(Folder, SingleFile) {
  shard("model.safetensors", two_tensors());
  const auto container = Container::open(folder_.path());
  ASSERT_TRUE(container) << container.error().text();
  EXPECT_EQ(container->total_bytes(), 6U);
  ASSERT_NE(container->find("b"), nullptr);
  EXPECT_EQ(container->find("b")->data.size(), 2U);
  EXPECT_EQ(container->find("c"), nullptr);
}

TEST_F(Folder, ShardsWithIndex) {
  shard("one.safetensors", {{"a", {"U8", {4}, "aaaa"}}});
  shard("two.safetensors", {{"b", {"U8", {2}, "bb"}}});
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  auto container = Container::open(folder_.path());
  ASSERT_TRUE(container) << container.error().text();
  EXPECT_EQ(container->files().size(), 2U);
  const Container moved = std::move(*container);
  EXPECT_EQ(static_cast<char>(moved.find("b")->data[1]), 'b');
  EXPECT_EQ(moved.find("b")->file, 1U);
}

TEST_F(Folder, AnIndexOverOneFileIsWhatMlxWrites) {
  shard("model.safetensors", two_tensors());
  index(R"({"a":"model.safetensors","b":"model.safetensors"})");
  EXPECT_EQ(fault(), "no fault");
}

TEST_F(Folder, Faults) {
  EXPECT_THAT(folder_fault(folder_.path() / "none"), HasSubstr("there is no such folder"));
  EXPECT_THAT(fault(), HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  file("a_file", "x");
  EXPECT_THAT(folder_fault(folder_.path() / "a_file"), HasSubstr("expected a folder"));
}

TEST_F(Folder, MissingShardsAreAllNamed) {
  shard("one.safetensors", {{"a", {"U8", {4}, "aaaa"}}});
  index(R"({"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"})");
  EXPECT_THAT(fault(),
              AllOf(HasSubstr("'two.safetensors' is missing"), HasSubstr("'three.safetensors' is missing")));
}

TEST_F(Folder, DuplicateOverShards) {
  shard("one.safetensors", two_tensors());
  shard("two.safetensors", {{"b", {"U8", {2}, "bb"}}, {"c", {"U8", {1}, "c"}}});
  index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  EXPECT_THAT(fault(), HasSubstr("tensor 'b' is in 'one.safetensors' and in 'two.safetensors'"));
}

TEST_F(Folder, IndexDisagrees) {
  shard("one.safetensors", {{"a", {"U8", {4}, "aaaa"}}, {"x", {"U8", {1}, "x"}}});
  shard("two.safetensors", {{"b", {"U8", {2}, "bb"}}});
  index(R"({"a":"two.safetensors","b":"two.safetensors","ghost":"one.safetensors"})");
  EXPECT_THAT(
      fault(),
      AllOf(HasSubstr("'x' of 'one.safetensors' is not in"),
            HasSubstr("'a': model.safetensors.index.json says it is in 'two.safetensors', it is in "
                      "'one.safetensors'"),
            HasSubstr(
                "'ghost': model.safetensors.index.json says it is in 'one.safetensors', which does not")));
}

TEST_F(Folder, IndexFaults) {
  shard("one.safetensors", two_tensors());
  index(R"({"a":"../one.safetensors","b":"one.safetensors"})");
  EXPECT_THAT(fault(), HasSubstr("\"../one.safetensors\" is not the name of a file in the folder"));
  index(R"({"a":1,"b":"one.safetensors"})");
  EXPECT_THAT(fault(), HasSubstr("tensor 'a': 1 is not the name"));
  index(R"({"a":"one.safetensors","a":"one.safetensors","b":"one.safetensors"})");
  EXPECT_THAT(fault(), HasSubstr("the key 'a' is there twice"));
  index("{}");
  EXPECT_THAT(fault(), HasSubstr("weight_map: expected an object"));
  file("model.safetensors.index.json", "{");
  EXPECT_THAT(fault(), HasSubstr("not valid JSON"));
  index(R"({"a":"one.safetensors","b":"one.safetensors"})");
  shard("model.safetensors", two_tensors());
  EXPECT_THAT(fault(), HasSubstr("two checkpoints in one folder"));
}

TEST_F(Folder, FaultsOfSeveralShardsComeTogether) {
  file("one.safetensors", "tiny");
  file("two.safetensors", image_of("{\"b\":2}"));
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(fault(), AllOf(HasSubstr("too few"), HasSubstr("tensor 'b'")));
}

TEST_F(Folder, AShardThatIsAFolder) {
  std::filesystem::create_directory(folder_.path() / "model.safetensors");
  EXPECT_THAT(fault(), HasSubstr("not a regular file"));
}

TEST_F(Folder, APipeDoesNotBlock) {
  ASSERT_EQ(mkfifo((folder_.path() / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(fault(), HasSubstr("not a regular file"));
}

// Pages that are given back, also those at the ends that other tensors share, read as before.
TEST_F(Folder, PagesGivenBackAreReadAgain) {
  std::string text(300'000, 'x');
  for (size_t i = 0; i < text.size(); i += 1000) {
    text[i] = static_cast<char>('a' + i / 1000 % 26);
  }
  file("data", text);
  const auto mapped = MappedFile::open(folder_.path() / "data");
  ASSERT_TRUE(mapped.has_value());
  const auto read = [&] {
    return std::string(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size());
  };
  EXPECT_EQ(read(), text);
  release_pages(mapped->bytes().subspan(5, 200'000));
  EXPECT_EQ(read(), text);
  evict_pages(mapped->bytes().subspan(70'000, 150'001));
  EXPECT_EQ(read(), text);
  evict_pages(mapped->bytes().subspan(10, 20));  // no whole page
  EXPECT_EQ(read(), text);
  dispose_pages(mapped->bytes());  // it is not ours
  EXPECT_EQ(read(), text);
}

// Whether pages can leave a file here at all: asked of the system, not of what is tested.
bool takes_holes(const std::filesystem::path& path) {
#ifdef FALLOC_FL_PUNCH_HOLE
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const bool taken = ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 16) == 0;
  ::close(file);
  return taken;
#else
  static_cast<void>(path);
  return false;
#endif
}

// Of a disposable file the whole pages of a part leave the storage, and nothing else does.
TEST_F(Folder, DisposedPagesLeaveTheFile) {
  const std::string text(1 << 20, 'x');
  file("data", text);
  file("other", text);
  if (!takes_holes(folder_.path() / "other")) {
    GTEST_SKIP() << "this file system has no holes";
  }
  const auto blocks = [&] {
    struct stat status {};
    EXPECT_EQ(::stat((folder_.path() / "data").c_str(), &status), 0);
    return status.st_blocks;
  };
  const auto before = blocks();
  const auto mapped = MappedFile::open(folder_.path() / "data", Ownership::disposable);
  ASSERT_TRUE(mapped.has_value());
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  dispose_pages(mapped->bytes().subspan(1, text.size() / 2));
  if (before < static_cast<int64_t>(text.size() / 512)) {
    GTEST_SKIP() << "this file system does not say what a file takes";
  }
  EXPECT_LE(blocks(), before - static_cast<int64_t>(text.size() / 2 - 2 * page) / 512);
  EXPECT_EQ(mapped->bytes()[page - 1], std::byte{'x'}) << "of a page that is not disposed of as a whole";
  EXPECT_EQ(mapped->bytes()[page], std::byte{0});
  EXPECT_EQ(mapped->bytes()[text.size() / 2 + page], std::byte{'x'});
}

}  // namespace
}  // namespace lily
