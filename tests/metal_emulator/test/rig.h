// A device with the planted kernels, and one dispatch of one of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

#include "backends/metal/sources.h"
#include "tests/metal_emulator/modules.h"

namespace lily::metal {

inline LibrarySource planted(std::string_view name) {
  for (const LibrarySource& source : planted_sources()) {
    if (source.name == name) {
      return source;
    }
  }
  ADD_FAILURE() << "no planted file " << name;
  return {};
}

class Rig {
 public:
  explicit Rig(std::string_view file, uint64_t seed = 1, bool checked = true)
      : device(make_emulated_device({.seed = seed, .checked = checked, .modules = planted_modules()})) {
    auto made = device->library(planted(file));
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    library = *std::move(made);
  }

  const Pipeline& pipeline(std::string_view kernel, std::vector<FunctionConstant> constants = {}) {
    auto made = library->pipeline({.kernel = std::string(kernel), .constants = std::move(constants)});
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    pipelines.push_back(*std::move(made));
    return *pipelines.back();
  }

  // A buffer that the host has filled with `value`.
  template <class T>
  std::unique_ptr<Buffer> filled(size_t count, T value, std::string_view label = "filled") {
    auto made = *device->buffer(count * sizeof(T), label);
    for (size_t i = 0; i < count; ++i) {
      made->template as<T>()[i] = value;
    }
    return made;
  }

  std::unique_ptr<Commands> commands() { return *device->commands("planted"); }

  // The message of the fault, or nothing.
  static std::string finish(Commands& commands) {
    if (auto done = commands.commit(); !done) {
      return done.error().message;
    }
    const auto done = commands.wait();
    return done ? "" : done.error().message;
  }

  std::string run(std::string_view kernel, std::initializer_list<const Buffer*> buffers, Size3 groups,
                  Size3 threads) {
    auto queued = commands();
    queued->set_pipeline(pipeline(kernel));
    uint32_t index = 0;
    for (const Buffer* buffer : buffers) {
      queued->set_buffer(index++, *buffer);
    }
    queued->dispatch(groups, threads);
    return finish(*queued);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Library> library;
  std::vector<std::unique_ptr<Pipeline>> pipelines;
};

}  // namespace lily::metal
