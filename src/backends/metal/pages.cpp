#include "backends/metal/pages.h"

#include <algorithm>
#include <cstring>

namespace lily::metal {

Result<void> PagePool::reserve(uint32_t pages) {
  if (pages <= capacity_) {
    return {};
  }
  settle_();
  LILY_TRY(std::unique_ptr<Buffer> larger, device_.buffer(pages * page_bytes_, "keys and values"));
  if (buffer_) {
    std::memcpy(larger->contents(), buffer_->contents(), capacity_ * page_bytes_);
  }
  for (uint32_t page = pages; page > capacity_; --page) {  // low numbers are taken first
    free_.push_back(page - 1);
  }
  {
    const std::lock_guard lock(moving_);
    buffer_.swap(larger);
  }
  capacity_ = pages;
  return {};
}

void PagePool::copy(const Page& page, std::span<std::byte> to) const {
  const std::lock_guard lock(moving_);
  std::memcpy(to.data(), bytes_of(page), page_bytes_);
}

Result<PagePool::Page> PagePool::take() {
  if (free_.empty()) {
    LILY_TRY_VOID(reserve(capacity_ + std::max(8U, capacity_ / 2)));
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  ++taken_;
  Page page(new uint32_t(number), [pool = weak_from_this()](const uint32_t* of) {
    if (const std::shared_ptr<PagePool> home = pool.lock()) {
      home->free_.push_back(*of);
      --home->taken_;
    }
    delete of;
  });
  std::memset(bytes_of(page), 0, page_bytes_);
  return page;
}

}  // namespace lily::metal
