#include "backends/metal/state.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "backends/host/seam.h"
#include "backends/metal/kernel_args.h"
#include "base/check.h"

namespace lily::metal {
namespace {

constexpr uint32_t kFirstPages = 8;

uint64_t align(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
uint64_t bits_bytes(const Shape& shape) { return align((shape.vocab + 31) / 32 * sizeof(uint32_t)); }

}  // namespace

uint32_t StateContext::pages_for(uint32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }
uint64_t StateContext::page_bytes(const Shape& shape) {
  return uint64_t{shape.attention_layers()} * 2 * shape.kv_width() * kPageTokens * sizeof(uint16_t);
}
uint64_t StateContext::bits_offset() { return 256; }
uint64_t StateContext::counts_offset(const Shape& shape) { return bits_offset() + bits_bytes(shape); }
uint64_t StateContext::side_bytes(const Shape& shape) {
  return counts_offset(shape) + align(uint64_t{shape.vocab} * sizeof(uint32_t));
}
uint64_t StateContext::bytes_per_sequence(const Plan& plan) {
  return DeviceModel::recurrent_bytes(plan.shape) + side_bytes(plan.shape) +
         pages_for(plan.context) * page_bytes(plan.shape);
}

StateContext::~StateContext() = default;

void StateContext::bury(Remains remains) {
  const std::lock_guard lock(mutex);
  buried.push_back(std::move(remains));
}

void StateContext::take_back() {
  std::vector<Remains> ended;
  const std::lock_guard lock(mutex);
  ended.swap(buried);
}

StateContext::StateContext(Device& on, const Plan& plan_of, std::function<void()> settle_with)
    : device(on),
      plan(plan_of),
      settle(std::move(settle_with)),
      pages(std::make_shared<PagePool>(on, page_bytes(plan_of.shape), settle)) {}

// ---- Buffers --------------------------------------------------------------------------------------------
Result<StateBuffer> StateBuffer::allocate(const std::shared_ptr<StateContext>& context, size_t bytes,
                                          std::string_view label) {
  StateBuffer made;
  LILY_TRY(made.buffer_, context->device.buffer(bytes, label));
  made.context_ = context;
  context->buffer_bytes += bytes;
  return made;
}
StateBuffer& StateBuffer::operator=(StateBuffer&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(buffer_, other.buffer_);
  return *this;
}
StateBuffer::~StateBuffer() {
  if (buffer_) {
    context_->buffer_bytes -= buffer_->size();
  }
}
void StateBuffer::copy_from(const StateBuffer& other) const {
  std::memcpy(buffer_->contents(), other.buffer_->contents(), buffer_->size());
}

// ---- Checkpoints ----------------------------------------------------------------------------------------
MetalCheckpoint::~MetalCheckpoint() { context_->bury(std::move(held_)); }

uint64_t MetalCheckpoint::bytes() const {
  const Shape& shape = context_->plan.shape;
  return DeviceModel::recurrent_bytes(shape) + StateContext::side_bytes(shape) +
         StateContext::pages_for(length_) * StateContext::page_bytes(shape);
}

Result<void> MetalCheckpoint::write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const {
  static_assert(kRowUnit % kPageTokens == 0);
  host::check_row_range(begin, end, length_);
  std::vector<std::byte> copy(context_->pages->page_bytes());
  for (uint32_t page = begin / kPageTokens; page < StateContext::pages_for(end); ++page) {
    PagePool::Page held;
    {
      const std::lock_guard lock(context_->mutex);
      if (page < held_.pages.size()) {
        held = held_.pages[page];
      } else {
        std::memcpy(copy.data(), stored_->data.data() + (page - held_.pages.size()) * copy.size(),
                    copy.size());
      }
    }
    if (held) {
      context_->pages->copy(held, copy);
    }
    LILY_TRY_VOID(sink.write(copy));
  }
  return {};
}

Result<void> MetalCheckpoint::write_rest(ByteSink& sink) const {
  const size_t bytes = DeviceModel::recurrent_bytes(context_->plan.shape);
  std::shared_ptr<const Stored> stored;
  {
    const std::lock_guard lock(context_->mutex);
    stored = stored_;
  }
  return sink.write(stored ? std::span(stored->data).last(bytes)
                           : std::span<const std::byte>(held_.recurrent.get()->contents(), bytes));
}

Result<std::unique_ptr<MetalCheckpoint>> MetalCheckpoint::read(const std::shared_ptr<StateContext>& context,
                                                               const StoredForm& form, ByteSource& source) {
  const Shape& shape = context->plan.shape;
  const uint64_t page_bytes = StateContext::page_bytes(shape);
  const uint32_t pages = StateContext::pages_for(form.length);
  auto checkpoint = std::make_unique<MetalCheckpoint>(context, form.length);
  // Of the pages to share, those that lie in the host's memory yet are copied.
  const uint32_t shared = form.shared / kPageTokens;
  uint32_t held = 0;
  std::shared_ptr<const Stored> stored_of_base;
  if (shared > 0) {
    const auto* base = dynamic_cast<const MetalCheckpoint*>(form.base);
    LILY_TRY_VOID(host::check_base(base != nullptr && base->context_ == context ? base : nullptr, form));
    const std::lock_guard lock(context->mutex);
    stored_of_base = base->stored_;
    const std::vector<PagePool::Page>& of = base->held_.pages;
    held = std::min(shared, static_cast<uint32_t>(of.size()));
    checkpoint->held_.pages.assign(of.begin(), of.begin() + held);
  }
  auto stored =
      std::make_shared<Stored>(*context, (pages - held) * page_bytes + DeviceModel::recurrent_bytes(shape));
  const uint64_t copied = (shared - held) * page_bytes;
  if (copied > 0) {
    std::memcpy(stored->data.data(), stored_of_base->data.data(), copied);
  }
  LILY_TRY_VOID(source.read(std::span(stored->data).subspan(copied)));
  checkpoint->stored_ = std::move(stored);
  return checkpoint;
}

Result<void> MetalCheckpoint::place() const {
  if (!stored_) {  // this thread alone changes it
    return {};
  }
  const Shape& shape = context_->plan.shape;
  PagePool& pool = *context_->pages;
  Remains placed{.recurrent = {}, .side = {}, .pages = held_.pages};
  const std::byte* from = stored_->data.data();
  while (placed.pages.size() < StateContext::pages_for(length_)) {
    LILY_TRY(PagePool::Page page, pool.take());
    std::memcpy(pool.bytes_of(page), from, pool.page_bytes());
    from += pool.page_bytes();
    placed.pages.push_back(std::move(page));
  }
  LILY_TRY(placed.recurrent, StateBuffer::allocate(context_, DeviceModel::recurrent_bytes(shape),
                                                   "recurrent states of a checkpoint"));
  LILY_TRY(placed.side,
           StateBuffer::allocate(context_, StateContext::side_bytes(shape), "token counts of a checkpoint"));
  std::memcpy(placed.recurrent.get()->contents(), from, placed.recurrent.get()->size());
  std::memset(placed.side.get()->contents(), 0, placed.side.get()->size());
  const std::lock_guard lock(context_->mutex);
  std::swap(held_, placed);
  stored_.reset();
  return {};
}

// ---- States ---------------------------------------------------------------------------------------------
MetalState::MetalState(std::shared_ptr<StateContext> context, uint32_t max_tokens)
    : context_(std::move(context)), progress_(max_tokens) {
  pages_.reserve(StateContext::pages_for(max_tokens));
}
MetalState::~MetalState() { wait(); }

Result<std::unique_ptr<MetalState>> MetalState::create(std::shared_ptr<StateContext> context,
                                                       uint32_t max_tokens) {
  std::unique_ptr<MetalState> state(new MetalState(context, max_tokens));
  const Shape& shape = context->plan.shape;
  LILY_TRY_VOID(context->pages->reserve(kFirstPages));
  LILY_TRY(state->recurrent_,
           StateBuffer::allocate(context, DeviceModel::recurrent_bytes(shape), "recurrent states"));
  LILY_TRY(state->side_, StateBuffer::allocate(context, StateContext::side_bytes(shape), "token counts"));
  for (const StateBuffer* buffer : {&state->recurrent_, &state->side_}) {
    std::memset(buffer->get()->contents(), 0, buffer->get()->size());
  }
  return state;
}

void MetalState::wait() const {
  if (flags_->in_flight > 0) {
    context_->settle();
  }
}

View MetalState::prompt_bits() const {
  return View(side_.get()).part(StateContext::bits_offset(), bits_bytes(context_->plan.shape));
}
View MetalState::counts() const {
  const Shape& shape = context_->plan.shape;
  return View(side_.get()).part(StateContext::counts_offset(shape), uint64_t{shape.vocab} * sizeof(uint32_t));
}
View MetalState::kept(uint32_t row) const {
  return row + 1 < progress_.draft_rows ? View(kept_[row].get()) : View();
}
void MetalState::page_numbers(uint32_t tokens, uint32_t* to) const {
  for (uint32_t i = 0; i < StateContext::pages_for(tokens); ++i) {
    to[i] = *pages_[i];
  }
}

// A page that is shared was reached by save() or resume(), which waited: no pass writes to it.
Result<void> MetalState::begin_rows(uint32_t position, uint32_t rows, bool provisional) {
  LILY_CHECK(rows > 0 && position + rows <= progress_.max_tokens);
  context_->take_back();  // and what checkpoints held that are gone is shared no more
  PagePool& pool = *context_->pages;
  const uint32_t end = StateContext::pages_for(position + rows);
  for (uint32_t page = position / kPageTokens; page < end; ++page) {
    const bool there = page < pages_.size();
    if (there && pages_[page].use_count() == 1) {
      continue;
    }
    LILY_TRY(PagePool::Page own, pool.take());
    if (there) {
      std::memcpy(pool.bytes_of(own), pool.bytes_of(pages_[page]), pool.page_bytes());
      pages_[page] = std::move(own);
    } else {
      pages_.push_back(std::move(own));
    }
  }
  const size_t keep = provisional ? rows - 1 : 0;
  while (kept_.size() < keep) {
    LILY_TRY(StateBuffer buffer,
             StateBuffer::allocate(context_, recurrent_.get()->size(), "recurrent states of a draft"));
    kept_.push_back(std::move(buffer));
  }
  return {};
}

Result<std::unique_ptr<Checkpoint>> MetalState::save() {
  wait();
  LILY_TRY_VOID(host::check_save(flags_->failed, progress_.draft_rows));
  auto checkpoint = std::make_unique<MetalCheckpoint>(context_, progress_.length);
  Remains& held = checkpoint->held_;
  LILY_TRY(held.recurrent,
           StateBuffer::allocate(context_, recurrent_.get()->size(), "recurrent states of a checkpoint"));
  LILY_TRY(held.side, StateBuffer::allocate(context_, side_.get()->size(), "token counts of a checkpoint"));
  held.recurrent.copy_from(recurrent_);
  held.side.copy_from(side_);
  held.pages.assign(pages_.begin(), pages_.begin() + StateContext::pages_for(progress_.length));
  checkpoint->samples_ = progress_.samples;
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<void> MetalState::resume(const Checkpoint& checkpoint) {
  wait();
  const auto* from = dynamic_cast<const MetalCheckpoint*>(&checkpoint);
  LILY_TRY_VOID(host::check_resume(from != nullptr && from->context_ == context_ ? from : nullptr,
                                   progress_.max_tokens));
  LILY_TRY_VOID(from->place());
  recurrent_.copy_from(from->held_.recurrent);
  side_.copy_from(from->held_.side);
  pages_ = from->held_.pages;
  progress_.resumed(from->length_, from->samples_);
  flags_->failed = false;
  ++flags_->resumed;
  return {};
}

Result<void> MetalState::accept(uint32_t rows) {
  wait();
  LILY_TRY_VOID(host::check_accept(flags_->failed, progress_.draft_rows, rows));
  if (rows < progress_.draft_rows) {
    recurrent_.copy_from(kept_[rows - 1]);
    auto* count_of = counts().as<uint32_t>();
    for (uint32_t i = rows; i < progress_.draft_rows; ++i) {
      --count_of[progress_.draft_tokens[i]];
    }
    if (progress_.samples) {
      --count_of[*sampled().as<int32_t>()];
    }
  }
  progress_.accepted(rows);
  pages_.resize(StateContext::pages_for(progress_.length));
  return {};
}

Result<void> MetalState::begin_answer(std::span<const int32_t> prompt) {
  wait();
  const uint32_t vocab = context_->plan.shape.vocab;
  const View bits = prompt_bits();
  const View counted = counts();
  std::memset(bits.as<std::byte>(), 0, bits.bytes);
  std::memset(counted.as<std::byte>(), 0, counted.bytes);
  host::mark_tokens(prompt, vocab, bits.as<uint32_t>());
  return {};
}

}  // namespace lily::metal
