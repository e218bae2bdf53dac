// The disk tier: files that prove what they are, an index that counts shared rows once, and a store and an
// engine that find conversations again.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>

#include "base/log.h"
#include "engine/disk_store.h"
#include "tests/unit/engine/collector.h"

namespace lily::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder of its own for each test.
class Folder {
 public:
  Folder() {
    // In memory where that can be: to flush a file may take long.
    const fs::path memory = "/dev/shm";
    const fs::path base = fs::is_directory(memory) ? memory : fs::temp_directory_path();
    std::string name = (base / "lily-disk-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  // Files of the store with this ending.
  std::vector<fs::path> files(const std::string& ending) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file() && entry.path().string().ends_with(ending)) found.push_back(entry.path());
    }
    return found;
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const fs::path& file : files("")) sum += fs::file_size(file);
    return sum;
  }

 private:
  fs::path path_;
};

// What is logged while it lives; no other thread may log while it begins or ends.
class Log {
 public:
  Log() { spdlog::default_logger()->sinks().push_back(sink_); }
  ~Log() { spdlog::default_logger()->sinks().pop_back(); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  size_t lines_with(const std::string& words) const {
    std::istringstream lines(text_.str());
    size_t count = 0;
    for (std::string line; std::getline(lines, line);) count += line.find(words) == std::string::npos ? 0 : 1;
    return count;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::sink> sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
};

std::vector<int32_t> numbers(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((first + i * 7) % 200);
  return tokens;
}

std::vector<std::byte> contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
void overwrite(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

TEST(DiskFile, IsWholeOrSaysWhatIsWrong) {
  const Folder folder;
  const fs::path path = folder.path() / "x.checkpoint";
  const DiskHead head{DiskKind::checkpoint, {1, 2}, {3, 4}, 0, 3, {7, 8, 9}};
  const std::vector<std::byte> payload(100, std::byte{5});
  {
    auto writer = DiskWriter::create(path, head);
    ASSERT_TRUE(writer) << writer.error().text();
    ASSERT_TRUE(writer->write(payload));
    EXPECT_FALSE(fs::exists(path)) << "before it is whole it does not have its name";
    ASSERT_TRUE(writer->finish());
    EXPECT_EQ(writer->bytes(), fs::file_size(path));
  }
  EXPECT_EQ(folder.files(DiskWriter::kUnfinished).size(), 0U);
  const auto read = [&]() -> Result<void> {
    LILY_TRY(DiskReader reader, DiskReader::open(path));
    std::vector<std::byte> found(payload.size());
    LILY_TRY_VOID(reader.read(found));
    LILY_TRY_VOID(reader.finish());
    EXPECT_EQ(reader.head(), head);
    EXPECT_EQ(found, payload);
    return {};
  };
  ASSERT_TRUE(read());
  const std::vector<std::byte> whole = contents(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    auto damaged = whole;
    damaged[i] ^= std::byte{0x10};
    overwrite(path, damaged);
    const Result<void> refused = read();
    ASSERT_FALSE(refused) << "byte " << i << " of " << whole.size();
    EXPECT_THAT(refused.error().text(), HasSubstr("x.checkpoint"));
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    overwrite(path, std::span(whole).first(size));
    ASSERT_FALSE(read()) << size;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  overwrite(path, longer);
  EXPECT_FALSE(read());
}

TEST(DiskFile, WhatIsNotFinishedLeavesNothing) {
  const Folder folder;
  {
    auto writer = DiskWriter::create(folder.path() / "y.rows", {});
    ASSERT_TRUE(writer);
    EXPECT_EQ(folder.files(DiskWriter::kUnfinished).size(), 1U);
  }
  EXPECT_EQ(folder.files("").size(), 0U);
}

TEST(DiskIndex, CountsSharedRowsOnceAndDropsThemWithTheLast) {
  DiskIndex index;
  const auto add = [&](const std::vector<int32_t>& tokens) {
    auto stored = std::make_shared<StoredCheckpoint>(name_checkpoint({1, 1}, tokens));
    stored->bytes = 100;
    for (const Hash128& segment : stored->segments) {
      if (!index.hold(segment)) index.add_segment(segment, 1000);
    }
    index.add(tokens, stored);
    return stored;
  };
  const auto stem = numbers(1024);
  auto left = stem, right = stem;
  left.push_back(1);
  right.insert(right.end(), 600, 2);
  const auto one = add(left);
  EXPECT_EQ(index.bytes(), 2100U);
  const auto two = add(right);
  EXPECT_EQ(index.bytes(), 3200U);
  EXPECT_EQ(two->segments.size(), 3U);
  EXPECT_EQ(one->segments[1], two->segments[1]);
  using Files = std::vector<std::string>;
  EXPECT_EQ(index.remove(right, *two), (Files{checkpoint_file(two->name), rows_file(two->segments[2])}));
  EXPECT_EQ(index.bytes(), 2100U);
  EXPECT_EQ(index.remove(right, *two), Files{});
  EXPECT_EQ(index.remove(left, *one).size(), 3U);
  EXPECT_EQ(index.bytes(), 0U);
  for (int32_t i = 0; i < 50; ++i) {
    auto other = numbers(1024, i);
    other.push_back(i);
    add(other);
    index.make_room(10'000);
    EXPECT_LE(index.bytes(), 10'000U);
  }
  EXPECT_GT(index.size(), 2U);
}

class DiskTest : public EngineTest {
 protected:
  void SetUp() override {
    control->script = [](const FakeControl::History& history) { return std::optional(letter(history)); };
    cache_bytes = 100;
    disk = DiskOptions{.folder = folder.path(), .max_bytes = 1 << 20, .model = {7, 7}};
  }
  static int32_t letter(const FakeControl::History& history) {
    return 'a' + fake_next_token(history, 0) % 26;
  }
  static std::string text_of(std::vector<int32_t> history, uint32_t count) {
    std::string text;
    for (uint32_t i = 0; i < count; ++i) {
      history.push_back(letter(history));
      text += static_cast<char>(history.back());
    }
    return text;
  }
  void begin() { start({.context = 16'384, .sequences = 4, .chunk = 16}); }
  void restart() {
    engine.reset();
    begin();
  }
  // Runs one request to its end and holds its text against that of a device that kept nothing.
  PromptReuse ask(const std::vector<int32_t>& prompt, std::vector<uint32_t> marks = {}) {
    GenerationRequest asked = request(1, 6);
    asked.prompt = prompt;
    asked.marks = std::move(marks);
    Collector events;
    const auto job = submit(std::move(asked), events);
    EXPECT_TRUE(events.wait_end());
    EXPECT_TRUE(events.finished()) << (events.failed() ? events.failed()->text() : "");
    EXPECT_EQ(events.content(), text_of(prompt, 6));
    const auto started = events.all<Started>();
    return started.empty() ? PromptReuse{} : started.front().reuse;
  }

  void wait_for_disk(uint64_t written) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < deadline) {
      // Metrics are reported with each pass, so what is written afterwards is not in them.
      if (folder.files(".checkpoint").size() >= written) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "the disk has " << folder.files(".checkpoint").size() << " checkpoints";
  }

  Folder folder;
};

TEST_F(DiskTest, AConversationIsFoundAgainAfterARestart) {
  begin();
  const auto prompt = numbers(1500);
  EXPECT_EQ(ask(prompt, {700, 1490}).cached, 0U);
  restart();
  EXPECT_EQ(folder.files(".checkpoint").size(), 3U);
  EXPECT_EQ(folder.files(".rows").size(), 2U) << "rows that several checkpoints have are stored once";
  const PromptReuse again = ask(prompt, {700, 1490});
  EXPECT_EQ(again.cached, 1490U);
  EXPECT_TRUE(again.from_disk);
  EXPECT_EQ(again.result, PromptReuse::Result::hit);
  EXPECT_FALSE(ask(prompt, {700, 1490}).from_disk) << "now it is in memory";
  // Another one that parts from it after the first mark.
  auto other = prompt;
  other[1000] = 199;
  const PromptReuse parted = ask(other, {700, 1490});
  EXPECT_EQ(parted.cached, 700U);
  EXPECT_EQ(parted.known, 1000U);
  EXPECT_EQ(parted.why, PromptReuse::Why::parted);
  EXPECT_EQ(engine->metrics().cache.disk->read, 2U);
}

TEST_F(DiskTest, WhatMemoryDroppedIsReadFromTheDisk) {
  cache_bytes = 4;
  begin();
  const auto first = numbers(3000);
  ask(first, {2990});
  wait_for_disk(3);
  for (int32_t i = 1; i < 30; ++i) ask(numbers(3000, i), {2990});
  const PromptReuse again = ask(first, {2990});
  EXPECT_GE(again.cached, 2048U);
  EXPECT_TRUE(again.from_disk);
  EXPECT_LE(control->checkpoints_alive, 6);
}

TEST_F(DiskTest, WhatWasReadIsUsedAlsoWhereMemoryKeepsNothing) {
  begin();
  ask(numbers(700), {690});
  wait_for_disk(2);
  engine.reset();
  cache_bytes = 1;
  begin();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(numbers(700), {690}).cached, 690U);
  EXPECT_EQ(engine->metrics().cache.checkpoints, 0U);
}

TEST_F(DiskTest, OneOfAnotherModelIsNotUsed) {
  begin();
  ask(numbers(800), {790});
  engine.reset();
  disk->model = {8, 8};
  begin();
  EXPECT_EQ(ask(numbers(800), {790}).cached, 0U);
  engine.reset();
  disk->model = {7, 7};
  begin();
  EXPECT_EQ(ask(numbers(800), {790}).cached, 790U);
}

TEST_F(DiskTest, DamagedFilesCostTimeNotTheRequest) {
  begin();
  ask(numbers(1500), {700, 1490});
  engine.reset();
  const auto damage = [&](const fs::path& path) {
    auto bytes = contents(path);
    bytes[bytes.size() - 20] ^= std::byte{1};
    overwrite(path, bytes);
  };
  // The largest checkpoint file is one of the two longest; without it the other one serves.
  const auto longest = [&] {
    const auto files = folder.files(".checkpoint");
    return *std::ranges::max_element(files, {}, [](const fs::path& file) { return fs::file_size(file); });
  };
  damage(longest());
  begin();
  EXPECT_GE(ask(numbers(1500), {}).cached, 700U);
  engine.reset();
  for (const fs::path& file : folder.files(".rows")) damage(file);
  begin();
  EXPECT_EQ(ask(numbers(1500), {700, 1490}).cached, 0U);
  EXPECT_GT(engine->metrics().cache.disk->failed, 0U);
  restart();
  EXPECT_GE(ask(numbers(1500), {}).cached, 1490U) << "it was written anew";
}

TEST_F(DiskTest, RowsThatAreLostCostOnlyThoseWhoNeedThem) {
  begin();
  const auto longer = numbers(1600);
  ask(longer, {1590});  // its segments are three
  auto other = numbers(600);
  other.insert(other.end(), 500, 3);
  ask(other, {1090});  // two, the first of them shared
  engine.reset();
  fs::path last;
  for (const fs::path& file : folder.files(".rows")) {
    const auto head = DiskReader::open(file);
    ASSERT_TRUE(head);
    if (head->head().begin == 1024) last = file;
  }
  ASSERT_TRUE(fs::remove(last));
  begin();
  EXPECT_GE(ask(other, {1090}).cached, 1090U) << "although it shares rows with one that is lost";
  EXPECT_LT(ask(longer, {1590}).cached, 1024U);
  engine.reset();
  EXPECT_LE(folder.bytes(), disk->max_bytes);
}

// The second of two that share damaged rows is removed while a third writes them anew.
TEST_F(DiskTest, RowsWrittenAnewOutliveTheDamagedOnes) {
  begin();
  auto one = numbers(1100);
  auto two = numbers(600);
  two.insert(two.end(), 500, 3);
  ask(one, {1090});
  ask(two, {1090});
  engine.reset();
  for (auto* prompt : {&one, &two}) {  // they go on, so that all that is stored of them is tried
    for (const char letter : text_of(*prompt, 6)) prompt->push_back(letter);
    prompt->push_back(1);
  }
  for (const fs::path& file : folder.files(".rows")) {
    auto bytes = contents(file);
    bytes[bytes.size() - 20] ^= std::byte{1};
    overwrite(file, bytes);
  }
  std::promise<void> release, reached;
  std::atomic<bool> first = true;
  control->on_write_rows = [&, released = release.get_future().share()](uint32_t begin, uint32_t) {
    if (begin != 0 || !first.exchange(false)) return;
    reached.set_value();
    released.wait();
  };
  begin();
  ask(two, {1090});
  reached.get_future().wait();  // the writer is about to put new rows in the place of the damaged ones
  ask(one, {1090});
  release.set_value();
  engine.reset();
  control->on_write_rows = nullptr;
  begin();
  EXPECT_GE(ask(two, {1090}).cached, 1090U);
  EXPECT_GE(ask(one, {1090}).cached, 1090U);
  EXPECT_EQ(engine->metrics().cache.disk->failed, 0U);
}

// As on a full disk: no file may grow.
TEST_F(DiskTest, AFullDiskFailsNoRequestAndLeavesNoPieces) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  begin();
  ask(numbers(700, 1), {690});
  wait_for_disk(2);
  const struct rlimit none { 100, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  for (int32_t i = 2; i < 6; ++i) ask(numbers(700, i), {690});
  const auto failed = [&] { return engine->metrics().cache.disk->failed; };
  for (int i = 0; i < 10'000 && failed() < 8; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_GE(failed(), 8U);
  EXPECT_EQ(folder.files(".checkpoint").size(), 2U);
  EXPECT_EQ(folder.files(".rows").size(), 1U);
  EXPECT_EQ(folder.files(DiskWriter::kUnfinished).size(), 0U);
  ask(numbers(700, 9), {690});
  restart();
  EXPECT_EQ(ask(numbers(700, 9), {690}).cached, 690U) << "there is room again";
  EXPECT_EQ(ask(numbers(700, 1), {690}).cached, 690U);
}

TEST_F(DiskTest, AFolderThatGoesAwayOrCannotBeMadeIsSaid) {
  begin();
  ask(numbers(700), {690});
  wait_for_disk(2);
  fs::remove_all(folder.path());
  ask(numbers(700, 2), {690});  // and nobody fails
  EXPECT_EQ(ask(numbers(700), {690}).cached, 690U) << "from memory";
  engine.reset();
  overwrite(folder.path(), std::as_bytes(std::span("a file", 6)));
  auto plan = make_plan(kTiny, {.context = 256, .sequences = 1, .chunk = 16});
  const auto refused = Engine::create(std::make_unique<FakeBackend>(*plan, control), *plan, *tokenizer,
                                      EngineOptions{.cache_bytes = 100, .disk = disk});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text(), HasSubstr("cannot make the folder '" + folder.path().string()));
}

// As in a folder that was made read-only.
TEST_F(DiskTest, ThatFilesCannotBeRemovedIsSaidOnce) {
  const Log log;
  begin();
  for (int32_t i = 0; i < 4; ++i) ask(numbers(300, i), {290});
  engine.reset();
  disk->max_bytes = folder.bytes() + 100;  // and of what is new there is no room beside what is old
  begin();
  for (const fs::path& file : folder.files(".checkpoint")) {
    fs::remove(file);
    fs::create_directory(file);
  }
  for (int32_t i = 4; i < 8; ++i) ask(numbers(300, i), {290});
  const auto evicted = [&] { return engine->metrics().cache.disk->evictions; };
  for (int i = 0; i < 10'000 && evicted() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(evicted(), 2U);
  engine.reset();
  EXPECT_EQ(log.lines_with("cannot remove"), 1U);
}

// Times of files say no more than an order: one in the future or before all time harms nothing.
TEST_F(DiskTest, ClocksMayJump) {
  begin();
  ask(numbers(800), {790});
  ask(numbers(800, 3), {790});
  engine.reset();
  auto jump = std::chrono::hours(24 * 365 * 50);
  for (const fs::path& file : folder.files(".checkpoint")) {
    fs::last_write_time(file, fs::last_write_time(file) + jump);
    jump = -jump;
  }
  begin();
  EXPECT_EQ(ask(numbers(800), {790}).cached, 790U);
  EXPECT_EQ(ask(numbers(800, 3), {790}).cached, 790U);
}

TEST_F(DiskTest, ManyFilesAreFoundAndCutDownToTheLimit) {
  begin();
  ask(numbers(800), {790});
  engine.reset();
  const fs::path first = folder.files(".checkpoint").front();
  const auto store = DiskReader::open(first)->head().store;
  for (int32_t i = 0; i < 1500; ++i) {
    auto ids = numbers(100, i);
    ids[0] = i;
    const uint32_t length = 70 + static_cast<uint32_t>(i) % 30;
    ids.resize(length);
    const Hash128 name = name_checkpoint(store, ids).name;
    auto file = DiskWriter::create(
        first.parent_path() / checkpoint_file(name),
        {.kind = DiskKind::checkpoint, .store = store, .prefix = name, .end = length, .ids = ids});
    ASSERT_TRUE(file);
    ids.push_back(static_cast<int32_t>(length));  // rows, and the fake's rest
    ASSERT_TRUE(file->write(std::as_bytes(std::span(ids))));
    ASSERT_TRUE(file->finish());
  }
  disk->max_bytes = folder.bytes() / 4;
  begin();
  const uint32_t found = engine->metrics().cache.disk->checkpoints;
  EXPECT_GT(found, 200U);
  EXPECT_LE(folder.bytes(), disk->max_bytes);
  EXPECT_EQ(folder.files(".checkpoint").size(), found);
  EXPECT_EQ(ask(numbers(800), {790}).cached, 790U) << "the longest stays";
}

TEST_F(DiskTest, AJobWhoseTimeIsOverDoesNotWaitForTheDisk) {
  begin();
  ask(numbers(800), {790});
  engine.reset();
  std::promise<void> release;
  control->on_read = [released = release.get_future().share()](uint32_t) { released.wait(); };
  begin();
  Collector waits;
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(800);
  asked.max_seconds = 0.05;
  const auto job = submit(asked, waits);
  EXPECT_TRUE(waits.wait_end());
  ASSERT_TRUE(waits.failed());
  EXPECT_EQ(waits.failed()->kind, ErrorKind::timeout);
  release.set_value();
}

TEST_F(DiskTest, ForeignFilesAreLeftAlone) {
  begin();
  ask(numbers(800), {790});
  engine.reset();
  const fs::path good = folder.files(".checkpoint").front();
  const fs::path inside = good.parent_path();
  const std::string text = "not mine";
  const std::vector<fs::path> foreign{inside / "notes.txt", inside / "0123.checkpoint",
                                      inside / (std::string(32, '0') + ".rows"),
                                      inside / (Hash128{1, 2}.hex() + ".checkpoint")};
  for (const fs::path& path : foreign) overwrite(path, std::as_bytes(std::span(text)));
  overwrite(inside / "draft.tmp", std::as_bytes(std::span(text)));
  fs::create_directory(inside / "folder.rows");
  ASSERT_EQ(::mkfifo((inside / "pipe.checkpoint").c_str(), 0600), 0);
  fs::create_symlink(good, inside / "link.checkpoint");
  const fs::path copy = inside / (Hash128{5, 6}.hex() + ".checkpoint");  // a good one under another's name
  fs::copy_file(good, copy);
  const fs::path unfinished = inside / (Hash128{3, 4}.hex() + ".rows" + DiskWriter::kUnfinished);
  overwrite(unfinished, std::as_bytes(std::span(text)));
  begin();
  EXPECT_EQ(ask(numbers(800), {790}).cached, 790U);
  for (const fs::path& path : foreign) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::exists(copy));
  EXPECT_TRUE(fs::exists(inside / "draft.tmp"));
  EXPECT_FALSE(fs::exists(unfinished)) << "left by a crash";
}

TEST_F(DiskTest, TheLimitHoldsAndTheLongOnesStay) {
  disk->max_bytes = 40'000;
  begin();
  const auto first = numbers(2040);
  ask(first, {2030});
  for (int32_t i = 1; i < 40; ++i) ask(numbers(90, i), {});
  engine.reset();
  EXPECT_LE(folder.bytes(), 40'000U);
  begin();
  EXPECT_GE(ask(first, {2030}).cached, 2030U);
}

// The limit is that of the whole folder: what another model left there goes first, the oldest of it.
TEST_F(DiskTest, OtherModelsCountAndGoFirst) {
  begin();
  const auto first = numbers(2040), second = numbers(2040, 3);
  ask(first, {2030});
  ask(second, {2030});
  engine.reset();
  const uint64_t of_one = folder.bytes() / 2;
  disk->model = {8, 8};
  disk->max_bytes = 4 * of_one;
  begin();
  const auto own = numbers(2040, 5);
  ask(own, {2030});
  restart();
  EXPECT_GE(ask(own, {2030}).cached, 2030U);
  EXPECT_GT(folder.bytes(), 3 * of_one - of_one / 8) << "nothing has to go yet";
  for (int32_t i = 7; i < 8; ++i) ask(numbers(2040, i), {2030});
  engine.reset();
  EXPECT_LE(folder.bytes(), disk->max_bytes);
  disk->model = {7, 7};  // what was worth least is gone, the rest is whole
  begin();
  const bool has_first = ask(first, {2030}).from_disk, has_second = ask(second, {2030}).from_disk;
  EXPECT_TRUE(has_first || has_second);
  disk->model = {9, 9};
  disk->max_bytes = 2 * of_one;
  restart();
  for (int32_t i = 11; i < 15; ++i) ask(numbers(2040, i), {2030});
  engine.reset();
  EXPECT_LE(folder.bytes(), disk->max_bytes);
  begin();
  EXPECT_TRUE(ask(numbers(2040, 14), {2030}).from_disk) << "not its own while there is something of others";
}

TEST_F(DiskTest, AFolderThatAnotherProcessHasIsItsOwn) {
  begin();
  ask(numbers(2040), {2030});
  engine.reset();
  const fs::path theirs = folder.files(".checkpoint").front().parent_path();
  const uint64_t bytes = folder.bytes();
  Descriptor other(::open((theirs / "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  disk->model = {8, 8};
  disk->max_bytes = bytes + bytes / 2;
  begin();
  ask(numbers(2040, 3), {2030});
  restart();
  EXPECT_TRUE(ask(numbers(2040, 3), {2030}).from_disk);
  engine.reset();
  EXPECT_GE(folder.bytes(), 2 * bytes - bytes / 8);
}

TEST_F(DiskTest, OneFolderServesOneProcess) {
  begin();
  auto plan = make_plan(kTiny, {.context = 256, .sequences = 1, .chunk = 16});
  const auto second = Engine::create(std::make_unique<FakeBackend>(*plan, std::make_shared<FakeControl>()),
                                     *plan, *tokenizer, EngineOptions{.cache_bytes = 100, .disk = disk});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().text(), HasSubstr("in use by another process"));
}

TEST_F(DiskTest, AJobThatWaitsForTheDiskCanBeCancelledAndOthersGoOn) {
  begin();
  ask(numbers(800), {790});
  engine.reset();
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  control->on_read = [released](uint32_t) { released.wait(); };
  begin();
  Collector waits;
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(800);
  auto job = submit(asked, waits);
  EXPECT_EQ(ask(numbers(300, 3)).cached, 0U) << "nobody else waits for the disk";
  EXPECT_GE(engine->metrics().running, 1U);
  job->cancel();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (engine->metrics().running > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(engine->metrics().running, 0U) << "although the disk has not answered";
  release.set_value();
  EXPECT_EQ(ask(numbers(800), {790}).cached, 790U);
}

TEST_F(DiskTest, SeveralPromptsWaitForOneRead) {
  begin();
  ask(numbers(800), {790});
  engine.reset();
  std::atomic<int> reads = 0;
  control->on_read = [&](uint32_t) {
    ++reads;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  begin();
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<Collector> events(4);
  for (int32_t i = 0; i < 4; ++i) {
    GenerationRequest asked = request(1, 6);
    asked.prompt = numbers(800);
    asked.prompt.push_back(i);
    jobs.push_back(submit(std::move(asked), events[static_cast<size_t>(i)]));
  }
  for (Collector& one : events) {
    ASSERT_TRUE(one.wait_end());
    EXPECT_GE(one.all<Started>().at(0).reuse.cached, 790U);
  }
  EXPECT_EQ(reads, 1);
}

// Of a request that has left, in company: what cannot be kept of it costs its companion nothing.
TEST_F(DiskTest, WhatFailsWhileACopyIsKeptFailsNoRequest) {
  unsaved_seconds = 0.01;
  control->pass_time = std::chrono::milliseconds(2);
  std::atomic<bool> fails = false;
  control->on_bytes = [&](uint32_t) {
    if (fails) throw std::bad_alloc();
  };
  begin();
  Collector other, events;
  const auto companion = submit(request(3, 0), other);
  ASSERT_TRUE(other.wait_for<Delta>());
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(1600);
  const auto job = submit_and_leave(asked, events, 1600 - 16, [&] { fails = true; });
  ASSERT_TRUE(job);
  ASSERT_TRUE(events.wait_for<PromptProgress>(99));
  ASSERT_TRUE(other.wait_for<Delta>(other.all<Delta>().size() + 5));
  EXPECT_EQ(engine->metrics().jobs_failed, 0U);
  companion->cancel();
  engine->drain(60);
  EXPECT_EQ(engine->metrics().jobs_cancelled, 2U);
}

TEST_F(DiskTest, ASlowDiskHoldsNobodyUp) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  control->on_write = [released](uint32_t) { released.wait(); };
  begin();
  for (int32_t i = 0; i < 30; ++i) ask(numbers(200, i), {100});
  EXPECT_GT(engine->metrics().cache.disk->skipped, 0U);
  EXPECT_EQ(engine->metrics().cache.disk->written, 0U);
  release.set_value();
  engine.reset();
  EXPECT_GE(folder.files(".checkpoint").size(), 5U);
}

}  // namespace
}  // namespace lily::test
