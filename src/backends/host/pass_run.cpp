// The execution of a pass: the program's steps over the rows of all slices, then logits and sampling.
#include <algorithm>
#include <bit>
#include <chrono>
#include <new>

#include "backends/host/pass.h"
#include "base/check.h"
#include "model/bytes.h"

namespace lily::host {
namespace {

// Without a branch: rows are as long as the vocabulary.
bool all_finite(std::span<const float> row) {
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t bad = 0;
  for (const float x : row) {
    bad |= static_cast<int32_t>((std::bit_cast<int32_t>(x) & kInfinity) == kInfinity);
  }
  return bad == 0;
}

}  // namespace

PassRunner::PassRunner(Blocks& blocks, const ModelWeights& weights, const Plan& plan)
    : blocks_(blocks), weights_(weights), plan_(plan), program_(make_program(plan.shape)) {
  ids_.reserve(plan.max_rows);
  segments_.reserve(plan.max_rows);
  wanted_.reserve(plan.max_rows);
  head_rows_.reserve(kHeadRows);
}

uint64_t PassRunner::workspace_bytes(const Plan& plan) {
  return sizeof(float) * (uint64_t{plan.max_rows} * plan.shape.hidden +
                          uint64_t{std::min(kHeadRows, plan.max_rows)} * plan.shape.vocab);
}

Result<void> PassRunner::allocate() {
  LILY_TRY(stream_, AlignedArray<float>::allocate(size_t{plan_.max_rows} * plan_.shape.hidden));
  LILY_TRY(logits_,
           AlignedArray<float>::allocate(size_t{std::min(kHeadRows, plan_.max_rows)} * plan_.shape.vocab));
  return {};
}

void PassRunner::run(PassRecord& record) {
  try {
    record.result = compute(record);
  } catch (const std::bad_alloc&) {
    record.result = fail(ErrorKind::out_of_memory, "no memory left in the middle of a pass");
  } catch (const std::exception& exception) {
    record.result = fail(ErrorKind::internal, "a pass failed: {}", exception.what());
  }
  if (!record.result) {
    for (const SliceRecord& slice : record.slices) {
      slice.gate->failed = true;
    }
  }
}

Result<Output> PassRunner::compute(PassRecord& record) {
  const auto start = std::chrono::steady_clock::now();
  Output output;
  LILY_TRY_VOID(begin(record, output));
  if (!segments_.empty()) {
    const std::span<const float> stream(stream_.data(), ids_.size() * plan_.shape.hidden);
    for (const Step& current : program_) {
      if (record.cancel != nullptr && record.cancel->load(std::memory_order_relaxed)) {
        return fail(ErrorKind::cancelled, "the pass was cancelled before {}", to_string(current));
      }
      if (current.kind == StepKind::head) {
        LILY_TRY(const uint64_t bytes, head(record, output));
        output.bytes_read += bytes;
      } else {
        output.bytes_read += step(current);
      }
      if (record.probe != nullptr) {
        (*record.probe)(current, stream);
      }
    }
    output.bytes_read += state_bytes_read();
  }
  output.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return output;
}

// Lays out the rows of the slices that can be computed, and what is wanted of them.
Result<void> PassRunner::begin(PassRecord& record, Output& output) {
  output.slices.resize(record.slices.size());
  ids_.clear();
  segments_.clear();
  wanted_.clear();
  for (uint32_t i = 0; i < record.slices.size(); ++i) {
    const SliceRecord& slice = record.slices[i];
    if (slice.gate->failed) {
      output.slices[i].finite = false;
      continue;
    }
    AnswerState& answer = slice.state->answer();
    const bool provisional = slice.keep == Keep::until_accept;
    LILY_TRY_VOID(slice.state->begin_rows(slice.position, slice.rows, provisional));
    if (slice.feeds_sampled) {
      LILY_CHECK(answer.sampled >= 0);
      record.ids[slice.first_id] = answer.sampled;
    }
    answer.sampled = -1;
    const std::span<const int32_t> ids(record.ids.data() + slice.first_id, slice.rows);
    if (provisional) {
      std::for_each(ids.begin() + 1, ids.end(), [&](int32_t id) { answer.counts.add(id); });
    }
    const auto first_row = static_cast<uint32_t>(ids_.size());
    segments_.push_back({slice.state, first_row, slice.rows, slice.position, provisional, slice.read_as});
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    const bool samples = slice.sampling.mode != Sampling::Mode::none;
    const uint32_t count = std::max<uint32_t>(slice.logits_rows, samples ? 1 : 0);
    for (uint32_t index = 0; index < count; ++index) {
      wanted_.push_back(
          {first_row + slice.rows - count + index, i, index, /*sampled=*/samples && index + 1 == count});
    }
    output.slices[i].logits.reserve(size_t{slice.logits_rows} * plan_.shape.vocab);
  }
  return {};
}

// Computes one step; returns the bytes of weights it had to read.
uint64_t PassRunner::step(const Step& step) {
  const auto rows = static_cast<uint32_t>(ids_.size());
  const LayerWeights& layer = weights_.layers[step.layer];
  switch (step.kind) {
    case StepKind::embed:
      blocks_.embed(ids_, stream_.data());
      return rows * (weights_.embed.table.total_bytes() / plan_.shape.vocab);
    case StepKind::delta_net:
      blocks_.delta_net(step.layer, segments_, stream_.data());
      return mixer_bytes(layer);
    case StepKind::attention:
      blocks_.attention(step.layer, segments_, stream_.data());
      return mixer_bytes(layer);
    case StepKind::moe:
      return moe_bytes(layer.moe, blocks_.moe(step.layer, segments_, stream_.data()));
    case StepKind::head:
      break;
  }
  LILY_CHECK(!"a step that is computed elsewhere");
  return 0;
}

// Logits and samples, a batch of rows at a time. Returns the bytes of weights that these need.
Result<uint64_t> PassRunner::head(const PassRecord& record, Output& output) {
  const size_t vocab = plan_.shape.vocab;
  const size_t most = logits_.size() / vocab;
  for (size_t first = 0; first < wanted_.size(); first += most) {
    if (record.cancel != nullptr && record.cancel->load(std::memory_order_relaxed)) {
      return fail(ErrorKind::cancelled, "the pass was cancelled at head");
    }
    const size_t count = std::min(most, wanted_.size() - first);
    head_rows_.clear();
    for (size_t i = first; i < first + count; ++i) {
      head_rows_.push_back(wanted_[i].row);
    }
    blocks_.head(head_rows_, stream_.data(), logits_.data());
    for (size_t i = 0; i < count; ++i) {
      take_logits(record, wanted_[first + i], {logits_.data() + i * vocab, vocab}, output);
    }
  }
  return wanted_.empty() ? 0 : weights_.head.norm.total_bytes() + weights_.head.lm_head.total_bytes();
}

void PassRunner::take_logits(const PassRecord& record, const WantedRow& wanted, std::span<const float> logits,
                             Output& output) {
  const SliceRecord& slice = record.slices[wanted.slice];
  SliceOutput& out = output.slices[wanted.slice];
  out.finite = out.finite && all_finite(logits);
  if (wanted.index < slice.logits_rows) {
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
  }
  if (wanted.sampled && out.finite) {
    AnswerState& answer = slice.state->answer();
    const Sampled sampled =
        sample(logits, slice.sampling, answer.counts, uint64_t{slice.position} + slice.rows, scratch_);
    out.token = sampled.token;
    out.finite = sampled.finite;
    if (sampled.finite) {
      answer.sampled = sampled.token;
      answer.counts.add(sampled.token);
    }
  }
  if (!out.finite) {
    slice.gate->failed = true;
  }
}

uint64_t PassRunner::state_bytes_read() const {
  const uint64_t kv_row =
      uint64_t{plan_.shape.attention_layers()} * 2 * plan_.shape.kv_width() * size_of(blocks_.kv_type());
  uint64_t bytes = 0;
  for (const Segment& segment : segments_) {
    bytes += plan_.recurrent_bytes() + (segment.position + segment.rows) * kv_row;
  }
  return bytes;
}

}  // namespace lily::host
