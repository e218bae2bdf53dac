#include "backends/metal/pass.h"

#include <algorithm>
#include <cstring>

#include "backends/metal/kernel_args.h"
#include "base/check.h"
#include "model/rope.h"

namespace lily::metal {
namespace {

uint64_t mask_words(const Plan& plan) { return (plan.shape.vocab + 31) / 32; }
uint64_t slices_of(const Plan& plan) { return (plan.shape.vocab + kSampleSlice - 1) / kSampleSlice; }

struct TableSize {
  std::unique_ptr<Buffer> PassTables::*buffer;
  const char* name;
  uint64_t bytes;
};
std::vector<TableSize> table_sizes(const Plan& plan) {
  const uint64_t rows = plan.max_rows;
  return {{&PassTables::ids, "token ids", rows * 4},
          {&PassTables::wanted, "wanted rows", rows * 4},
          {&PassTables::turns, "rotations", rows * 2 * kRotaryHalf * 4},
          {&PassTables::pages, "page numbers",
           (uint64_t{plan.sequences} * StateContext::pages_for(plan.context) + rows) * 4},
          {&PassTables::bias, "logit biases",
           uint64_t{plan.sequences} * Limits::kMaxLogitBias * sizeof(BiasEntry)},
          {&PassTables::allowed, "token masks", plan.sequences * mask_words(plan) * 4},
          {&PassTables::experts, "chosen experts", plan.shape.layers * rows * kTopExperts * 4},
          {&PassTables::results, "sampled tokens", rows * 8}};
}

}  // namespace

// ---- Tables ---------------------------------------------------------------------------------------------
PassRunner::PassRunner(Device& device, DeviceModel& model, StateContext& context)
    : device_(device),
      model_(model),
      context_(context),
      plan_(model.plan()),
      program_(make_program(plan_.shape)) {}

uint64_t PassRunner::workspace_bytes(const Plan& plan) {
  uint64_t bytes =
      DeviceModel::kHeadRows * (plan.shape.vocab * sizeof(float) + slices_of(plan) * sizeof(SliceBest));
  for (const TableSize& table : table_sizes(plan)) {
    bytes += Backend::kMaxInFlight * table.bytes;
  }
  return bytes;
}

Result<void> PassRunner::prepare(PassRecord& record) {
  for (const TableSize& table : table_sizes(plan_)) {
    LILY_TRY(record.tables.*table.buffer, device_.buffer(table.bytes, table.name));
  }
  return {};
}

Result<void> PassRunner::prepare() {
  LILY_TRY(adjust_, model_.pipelines().get({"sample", "sample_adjust"}));
  LILY_TRY(choose_, model_.pipelines().get({"sample", "sample_choose", {}, 512}));
  LILY_TRY(count_, model_.pipelines().get({"sample", "count_tokens", {}, 32}));
  LILY_TRY(adjusted_, device_.buffer(size_t{DeviceModel::kHeadRows} * plan_.shape.vocab * sizeof(float),
                                     "adjusted logits"));
  LILY_TRY(best_,
           device_.buffer(DeviceModel::kHeadRows * slices_of(plan_) * sizeof(SliceBest), "best logits"));
  return {};
}

// Copies biases and mask of a slice into the tables of the pass.
Result<void> PassRunner::fill_sampling(const Sampling& sampling, const PassRecord& record) {
  const PassTables& tables = record.tables;
  SamplingViews& views = sampling_.emplace_back();
  const size_t bias_bytes = sampling.bias.size() * sizeof(BiasEntry);
  static_assert(sizeof(BiasEntry) == sizeof(LogitBias));
  if (bias_used_ + bias_bytes > tables.bias->size()) {
    return fail(ErrorKind::limit, "logit bias: expected at most {} entries a request", Limits::kMaxLogitBias);
  }
  if (bias_bytes > 0) {
    views.bias = View(tables.bias).part(bias_used_, bias_bytes);
    std::memcpy(views.bias.as<std::byte>(), sampling.bias.data(), bias_bytes);
    bias_used_ += bias_bytes;
  }
  if (!sampling.allowed.empty()) {
    const size_t bytes = sampling.allowed.size_bytes();
    if (allowed_used_ + bytes > tables.allowed->size()) {
      return fail(ErrorKind::limit, "masks of allowed tokens: expected at most {} in a pass",
                  plan_.sequences);
    }
    views.allowed = View(tables.allowed).part(allowed_used_, bytes);
    std::memcpy(views.allowed.as<std::byte>(), sampling.allowed.data(), bytes);
    allowed_used_ += bytes;
  }
  return {};
}

Result<void> PassRunner::fill_tables(const Pass& pass, PassRecord& record) {
  const PassTables& tables = record.tables;
  size_t pages_used = 0;
  bias_used_ = 0;
  allowed_used_ = 0;
  sampling_.clear();
  for (SliceRecord& slice : record.slices) {
    const Slice& of = pass.slices[slice.slice];
    LILY_TRY_VOID(slice.state->begin_rows(slice.position, slice.rows, slice.keep == Keep::until_accept));
    const size_t table_bytes = StateContext::pages_for(slice.position + slice.rows) * sizeof(uint32_t);
    if (pages_used + table_bytes > tables.pages->size()) {
      return fail(ErrorKind::limit, "a pass: expected sequences of {} x {} tokens at most in all",
                  plan_.sequences, plan_.context);
    }
    slice.table = View(tables.pages).part(pages_used, table_bytes);
    slice.state->page_numbers(slice.position + slice.rows, slice.table.as<uint32_t>());
    pages_used += table_bytes;
    for (uint32_t r = 0; r < slice.rows; ++r) {
      const uint32_t row = slice.first_row + r;
      tables.ids->as<int32_t>()[row] = slice.feeds_sampled ? 0 : of.tokens[r];
      const Rotation turn = rotation_at(slice.position + r);
      auto* to = tables.turns->as<float>() + size_t{row} * 2 * kRotaryHalf;
      std::copy(turn.cosine.begin(), turn.cosine.end(), to);
      std::copy(turn.sine.begin(), turn.sine.end(), to + kRotaryHalf);
    }
    for (uint32_t i = 0; i < slice.wanted; ++i) {
      tables.wanted->as<uint32_t>()[slice.first_wanted + i] = slice.first_row + slice.rows - slice.wanted + i;
    }
    LILY_TRY_VOID(fill_sampling(of.sampling, record));
    slice.state->submitted(of.tokens, slice.keep, slice.samples);
  }
  plan_batches(record);
  return {};
}

// Cuts the rows into batches: short slices together, a draft row by row, a long slice in pieces.
void PassRunner::plan_batches(const PassRecord& record) {
  segments_.clear();
  pieces_.clear();
  const auto add = [&](const SliceRecord& slice, uint32_t first, uint32_t rows, bool many) {
    Piece* piece = pieces_.empty() ? nullptr : &pieces_.back();
    const bool fits = piece != nullptr && !many && !piece->batch.many && slice.keep == Keep::all_rows &&
                      first == 0 && piece->batch.rows + rows <= DeviceModel::kSmallRows;
    if (!fits) {
      pieces_.push_back(
          {{.first_row = slice.first_row + first, .rows = 0, .many = many}, segments_.size(), 0});
      piece = &pieces_.back();
    }
    segments_.push_back({.recurrent = slice.state->recurrent(),
                         .table = slice.table,
                         .first_row = slice.first_row + first,
                         .rows = rows,
                         .position = slice.position + first});
    piece->batch.rows += rows;
    ++piece->segments;
  };
  const uint32_t piece_rows = std::min(DeviceModel::kPieceRows, std::max(plan_.chunk, 1U));
  for (const SliceRecord& slice : record.slices) {
    const bool draft = slice.keep == Keep::until_accept;
    // Without room for a chunk there is none for the kernels for many rows either.
    const bool many = slice.many && plan_.chunk > DeviceModel::kSmallRows;
    const uint32_t most = draft ? 1 : many ? piece_rows : DeviceModel::kSmallRows;
    for (uint32_t first = 0; first < slice.rows;) {
      // Pieces of many rows end where chunks of the delta rule do, as slices of them may
      // (DeviceInfo::reading).
      const uint32_t past = many && most >= kDeltaChunk ? (slice.position + first) % kDeltaChunk : 0;
      const uint32_t rows = std::min(most - past, slice.rows - first);
      add(slice, first, rows, many);
      first += rows;
    }
  }
  for (Piece& piece : pieces_) {
    piece.batch.segments = std::span(segments_).subspan(piece.first_segment, piece.segments);
  }
}

// ---- Encoding -------------------------------------------------------------------------------------------
void PassRunner::run(const Pass& pass, PassRecord& record) {
  record.settled = false;
  record.seconds = 0;
  record.commands.reset();
  record.logits.assign(pass.slices.size(), {});
  record.outcome = encode(pass, record);
  if (record.outcome) {
    record.outcome = commands_->commit();
    record.commands = std::move(commands_);
  }
  commands_.reset();
}

void PassRunner::finish(PassRecord& record) {
  if (record.commands) {
    const Result<void> done = record.commands->wait();
    record.seconds += record.commands->seconds();
    if (record.outcome) {
      record.outcome = done;
    }
    record.commands.reset();
  }
}

Result<void> PassRunner::flush(PassRecord& record) {
  LILY_TRY_VOID(commands_->commit());
  LILY_TRY_VOID(commands_->wait());
  record.seconds += commands_->seconds();
  LILY_TRY(commands_, device_.commands("pass"));
  return {};
}

Result<void> PassRunner::encode(const Pass& pass, PassRecord& record) {
  const host::RowCounts counts = host::order_rows<MetalState>(pass, kSmallSlice, record.slices);
  record.rows = counts.rows;
  record.wanted = counts.wanted;
  LILY_TRY_VOID(fill_tables(pass, record));
  LILY_TRY(commands_, device_.commands("pass"));
  for (const Step& step : program_) {
    if (pass.cancel != nullptr && pass.cancel->load(std::memory_order_relaxed)) {
      return fail(ErrorKind::cancelled, "the pass was cancelled before {}", to_string(step));
    }
    if (step.kind == StepKind::head) {
      LILY_TRY_VOID(run_head(pass, record));
    } else {
      run_step(step, record);
    }
    if (pass.probe != nullptr && step.kind != StepKind::head) {
      LILY_TRY_VOID(probe(step, *pass.probe, record));
    }
  }
  return {};
}

// Rows whose ids the host knows at once; a sampled token is read where its state has it.
void PassRunner::embed(const PassRecord& record) {
  for (const SliceRecord& slice : record.slices) {
    const View ids = slice.feeds_sampled ? slice.state->sampled()
                                         : View(record.tables.ids).part(slice.first_row * 4, slice.rows * 4);
    model_.embed(*commands_, ids, slice.first_row, slice.rows);
    if (slice.keep == Keep::until_accept && slice.rows > 1) {
      CountArgs args{};
      const auto* tokens = record.tables.ids->as<int32_t>() + slice.first_row;
      args.count = slice.rows - 1;
      std::copy_n(tokens + 1, args.count, args.tokens);
      launch(*commands_, count_, {slice.state->counts()}, args, {1}, 32);
    }
  }
  commands_->barrier();
}

void PassRunner::run_step(const Step& step, const PassRecord& record) {
  if (step.kind == StepKind::embed) {
    embed(record);
    return;
  }
  const PassViews views{.pages = View(context_.pages->buffer()),
                        .turns = View(record.tables.turns),
                        .experts = View(record.tables.experts)};
  for (const Piece& piece : pieces_) {
    if (step.kind == StepKind::delta_net) {
      model_.delta_net(*commands_, step.layer, piece.batch);
      keep_states(step.layer, piece.batch, record);
    } else if (step.kind == StepKind::attention) {
      model_.attention(*commands_, step.layer, piece.batch, views);
    } else {
      model_.moe(*commands_, step.layer, piece.batch, views);
    }
  }
}

// After a row of a draft: a copy of the layer's recurrent states, for accept().
void PassRunner::keep_states(uint32_t layer, const Batch& batch, const PassRecord& record) {
  if (batch.rows != 1) {
    return;
  }
  for (const SliceRecord& slice : record.slices) {
    if (slice.keep != Keep::until_accept || batch.first_row < slice.first_row ||
        batch.first_row >= slice.first_row + slice.rows) {
      continue;
    }
    const View to = slice.state->kept(batch.first_row - slice.first_row);
    if (to.buffer != nullptr) {
      const uint64_t bytes = DeviceModel::delta_bytes(plan_.shape) + DeviceModel::conv_bytes(plan_.shape);
      const uint64_t offset = (layer - layer / Shape::kAttentionInterval) * bytes;
      model_.copy(*commands_, slice.state->recurrent().part(offset, bytes), to.part(offset, bytes));
      commands_->barrier();
    }
    return;
  }
}

// ---- Head and sampling ----------------------------------------------------------------------------------
struct PassRunner::SampledRow {
  const MetalState* state;
  SamplingViews views;
  SampleArgs args;
};

std::vector<PassRunner::SampledRow> PassRunner::sampled_rows(const Pass& pass, const PassRecord& record,
                                                             uint32_t first, uint32_t count) const {
  std::vector<SampledRow> rows(count);
  for (size_t i = 0; i < record.slices.size(); ++i) {
    const SliceRecord& slice = record.slices[i];
    for (uint32_t r = 0; r < slice.wanted; ++r) {
      const uint32_t at = slice.first_wanted + r;
      if (at < first || at >= first + count) {
        continue;
      }
      SampledRow& row = rows[at - first];
      row.state = slice.state;
      row.views = sampling_[i];
      row.args.vocab = plan_.shape.vocab;
      if (!slice.samples || r + 1 != slice.wanted) {
        continue;
      }
      const Sampling& sampling = pass.slices[slice.slice].sampling;
      const uint64_t position = uint64_t{slice.position} + slice.rows;
      row.args = {.vocab = plan_.shape.vocab,
                  .mode = static_cast<uint32_t>(sampling.mode),
                  .temperature = sampling.temperature,
                  .top_k = sampling.top_k,
                  .top_p = sampling.top_p,
                  .min_p = sampling.min_p,
                  .presence = sampling.presence_penalty,
                  .frequency = sampling.frequency_penalty,
                  .repetition = sampling.repetition_penalty,
                  .seed = {static_cast<uint32_t>(sampling.seed), static_cast<uint32_t>(sampling.seed >> 32)},
                  .position = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)},
                  .bias_count = static_cast<uint32_t>(sampling.bias.size()),
                  .masked = sampling.allowed.empty() ? 0U : 1U};
    }
  }
  return rows;
}

void PassRunner::sample(const Pass& pass, const PassRecord& record, uint32_t first, uint32_t count) {
  const std::vector<SampledRow> rows = sampled_rows(pass, record, first, count);
  const size_t row_bytes = size_t{plan_.shape.vocab} * sizeof(float);
  const size_t best_bytes = slices_of(plan_) * sizeof(SliceBest);
  for (uint32_t i = 0; i < count; ++i) {
    const SampledRow& row = rows[i];
    const View unused = row.state->counts();  // bound where a row has no biases or no mask
    launch(*commands_, adjust_,
           {View(model_.logits()).part(i * row_bytes, row_bytes),
            row.views.bias.buffer != nullptr ? row.views.bias : unused,
            row.views.allowed.buffer != nullptr ? row.views.allowed : unused, row.state->prompt_bits(),
            row.state->counts(), View(adjusted_).part(i * row_bytes, row_bytes),
            View(best_).part(i * best_bytes, best_bytes)},
           row.args, {static_cast<uint32_t>(slices_of(plan_))}, 256);
  }
  commands_->barrier();
  for (uint32_t i = 0; i < count; ++i) {
    launch(*commands_, choose_,
           {View(adjusted_).part(i * row_bytes, row_bytes), View(best_).part(i * best_bytes, best_bytes),
            View(record.tables.results).part((first + i) * 8, 8), rows[i].state->sampled(),
            rows[i].state->counts()},
           rows[i].args, {1}, 512);
  }
  commands_->barrier();
}

Result<void> PassRunner::run_head(const Pass& pass, PassRecord& record) {
  const size_t vocab = plan_.shape.vocab;
  for (uint32_t first = 0; first < record.wanted; first += DeviceModel::kHeadRows) {
    const uint32_t count = std::min(DeviceModel::kHeadRows, record.wanted - first);
    model_.head(*commands_, View(record.tables.wanted).part(first * 4, count * 4), count);
    sample(pass, record, first, count);
    bool seen = false;
    for (const SliceRecord& slice : record.slices) {
      for (uint32_t i = 0; i < slice.logits_rows; ++i) {
        const uint32_t at = slice.first_wanted + i;
        if (at < first || at >= first + count) {
          continue;
        }
        if (!seen) {
          LILY_TRY_VOID(flush(record));
          seen = true;
        }
        std::vector<float>& logits = record.logits[slice.slice];
        logits.resize(size_t{slice.logits_rows} * vocab);
        std::copy_n(model_.logits()->as<float>() + (at - first) * vocab, vocab,
                    logits.begin() + static_cast<ptrdiff_t>(i * vocab));
      }
    }
  }
  return {};
}

// The stream in the order of the pass.
Result<void> PassRunner::probe(const Step& step, const Probe& see, PassRecord& record) {
  LILY_TRY_VOID(flush(record));
  const size_t hidden = plan_.shape.hidden;
  const auto* stream = model_.stream()->as<float>();
  std::vector<float> ordered;
  for (uint32_t i = 0; i < record.slices.size(); ++i) {
    const auto slice = std::find_if(record.slices.begin(), record.slices.end(),
                                    [i](const SliceRecord& s) { return s.slice == i; });
    const float* from = stream + slice->first_row * hidden;
    ordered.insert(ordered.end(), from, from + slice->rows * hidden);
  }
  see(step, ordered);
  return {};
}

}  // namespace lily::metal
