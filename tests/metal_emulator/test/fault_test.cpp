// Every kind of fault that the emulator looks for, planted: it is reported, in words that lead to it.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/metal_emulator/test/rig.h"

namespace lily::metal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

class Faults : public testing::TestWithParam<uint64_t> {
 protected:
  Rig rig{"faults", GetParam()};
  std::unique_ptr<Buffer> y = rig.filled(128, 0.0F, "outputs");
  std::string run(std::string_view kernel, Size3 groups = {1}) {
    return rig.run(kernel, {y.get()}, groups, {64});
  }
};

TEST_P(Faults, RaceInThreadgroupMemory) {
  EXPECT_THAT(
      run("race_in_threadgroup"),
      AllOf(HasSubstr("kernel 'race_in_threadgroup', threadgroup (0, 0, 0): "),
            MatchesRegex(
                ".*(data race: threadgroup memory 'tile', byte [0-9]+ was (written|read) by thread [0-9]+ "
                "and is (read|written) by thread [0-9]+ with no barrier between|'tile', byte [0-9]+ is read "
                "by thread [0-9]+, but was never written), in 'planted'")));
  EXPECT_THAT(run("race_of_flags"), HasSubstr("'tile', byte"));
  EXPECT_THAT(run("race_of_simd_groups"), HasSubstr("'tile', byte"));
  EXPECT_THAT(run("race_without_simd_barrier"), HasSubstr("data race: threadgroup memory 'tile', byte"));
  EXPECT_THAT(run("race_of_parts"), HasSubstr("data race: threadgroup memory 'tile', byte"));
  EXPECT_THAT(run("race_after_read"), HasSubstr("data race: threadgroup memory 'tile', byte"));
}

TEST_P(Faults, RaceInDeviceMemory) {
  EXPECT_THAT(run("race_in_device"), AllOf(HasSubstr("data race: buffer 'y' (outputs), element "),
                                           HasSubstr("with no barrier between")));
  EXPECT_THAT(run("race_of_groups", {4}), AllOf(HasSubstr("data race: buffer 'y' (outputs), element "),
                                                HasSubstr("threadgroups of one dispatch are not ordered")));
}

TEST_P(Faults, RaceOfAnAtomicAndAPlainAccess) {
  auto count = rig.filled(1, 0U, "count");
  EXPECT_THAT(rig.run("race_with_atomic", {count.get(), count.get()}, {1}, {64}),
              AllOf(HasSubstr("data race: "), HasSubstr("(count), element 0"), HasSubstr("atomically ")));
}

TEST_P(Faults, RaceOfAMatrixAndItsThreads) {
  EXPECT_THAT(rig.run("race_of_store", {y.get()}, {1}, {32}), HasSubstr("'tile', byte"));
}

TEST_P(Faults, MissingBarrierBetweenDispatches) {
  auto x = rig.filled(64, 0.0F, "between");
  const Pipeline& write = rig.pipeline("write_one");
  const Pipeline& read = rig.pipeline("read_one");
  const auto two = [&](bool write_first, bool barrier) {
    auto commands = rig.commands();
    for (const bool writes : {write_first, !write_first}) {
      commands->set_pipeline(writes ? write : read);
      commands->set_buffer(0, *x);
      commands->set_buffer(1, *y);
      commands->dispatch({1}, {64});
      if (barrier) {
        commands->barrier();
      }
    }
    return rig.finish(*commands);
  };
  EXPECT_EQ(two(true, true), "");
  EXPECT_EQ(two(false, true), "");
  EXPECT_THAT(two(true, false),
              AllOf(HasSubstr("missing barrier: buffer '"), HasSubstr("(between), element "),
                    HasSubstr("in dispatch "), HasSubstr("(kernel '")));
  EXPECT_THAT(two(false, false), HasSubstr("missing barrier: buffer '"));
}

TEST_P(Faults, DivergentBarrier) {
  EXPECT_THAT(run("divergent_barrier"),
              AllOf(HasSubstr("divergent barrier: thread "), HasSubstr("faults.metal:"),
                    HasSubstr("in threadgroup_barrier, but thread "), HasSubstr("has returned")));
  EXPECT_THAT(run("two_barriers"), HasSubstr("divergent barrier: thread "));
}

TEST_P(Faults, DivergentSimdFunction) {
  EXPECT_THAT(run("early_return"), AllOf(HasSubstr("divergent SIMD function: thread "),
                                         HasSubstr("in simd_sum, but thread 5 has returned")));
  EXPECT_THAT(run("divergent_simd"),
              AllOf(HasSubstr("divergent SIMD function: thread "), HasSubstr("in simd_max, but thread ")));
  EXPECT_THAT(run("divergent_matrix"), HasSubstr("operations on matrices"));
}

TEST_P(Faults, ReadOfMemoryNeverWritten) {
  auto x = *rig.device->buffer(64 * sizeof(float), "inputs");
  for (int i = 0; i < 64; ++i) {
    if (i != 33) {
      x->as<float>()[i] = 1;
    }
  }
  EXPECT_THAT(
      rig.run("unwritten_device", {x.get(), y.get()}, {1}, {64}),
      HasSubstr("buffer 'x' (inputs), element 33 (byte 132) is read by thread 33, but was never written"));
  x->as<float>()[33] = 0;
  EXPECT_EQ(rig.run("unwritten_device", {x.get(), y.get()}, {1}, {64}), "");
  auto sums = *rig.device->buffer(64 * sizeof(float), "sums");
  EXPECT_THAT(rig.run("unwritten_sum", {sums.get()}, {1}, {64}), HasSubstr("(sums), element "));
  EXPECT_EQ(rig.run("write_one", {sums.get()}, {1}, {64}), "");
  EXPECT_EQ(rig.run("unwritten_sum", {sums.get()}, {1}, {64}), "");
  EXPECT_THAT(run("unwritten_threadgroup"),
              HasSubstr("threadgroup memory 'tile', byte 18 is read by thread 9, but was never written"));
}

TEST_P(Faults, TooMuchThreadgroupMemory) {
  EXPECT_THAT(run("large_threadgroup"), HasSubstr("bytes of threadgroup memory with '"));
  auto commands = rig.commands();
  commands->set_pipeline(rig.pipeline("dynamic_threadgroup"));
  commands->set_buffer(0, *y);
  commands->set_threadgroup_bytes(0, 32784);
  commands->dispatch({1}, {64});
  EXPECT_THAT(rig.finish(*commands), HasSubstr("threadgroup memory 0 of 32784 bytes"));
}

TEST_P(Faults, OutOfBounds) {
  auto x = rig.filled(64, 0.0F, "inputs");
  EXPECT_THAT(rig.run("read_outside", {x.get(), y.get()}, {1}, {64}),
              HasSubstr("out of bounds: 4 bytes are read by thread 63 at element 64 (byte 256) of buffer 'x' "
                        "(inputs), which is bound "
                        "with 64 elements (256 bytes)"));
  EXPECT_EQ(rig.run("read_outside", {y.get(), x.get()}, {1}, {64}), "");
  auto bytes = rig.filled<uint8_t>(252, 0, "bytes");
  EXPECT_THAT(
      rig.run("write_outside", {bytes.get()}, {1}, {64}),
      HasSubstr(
          "out of bounds: 1 bytes are written by thread 63 at element 252 (byte 252) of buffer 'y' (bytes)"));
  auto large = rig.filled(64 * 12 - 1, 0U, "large");
  EXPECT_THAT(rig.run("wide_outside", {large.get(), large.get()}, {1}, {64}), HasSubstr("out of bounds: "));
  EXPECT_THAT(run("threadgroup_outside"), HasSubstr("out of bounds: 4 bytes are written by thread 63 at byte "
                                                    "252 of threadgroup memory 'a', which has 252"));
}

TEST_P(Faults, OutsideOfTheBoundPart) {
  auto x = rig.filled(256, 0.0F, "inputs");
  auto commands = rig.commands();
  commands->set_pipeline(rig.pipeline("read_one"));
  commands->set_buffer(0, *x, 32, 63 * sizeof(float));
  commands->set_buffer(1, *y);
  commands->dispatch({1}, {64});
  EXPECT_THAT(rig.finish(*commands),
              HasSubstr("at element 63 (byte 252) of buffer 'x' (inputs), which is bound with 63 elements"));
}

TEST_P(Faults, MisalignedAccess) {
  auto x = rig.filled(128, 0.0F, "inputs");
  EXPECT_THAT(rig.run("misaligned", {x.get(), y.get()}, {1}, {64}),
              HasSubstr("16 bytes are read at once by thread "));
}

TEST_P(Faults, WriteToMappedMemory) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* pages = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto x = *rig.device->map(pages, page, "weights");
  EXPECT_EQ(rig.run("read_one", {x.get(), y.get()}, {1}, {64}), "");
  EXPECT_THAT(rig.run("write_constant", {y.get(), x.get()}, {1}, {64}), HasSubstr("(weights), element "));
  EXPECT_FALSE(rig.device->map(static_cast<char*>(pages) + 4, page, "inside"));
  munmap(pages, page);
}

INSTANTIATE_TEST_SUITE_P(MetalEmulator, Faults, testing::Values<uint64_t>(1, 2, 3));

// What the host does wrong is reported when it commits, or where the thing is made.
TEST(MetalEmulatorHost, WrongUse) {
  Rig rig("faults");
  auto y = rig.filled(64, 0.0F, "y");
  const Pipeline& write = rig.pipeline("write_one");
  const auto after = [&](auto&& use) {
    auto commands = rig.commands();
    commands->set_pipeline(write);
    commands->set_buffer(0, *y);
    use(*commands);
    return rig.finish(*commands);
  };
  EXPECT_EQ(after([](Commands& c) { c.dispatch({1}, {64}); }), "");
  EXPECT_THAT(after([](Commands& c) { c.dispatch({1}, {48}); }),
              HasSubstr("expected a multiple of 32, at most 1024"));
  EXPECT_THAT(after([](Commands& c) { c.dispatch({1}, {2048}); }),
              HasSubstr("expected a multiple of 32, at most 1024"));
  EXPECT_THAT(after([](Commands& c) { c.dispatch({0}, {64}); }), HasSubstr("dispatch of 0"));
  EXPECT_THAT(after([&](Commands& c) { c.set_buffer(0, *y, 2); }),
              HasSubstr("offset 2 is not a multiple of 4"));
  EXPECT_THAT(after([&](Commands& c) { c.set_buffer(0, *y, 128, 132); }), HasSubstr("are not in it"));
  EXPECT_THAT(after([&](Commands& c) { c.set_buffer(31, *y); }), HasSubstr("at index 31"));
  EXPECT_THAT(after([](Commands& c) { c.set_bytes(1, "", 4097); }), HasSubstr("with 4097 bytes: expected"));
  auto commands = rig.commands();
  commands->set_pipeline(rig.pipeline("read_one"));
  commands->set_buffer(0, *y);
  commands->dispatch({1}, {32});
  EXPECT_THAT(rig.finish(*commands), HasSubstr("kernel 'read_one': buffer 1 ('y') is not set"));
  EXPECT_FALSE(rig.device->buffer(0, "empty"));
  EXPECT_FALSE(rig.device->buffer(size_t{1} << 40, "huge"));
}

TEST(MetalEmulatorHost, WrongLibraryKernelOrConstant) {
  Rig rig("sound");
  EXPECT_FALSE(rig.device->library({"other", "kernel void other() {}"}));
  EXPECT_THAT(rig.library->pipeline({.kernel = "none"}).error().message, HasSubstr("no kernel 'none'"));
  EXPECT_THAT(rig.library->pipeline({.kernel = "row_sums", .constants = {{0, true}}}).error().message,
              HasSubstr("function constant 1 ('kTimes') is not set"));
  EXPECT_THAT(rig.library->pipeline({.kernel = "row_sums", .constants = {{0, 1U}, {1, 1U}}}).error().message,
              HasSubstr("is of type b, u was given"));
  EXPECT_TRUE(rig.library->pipeline({.kernel = "multiply"}));  // uses neither
}

// A command buffer runs at any time between commit and wait, in order; what it uses is kept.
TEST(MetalEmulatorHost, CommandBuffersRunInOrder) {
  Rig rig("faults", 5);
  auto y = rig.filled(64, 0.0F, "y");
  const Pipeline& add = rig.pipeline("unwritten_sum");
  std::vector<std::unique_ptr<Commands>> queued;
  for (int i = 0; i < 6; ++i) {
    queued.push_back(rig.commands());
    queued.back()->set_pipeline(add);
    queued.back()->set_buffer(0, *y);
    queued.back()->dispatch({1}, {64});
    ASSERT_TRUE(queued.back()->commit());
  }
  ASSERT_TRUE(queued.back()->wait());
  EXPECT_TRUE(queued.front()->completed());
  EXPECT_EQ(y->as<float>()[63], 6);
  EXPECT_EQ(rig.device->allocated_bytes(), 256U);
}

}  // namespace
}  // namespace lily::metal
