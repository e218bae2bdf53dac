// What is bound to a kernel, and a short way to say it.
#pragma once

#include <initializer_list>

#include "backends/metal/device.h"

namespace lily::metal {

// A part of a buffer. Does not own it.
struct View {
  const Buffer* buffer = nullptr;
  size_t offset = 0;
  size_t bytes = 0;

  View() = default;
  View(const Buffer* of, size_t first, size_t count) : buffer(of), offset(first), bytes(count) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a buffer is a view of itself
  View(const std::unique_ptr<Buffer>& whole) : buffer(whole.get()), bytes(whole ? whole->size() : 0) {}
  // What follows the first `skip` bytes, or `count` bytes of it.
  View from(size_t skip) const { return {buffer, offset + skip, bytes - skip}; }
  View part(size_t skip, size_t count) const { return {buffer, offset + skip, count}; }
  template <class T>
  T* as() const {
    return buffer->as<T>(offset);
  }
};

// Queues one kernel: binds views from index 0 on, then the arguments.
template <class Args>
void launch(Commands& commands, const Pipeline* pipeline, std::initializer_list<View> views, const Args& args,
            Size3 groups, uint32_t threads) {
  commands.set_pipeline(*pipeline);
  uint32_t index = 0;
  for (const View& view : views) {
    commands.set_buffer(index++, *view.buffer, view.offset, view.bytes);
  }
  commands.set_bytes(index, args);
  commands.dispatch(groups, {threads, 1, 1});
}

constexpr uint32_t groups_for(uint32_t count, uint32_t each) { return (count + each - 1) / each; }

}  // namespace lily::metal
