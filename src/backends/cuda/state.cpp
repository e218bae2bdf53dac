#include "backends/cuda/state.h"

#include <algorithm>

#include "backends/cuda/kernels/sample.h"
#include "backends/cuda/residency.h"
#include "backends/host/seam.h"
#include "base/check.h"

namespace lily::cuda {
namespace {

constexpr size_t kPagesOfSlab = 64;
constexpr size_t kCellBytes = 256;  // of the sampled token

uint32_t pages_for(uint32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }
uint64_t align(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

Result<void> write_block(ByteSink& sink, const uint8_t* block, size_t bytes, Stream queue) {
  std::vector<std::byte> copy(bytes);
  {
    const std::lock_guard lock(capture_mutex());
    LILY_TRY_VOID(copy_to_host(copy.data(), block, bytes, queue));
    LILY_TRY_VOID(finish(queue));
  }
  return sink.write(copy);
}

// Waits until the bytes have left the host: the copy of them goes.
Result<void> read_block(ByteSource& source, uint8_t* block, size_t bytes, Stream queue) {
  std::vector<std::byte> copy(bytes);
  LILY_TRY_VOID(source.read(copy));
  const std::lock_guard lock(capture_mutex());
  LILY_TRY_VOID(copy_to_device(block, copy.data(), bytes, queue));
  return finish(queue);
}

}  // namespace

uint64_t StateContext::recurrent_bytes(const Dims& dims) {
  return align((dims.layers - dims.layers / 4) * recurrent_stride(dims) * sizeof(float));
}
uint64_t StateContext::page_bytes(const Dims& dims) { return page_elements(dims) * sizeof(uint16_t); }
uint64_t StateContext::table_bytes(const Plan& plan) {
  return align(pages_for(plan.context) * sizeof(uint16_t*));
}
uint64_t StateContext::bits_offset(const Plan& plan) { return table_bytes(plan) + kCellBytes; }
uint64_t StateContext::counts_offset(const Plan& plan) {
  return bits_offset(plan) + align((plan.shape.vocab + 31) / 32 * 4);
}
uint64_t StateContext::side_bytes(const Plan& plan) {
  return counts_offset(plan) + align(uint64_t{plan.shape.vocab} * 4);
}
uint64_t StateContext::bytes_per_sequence(const Plan& plan) {
  const Dims dims = dims_of(plan.shape);
  return recurrent_bytes(dims) + side_bytes(plan) + pages_for(plan.context) * page_bytes(dims);
}

StateContext::StateContext(const Plan& plan_of, Meter& meter, Stream stream)
    : plan(plan_of),
      dims(dims_of(plan_of.shape)),
      queue(stream),
      recurrent(std::make_shared<DevicePool>(recurrent_bytes(dims), 1, meter, "memory for recurrent states")),
      pages(
          std::make_shared<DevicePool>(page_bytes(dims), kPagesOfSlab, meter, "memory for keys and values")),
      sides(std::make_shared<DevicePool>(side_bytes(plan), 1, meter, "memory for a sequence")) {}

uint64_t CudaCheckpoint::bytes() const {
  return StateContext::recurrent_bytes(context_->dims) + StateContext::side_bytes(context_->plan) +
         pages_.size() * StateContext::page_bytes(context_->dims);
}

Result<void> CudaCheckpoint::write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const {
  static_assert(kRowUnit % kPageTokens == 0);
  host::check_row_range(begin, end, length_);
  for (uint32_t page = begin / kPageTokens; page < pages_for(end); ++page) {
    LILY_TRY_VOID(
        write_block(sink, pages_[page].get(), StateContext::page_bytes(context_->dims), context_->queue));
  }
  return {};
}

Result<void> CudaCheckpoint::write_rest(ByteSink& sink) const {
  return write_block(sink, recurrent_.get(), StateContext::recurrent_bytes(context_->dims), context_->queue);
}

Result<std::unique_ptr<CudaCheckpoint>> CudaCheckpoint::read(
    const std::shared_ptr<const StateContext>& context, const StoredForm& form, ByteSource& source) {
  const StateContext& of = *context;
  auto checkpoint = std::make_unique<CudaCheckpoint>(context, form.length);
  if (form.shared > 0) {
    const auto* base = dynamic_cast<const CudaCheckpoint*>(form.base);
    LILY_TRY_VOID(host::check_base(base != nullptr && base->context_ == context ? base : nullptr, form));
    const auto pages = static_cast<ptrdiff_t>(form.shared / kPageTokens);
    checkpoint->pages_.assign(base->pages_.begin(), base->pages_.begin() + pages);
  }
  while (checkpoint->pages_.size() < pages_for(form.length)) {
    LILY_TRY(BlockRef page, take_block(of.pages));
    LILY_TRY_VOID(read_block(source, page.get(), StateContext::page_bytes(of.dims), of.queue));
    checkpoint->pages_.push_back(std::move(page));
  }
  LILY_TRY(checkpoint->recurrent_, take_block(of.recurrent));
  LILY_TRY(checkpoint->side_, take_block(of.sides));
  LILY_TRY_VOID(
      read_block(source, checkpoint->recurrent_.get(), StateContext::recurrent_bytes(of.dims), of.queue));
  const std::lock_guard lock(capture_mutex());
  LILY_TRY_VOID(clear(checkpoint->side_.get(), StateContext::side_bytes(of.plan), of.queue));
  return checkpoint;
}

CudaState::CudaState(std::shared_ptr<const StateContext> context, uint32_t max_tokens)
    : context_(std::move(context)), progress_(max_tokens) {
  pages_.reserve(pages_for(max_tokens));
  table_.resize(pages_for(max_tokens));
}

Result<std::unique_ptr<CudaState>> CudaState::create(std::shared_ptr<const StateContext> context,
                                                     uint32_t max_tokens) {
  std::unique_ptr<CudaState> state(new CudaState(std::move(context), max_tokens));
  const StateContext& of = *state->context_;
  LILY_TRY(state->recurrent_, take_block(of.recurrent));
  LILY_TRY(state->side_, take_block(of.sides));
  LILY_TRY_VOID(clear(state->recurrent_.get(), StateContext::recurrent_bytes(of.dims), of.queue));
  LILY_TRY_VOID(clear(state->side_.get(), StateContext::side_bytes(of.plan), of.queue));
  return state;
}

void CudaState::wait() const {
  if (flags_->in_flight > 0 && context_->settle) {
    context_->settle();
  }
}

int32_t* CudaState::sampled() const {
  return reinterpret_cast<int32_t*>(side_.get() + StateContext::table_bytes(context_->plan));
}
uint32_t* CudaState::prompt_bits() const {
  return reinterpret_cast<uint32_t*>(side_.get() + StateContext::bits_offset(context_->plan));
}
uint32_t* CudaState::counts() const {
  return reinterpret_cast<uint32_t*>(side_.get() + StateContext::counts_offset(context_->plan));
}
float* CudaState::kept(uint32_t row) const {
  return row + 1 < progress_.draft_rows ? reinterpret_cast<float*>(kept_[row].get()) : nullptr;
}

Segment CudaState::segment(uint32_t first_row, uint32_t rows, uint32_t position) const {
  return {.recurrent = recurrent(),
          .pages = reinterpret_cast<uint16_t* const*>(side_.get()),
          .first_row = first_row,
          .rows = rows,
          .position = position,
          .pad = 0};
}

Result<void> CudaState::upload_table(size_t first, size_t count) {
  return count == 0 ? Result<void>{}
                    : copy_to_device(side_.get() + first * sizeof(uint16_t*), table_.data() + first,
                                     count * sizeof(uint16_t*), context_->queue);
}

Result<void> CudaState::begin_rows(uint32_t position, uint32_t rows, bool provisional) {
  LILY_CHECK(rows > 0 && position + rows <= progress_.max_tokens);
  const StateContext& of = *context_;
  const uint64_t bytes = StateContext::page_bytes(of.dims);
  const uint32_t end = pages_for(position + rows);
  size_t changed_first = end;
  size_t changed_end = 0;
  for (uint32_t page = position / kPageTokens; page < end; ++page) {
    const bool there = page < pages_.size();
    if (there && pages_[page].use_count() == 1) {
      continue;
    }
    LILY_TRY(BlockRef own, take_block(of.pages));
    LILY_TRY_VOID(there ? copy_on_device(own.get(), pages_[page].get(), bytes, of.queue)
                        : clear(own.get(), bytes, of.queue));
    table_[page] = reinterpret_cast<uint16_t*>(own.get());
    if (there) {
      pages_[page] = std::move(own);
    } else {
      pages_.push_back(std::move(own));
    }
    changed_first = std::min<size_t>(changed_first, page);
    changed_end = page + size_t{1};
  }
  LILY_TRY_VOID(changed_end == 0 ? Result<void>{} : upload_table(changed_first, changed_end - changed_first));
  const size_t keep = provisional ? rows - 1 : 0;
  while (kept_.size() < keep) {
    LILY_TRY(BlockRef block, take_block(of.recurrent));
    kept_.push_back(std::move(block));
  }
  return {};
}

Result<void> CudaState::count(size_t from, int32_t change, bool sampled_too) {
  CountArgs args{};
  args.counts = counts();
  args.sampled = sampled_too ? sampled() : nullptr;
  args.change = change;
  for (size_t i = from; i < progress_.draft_tokens.size(); ++i) {
    args.tokens[args.count++] = progress_.draft_tokens[i];
  }
  if (args.count == 0 && !sampled_too) {
    return {};
  }
  return check(launch_count(args, context_->queue), "the counts of drafted tokens");
}

Result<void> CudaState::submitted(std::span<const int32_t> tokens, Keep keep, bool samples) {
  progress_.submitted(tokens, keep, samples);
  return keep == Keep::until_accept ? count(1, 1, false) : Result<void>{};
}

Result<std::unique_ptr<Checkpoint>> CudaState::save() {
  wait();
  LILY_TRY_VOID(host::check_save(flags_->failed, progress_.draft_rows));
  const StateContext& of = *context_;
  auto checkpoint = std::make_unique<CudaCheckpoint>(context_, progress_.length);
  LILY_TRY(checkpoint->recurrent_, take_block(of.recurrent));
  LILY_TRY(checkpoint->side_, take_block(of.sides));
  LILY_TRY_VOID(copy_on_device(checkpoint->recurrent_.get(), recurrent_.get(),
                               StateContext::recurrent_bytes(of.dims), of.queue));
  LILY_TRY_VOID(
      copy_on_device(checkpoint->side_.get(), side_.get(), StateContext::side_bytes(of.plan), of.queue));
  checkpoint->pages_.assign(pages_.begin(), pages_.begin() + pages_for(progress_.length));
  checkpoint->samples_ = progress_.samples;
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<void> CudaState::resume(const Checkpoint& checkpoint) {
  wait();
  const auto* from = dynamic_cast<const CudaCheckpoint*>(&checkpoint);
  LILY_TRY_VOID(host::check_resume(from != nullptr && from->context_ == context_ ? from : nullptr,
                                   progress_.max_tokens));
  const StateContext& of = *context_;
  LILY_TRY_VOID(copy_on_device(recurrent_.get(), from->recurrent_.get(),
                               StateContext::recurrent_bytes(of.dims), of.queue));
  const uint64_t table = StateContext::table_bytes(of.plan);
  LILY_TRY_VOID(copy_on_device(side_.get() + table, from->side_.get() + table,
                               StateContext::side_bytes(of.plan) - table, of.queue));
  pages_.assign(from->pages_.begin(), from->pages_.end());
  for (size_t i = 0; i < pages_.size(); ++i) {
    table_[i] = reinterpret_cast<uint16_t*>(pages_[i].get());
  }
  LILY_TRY_VOID(upload_table(0, pages_.size()));
  progress_.resumed(from->length_, from->samples_);
  flags_->failed = false;
  ++flags_->resumed;
  return {};
}

Result<void> CudaState::accept(uint32_t rows) {
  wait();
  LILY_TRY_VOID(host::check_accept(flags_->failed, progress_.draft_rows, rows));
  if (rows < progress_.draft_rows) {
    LILY_TRY_VOID(copy_on_device(recurrent_.get(), kept_[rows - 1].get(),
                                 StateContext::recurrent_bytes(context_->dims), context_->queue));
    LILY_TRY_VOID(count(rows, -1, progress_.samples));
  }
  progress_.accepted(rows);
  pages_.resize(pages_for(progress_.length));
  return {};
}

Result<void> CudaState::begin_answer(std::span<const int32_t> prompt) {
  const uint32_t vocab = context_->plan.shape.vocab;
  std::vector<uint32_t> bits((vocab + 31) / 32);
  host::mark_tokens(prompt, vocab, bits.data());
  LILY_TRY_VOID(copy_to_device(prompt_bits(), bits.data(), bits.size() * sizeof(uint32_t), context_->queue));
  return clear(counts(), uint64_t{vocab} * sizeof(uint32_t), context_->queue);
}

}  // namespace lily::cuda
