// Kernels without a fault: what the emulator computes is what the host computes, in any order of threads.
#include <gtest/gtest.h>

#include "backends/metal/sources.h"
#include "tests/metal_emulator/modules.h"

namespace lily::metal {
namespace {

struct Args {
  uint32_t n;
  float scale;
};

TEST(MetalEmulator, SumsRowsAsTheHostDoes) {
  for (const bool checked : {true, false}) {
    auto device = make_emulated_device({.seed = 3, .checked = checked, .modules = planted_modules()});
    auto library = device->library(planted_sources().front());
    ASSERT_TRUE(library) << library.error().message;
    auto pipeline = (*library)->pipeline({.kernel = "row_sums", .constants = {{0, true}, {1, 3u}}});
    ASSERT_TRUE(pipeline) << pipeline.error().message;
    auto x = *device->buffer(5 * 100 * sizeof(float), "x");
    auto y = *device->buffer(5 * sizeof(float), "y");
    for (int i = 0; i < 500; ++i) {
      x->as<float>()[i] = static_cast<float>(i % 7);
    }
    auto commands = *device->commands("sums");
    commands->set_pipeline(**pipeline);
    commands->set_buffer(0, *x);
    commands->set_buffer(1, *y);
    commands->set_bytes(2, Args{100, 0.5f});
    commands->dispatch({5}, {96});
    ASSERT_TRUE(commands->commit());
    const auto done = commands->wait();
    ASSERT_TRUE(done) << done.error().message;
    for (int row = 0; row < 5; ++row) {
      float sum = 0;
      for (int i = 0; i < 100; ++i) {
        sum += static_cast<float>((row * 100 + i) % 7);
      }
      EXPECT_EQ(y->as<float>()[row], sum * 3) << row;
    }
  }
}

}  // namespace
}  // namespace lily::metal
