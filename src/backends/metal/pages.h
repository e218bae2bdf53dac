// Keys and values of all sequences in one buffer of pages, so that a kernel finds any page by its number. The
// buffer grows by being copied; pages keep their numbers. Of the device's thread alone, but for copy().
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backends/metal/encoder.h"
#include "model/plan.h"

namespace lily::metal {

class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // `settle` is called before the buffer is copied: it waits for every pass that may write to it.
  PagePool(Device& device, uint64_t page_bytes, std::function<void()> settle)
      : device_(device), page_bytes_(page_bytes), settle_(std::move(settle)) {}

  // A page of zeros that goes back to the pool when nobody holds it any more.
  using Page = std::shared_ptr<const uint32_t>;
  Result<Page> take();
  std::byte* bytes_of(const Page& page) const { return buffer_->contents() + *page * page_bytes_; }
  // From any thread, of a page that nobody writes to: `to` has page_bytes().
  void copy(const Page& page, std::span<std::byte> to) const;
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t taken() const { return taken_; }
  const std::unique_ptr<Buffer>& buffer() const { return buffer_; }
  // Room for so many pages from the start.
  Result<void> reserve(uint32_t pages);

 private:
  Device& device_;
  uint64_t page_bytes_;
  std::function<void()> settle_;
  mutable std::mutex moving_;  // held while the buffer is exchanged, and by copy()
  std::unique_ptr<Buffer> buffer_;
  uint32_t capacity_ = 0;
  uint64_t taken_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace lily::metal
