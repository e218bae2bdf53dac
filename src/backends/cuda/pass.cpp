#include "backends/cuda/pass.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/log.h"

namespace lily::cuda {
namespace {

uint64_t align(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
constexpr uint32_t kAllTokens = 0xffffffffU;

}  // namespace

// ---- Tables ---------------------------------------------------------------------------------------------
uint64_t PassTables::bytes(uint32_t rows) {
  return align(rows * sizeof(Segment)) + 3 * align(rows * 4) + align(rows * 8) +
         align(rows * sizeof(SampleRow));
}

Result<void> PassTables::allocate(uint32_t rows, Meter& meter, Stream queue) {
  rows_ = rows;
  LILY_TRY(tables_, DeviceMemory::allocate(bytes(rows), meter, "memory for the tables of a pass"));
  LILY_TRY(results_, DeviceMemory::allocate(rows * 8, meter, "memory for sampled tokens"));
  LILY_TRY_VOID(clear(results_.bytes(), results_.size(), queue));  // it comes back whole
  for (uint32_t i = 0; i < kCopies; ++i) {
    LILY_TRY(host_[i], PinnedMemory::allocate(bytes(rows), "page-locked memory for the tables of a pass"));
    LILY_TRY(host_results_[i], PinnedMemory::allocate(rows * 8, "page-locked memory for sampled tokens"));
  }
  return {};
}

PassTables::View PassTables::view(uint8_t* base) const {
  View view{};
  view.segments = reinterpret_cast<Segment*>(base);
  base += align(rows_ * sizeof(Segment));
  view.row_segment = reinterpret_cast<uint32_t*>(base);
  base += align(rows_ * 4);
  view.ids = reinterpret_cast<int32_t*>(base);
  base += align(rows_ * 4);
  view.wanted = reinterpret_cast<uint32_t*>(base);
  base += align(rows_ * 4);
  view.sampled = reinterpret_cast<const int32_t**>(base);
  base += align(rows_ * 8);
  view.samples = reinterpret_cast<SampleRow*>(base);
  return view;
}
PassTables::View PassTables::host(uint32_t copy) const { return view(host_[copy].bytes()); }
PassTables::View PassTables::device() const { return view(tables_.bytes()); }
Result<void> PassTables::upload(uint32_t copy, Stream queue) const {
  const HostCopyArgs copied = to_upload(copy);
  return copy_to_device(copied.to, copied.from, copied.bytes, queue);
}
HostCopyArgs PassTables::to_upload(uint32_t copy) const {
  return {host_[copy].bytes(), tables_.bytes(), static_cast<uint32_t>(tables_.size())};
}
Result<void> PassTables::download(uint32_t copy, Stream queue) const {
  return copy_to_host(host_results_[copy].bytes(), results_.bytes(), results_.size(), queue);
}

// ---- The runner -----------------------------------------------------------------------------------------
struct PassRunner::Graph {
  cudaGraphExec_t exec = nullptr;
  ~Graph() {
    if (exec != nullptr) {
      static_cast<void>(cudaGraphExecDestroy(exec));
    }
  }
};

PassRunner::PassRunner(DeviceModel& model, const Plan& plan, Meter& meter)
    : model_(model), plan_(plan), meter_(meter), program_(make_program(plan.shape)) {}
PassRunner::~PassRunner() = default;

uint64_t PassRunner::workspace_bytes(const Plan& plan) {
  const uint64_t words = (plan.shape.vocab + 31) / 32;
  return PassTables::bytes(kSmallRows) + PassTables::bytes(plan.max_rows) + 8 * (kSmallRows + plan.max_rows) +
         plan.sequences * (uint64_t{Limits::kMaxLogitBias} * sizeof(BiasEntry) + words * 4);
}

Result<void> PassRunner::prepare() {
  LILY_TRY_VOID(small_.allocate(kSmallRows, meter_, model_.queue()));
  LILY_TRY_VOID(large_.allocate(plan_.max_rows, meter_, model_.queue()));
  const uint64_t words = (plan_.shape.vocab + 31) / 32;
  LILY_TRY(bias_,
           DeviceMemory::allocate(plan_.sequences * uint64_t{Limits::kMaxLogitBias} * sizeof(BiasEntry),
                                  meter_, "memory for logit biases"));
  LILY_TRY(allowed_, DeviceMemory::allocate(plan_.sequences * words * 4, meter_, "memory for token masks"));
  host_bias_.reserve(plan_.sequences * size_t{Limits::kMaxLogitBias});
  for (uint32_t copy = 0; copy < PassTables::kCopies; ++copy) {
    LILY_TRY(experts_used_[copy],
             PinnedMemory::allocate(size_t{plan_.shape.layers} * DeviceModel::kExpertWords * 4,
                                    "page-locked memory"));
    for (uint32_t rows = 1; rows <= std::min(plan_.sequences, kSmallRows); ++rows) {
      LILY_TRY_VOID(capture(rows, copy));
    }
  }
  return finish(model_.queue());
}

// The whole decoding pass of `rows` sequences as one graph, tables and results included.
Result<void> PassRunner::capture(uint32_t rows, uint32_t copy) {
  const PassTables::View at = small_.device();
  const Batch batch{.first_row = 0,
                    .rows = rows,
                    .segments = at.segments,
                    .host_segments = nullptr,
                    .row_segment = at.row_segment,
                    .segment_count = rows,
                    .single = true,
                    .prefill = false,
                    .relayed = false};
  const std::lock_guard lock(capture_mutex());
  LILY_TRY_VOID(
      check(cudaStreamBeginCapture(model_.queue(), cudaStreamCaptureModeThreadLocal), "capturing a graph"));
  Result<void> queued =
      check(launch_host_copy(small_.to_upload(copy), model_.queue()), "bringing the tables of a pass");
  if (queued) {
    queued = model_.step(at.ids, at.sampled, batch);
  }
  if (queued) {
    SampleArgs args = sampling(0, rows, small_);
    args.tokens = small_.host_tokens(copy);
    args.finite = small_.host_finite(copy);
    args.unwrite = model_.relayed(rows);
    args.report = report_experts(copy);
    queued = check(launch_sample(args, model_.queue()), "sampling");
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(model_.queue(), &graph);
  LILY_TRY_VOID(queued);
  LILY_TRY_VOID(check(ended, "capturing a graph"));
  auto made = std::make_unique<Graph>();
  const cudaError_t instantiated = cudaGraphInstantiate(&made->exec, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  LILY_TRY_VOID(check(instantiated, "preparing a graph"));
  LILY_TRY_VOID(check(cudaGraphUpload(made->exec, model_.queue()), "uploading a graph"));
  graphs_[copy].push_back(std::move(made));
  return {};
}

void PassRunner::run(const Pass& pass, PassRecord& record, uint32_t copy) {
  record.copy = copy;
  record.settled = false;
  record.logits.assign(pass.slices.size(), {});
  record.outcome = queue_pass(pass, record);
}

bool PassRunner::is_decode(const Pass& pass, const PassRecord& record) const {
  return pass.probe == nullptr && record.rows <= graphs_.front().size() &&
         std::all_of(record.slices.begin(), record.slices.end(), [](const SliceRecord& s) {
           return s.rows == 1 && !s.many && s.keep == Keep::all_rows && s.logits_rows == 0;
         });
}

Result<void> PassRunner::queue_pass(const Pass& pass, PassRecord& record) {
  const host::RowCounts counts = host::order_rows<CudaState>(pass, kSmallSlice, record.slices);
  record.rows = counts.rows;
  record.wanted = counts.wanted;
  const bool decode = is_decode(pass, record);
  record.tables = record.rows <= small_.rows() ? &small_ : &large_;
  if (decode) {  // the graph computes the logits of all rows
    for (SliceRecord& slice : record.slices) {
      slice.first_wanted = slice.first_row;
      slice.wanted = 1;
    }
    record.wanted = record.rows;
  }
  record.heads = std::any_of(record.slices.begin(), record.slices.end(),
                             [](const SliceRecord& s) { return s.samples || s.logits_rows > 0; });
  LILY_TRY_VOID(fill_tables(pass, record));
  const Stream queue = model_.queue();
  record.experts_used = experts_used_[record.copy].as<uint32_t>();
  LILY_TRY_VOID(record.start.record(queue));
  if (decode) {
    LILY_TRY_VOID(
        check(cudaGraphLaunch(graphs_[record.copy][record.rows - 1]->exec, queue), "starting a graph"));
    return record.end.record(queue);
  }
  LILY_TRY_VOID(record.tables->upload(record.copy, queue));
  LILY_TRY_VOID(run_steps(pass, record));
  LILY_TRY_VOID(run_head(record, record));
  if (record.wanted > 0) {
    LILY_TRY_VOID(record.tables->download(record.copy, queue));
  }
  const HostCopyArgs report = report_experts(record.copy);
  LILY_TRY_VOID(copy_to_host(report.to, report.from, report.bytes, queue));
  return record.end.record(queue);
}

Result<void> PassRunner::fill_sample(const Sampling& sampling, const SliceRecord& slice, SampleRow& row) {
  row.mode = static_cast<uint32_t>(sampling.mode);
  row.temperature = sampling.temperature;
  row.top_k = sampling.top_k;
  row.top_p = sampling.top_p;
  row.min_p = sampling.min_p;
  row.presence = sampling.presence_penalty;
  row.frequency = sampling.frequency_penalty;
  row.repetition = sampling.repetition_penalty;
  row.seed = sampling.seed;
  row.position = uint64_t{slice.position} + slice.rows;
  row.first_bias = bias_used_;
  row.bias_count = static_cast<uint32_t>(sampling.bias.size());
  row.sampled = slice.state->sampled();
  if (!sampling.bias.empty()) {
    static_assert(sizeof(BiasEntry) == sizeof(LogitBias));
    if ((size_t{bias_used_} + sampling.bias.size()) * sizeof(BiasEntry) > bias_.size()) {
      return fail(ErrorKind::limit, "logit bias: expected at most {} entries a request",
                  Limits::kMaxLogitBias);
    }
    LILY_TRY_VOID(copy_to_device(bias_.as<BiasEntry>() + bias_used_, sampling.bias.data(),
                                 sampling.bias.size() * sizeof(BiasEntry), model_.queue()));
    bias_used_ += row.bias_count;
  }
  if (!sampling.allowed.empty()) {
    row.allowed = allowed_used_;
    LILY_TRY_VOID(copy_to_device(allowed_.as<uint32_t>() + allowed_used_, sampling.allowed.data(),
                                 sampling.allowed.size() * 4, model_.queue()));
    allowed_used_ += static_cast<uint32_t>(sampling.allowed.size());
  }
  return {};
}

Result<void> PassRunner::fill_tables(const Pass& pass, PassRecord& record) {
  const PassTables::View host = record.tables->host(record.copy);
  bias_used_ = 0;
  allowed_used_ = 0;
  for (SliceRecord& slice : record.slices) {
    const Slice& of = pass.slices[slice.slice];
    LILY_TRY_VOID(slice.state->begin_rows(slice.position, slice.rows, slice.keep == Keep::until_accept));
    for (uint32_t r = 0; r < slice.rows; ++r) {
      host.ids[slice.first_row + r] = slice.feeds_sampled ? -1 : of.tokens[r];
      host.sampled[slice.first_row + r] = slice.state->sampled();
    }
    for (uint32_t i = 0; i < slice.wanted; ++i) {
      const uint32_t at = slice.first_wanted + i;
      host.wanted[at] = slice.first_row + slice.rows - slice.wanted + i;
      SampleRow row{};
      row.allowed = kAllTokens;
      row.logits_row = at % kSmallRows;  // logits are computed for so many rows at a time
      row.prompt_bits = slice.state->prompt_bits();
      row.counts = slice.state->counts();
      if (slice.samples && i + 1 == slice.wanted) {
        LILY_TRY_VOID(fill_sample(of.sampling, slice, row));
      }
      host.samples[at] = row;
    }
    LILY_TRY_VOID(slice.state->submitted(of.tokens, slice.keep, slice.samples));
  }
  plan_batches(record);
  return {};
}

// Cuts the rows into batches and writes their segments into the host's tables; the tables have one segment a
// row at most.
void PassRunner::plan_batches(const PassRecord& record) {
  batches_.clear();
  const PassTables::View host = record.tables->host(record.copy);
  const PassTables::View device = record.tables->device();
  uint32_t used = 0;  // segments
  const auto add = [&](const SliceRecord& slice, uint32_t first, uint32_t rows, bool prefill) {
    Batch* batch = batches_.empty() ? nullptr : &batches_.back();
    const bool fits = batch != nullptr && batch->prefill == prefill && slice.keep == Keep::all_rows &&
                      first == 0 &&
                      (prefill || (batch->rows + rows <= kSmallRows && batch->single == (rows == 1)));
    if (!fits) {
      batches_.push_back({.first_row = slice.first_row + first,
                          .rows = 0,
                          .segments = device.segments + used,
                          .host_segments = host.segments + used,
                          .row_segment = device.row_segment + slice.first_row + first,
                          .segment_count = 0,
                          .single = rows == 1 && first == 0,  // no batch before it writes its state
                          .prefill = prefill});
      batch = &batches_.back();
    }
    // Rows of a prefill batch are counted from its own first row.
    const uint32_t base = prefill ? batch->first_row : 0;
    host.segments[used++] =
        slice.state->segment(slice.first_row + first - base, rows, slice.position + first);
    for (uint32_t r = 0; r < rows; ++r) {
      host.row_segment[slice.first_row + first + r] = batch->segment_count;
    }
    ++batch->segment_count;
    batch->rows += rows;
  };
  for (const SliceRecord& slice : record.slices) {
    const bool draft = slice.keep == Keep::until_accept;
    const bool prefill = slice.many && model_.takes_prefill();
    const uint32_t piece = draft ? 1 : prefill ? slice.rows : kSmallRows;
    for (uint32_t first = 0; first < slice.rows; first += piece) {
      add(slice, first, std::min(piece, slice.rows - first), prefill);
    }
  }
}

Result<void> PassRunner::run_steps(const Pass& pass, const PassRecord& record) {
  for (const Step& step : program_) {
    if (pass.cancel != nullptr && pass.cancel->load(std::memory_order_relaxed)) {
      return fail(ErrorKind::cancelled, "the pass was cancelled before {}", to_string(step));
    }
    if (step.kind == StepKind::head) {
      break;
    }
    LILY_TRY_VOID(run_step(step, record));
    if (pass.probe != nullptr) {
      LILY_TRY_VOID(probe(step, *pass.probe, record));
    }
  }
  return {};
}

Result<void> PassRunner::run_step(const Step& step, const PassRecord& record) {
  if (step.kind == StepKind::embed) {
    const PassTables::View at = record.tables->device();
    return model_.embed(at.ids, at.sampled, record.rows);
  }
  for (const Batch& batch : batches_) {
    switch (step.kind) {
      case StepKind::delta_net:
        LILY_TRY_VOID(model_.delta_net(step.layer, batch));
        LILY_TRY_VOID(keep_states(step.layer, batch, record));
        break;
      case StepKind::attention:
        LILY_TRY_VOID(model_.attention(step.layer, batch));
        break;
      case StepKind::moe:
        LILY_TRY_VOID(model_.moe(step.layer, batch));
        break;
      case StepKind::embed:
      case StepKind::head:
        break;
    }
  }
  return {};
}

// After a row of a draft: a copy of the layer's recurrent states, for accept().
Result<void> PassRunner::keep_states(uint32_t layer, const Batch& batch, const PassRecord& record) {
  if (batch.rows != 1) {
    return {};
  }
  for (const SliceRecord& slice : record.slices) {
    if (slice.keep != Keep::until_accept || batch.first_row < slice.first_row ||
        batch.first_row >= slice.first_row + slice.rows) {
      continue;
    }
    if (float* to = slice.state->kept(batch.first_row - slice.first_row)) {
      const uint64_t stride = recurrent_stride(model_.dims());
      const uint64_t offset = (layer - layer / Shape::kAttentionInterval) * stride;
      return copy_on_device(to + offset, slice.state->recurrent() + offset, stride * sizeof(float),
                            model_.queue());
    }
  }
  return {};
}

HostCopyArgs PassRunner::report_experts(uint32_t copy) const {
  return {model_.experts_used(), experts_used_[copy].bytes(),
          static_cast<uint32_t>(experts_used_[copy].size())};
}

SampleArgs PassRunner::sampling(uint32_t first, uint32_t rows, const PassTables& tables) const {
  return {.logits = model_.logits(),
          .vocab = plan_.shape.vocab,
          .rows = rows,
          .table = tables.device().samples + first,
          .bias = bias_.as<BiasEntry>(),
          .allowed = allowed_.as<uint32_t>(),
          .adjusted = model_.adjusted(),
          .best = model_.slice_best(),
          .tokens = tables.tokens() + first,
          .finite = tables.finite() + first,
          .unwrite = {},
          .report = {}};
}

Result<void> PassRunner::run_head(const PassRecord& record, PassRecord& to) {
  const PassTables& tables = *record.tables;
  const size_t vocab = plan_.shape.vocab;
  for (uint32_t first = 0; first < record.wanted; first += kSmallRows) {
    const uint32_t rows = std::min(kSmallRows, record.wanted - first);
    LILY_TRY_VOID(model_.head(tables.device().wanted + first, rows));
    LILY_TRY_VOID(check(launch_sample(sampling(first, rows, tables), model_.queue()), "sampling"));
    for (const SliceRecord& slice : record.slices) {
      for (uint32_t i = 0; i < slice.logits_rows; ++i) {
        const uint32_t at = slice.first_wanted + i;
        if (at < first || at >= first + rows) {
          continue;
        }
        std::vector<float>& logits = to.logits[slice.slice];
        logits.resize(size_t{slice.logits_rows} * vocab);
        LILY_TRY_VOID(copy_to_host(logits.data() + i * vocab, model_.logits() + (at - first) * vocab,
                                   vocab * sizeof(float), model_.queue()));
      }
    }
    if (std::any_of(record.slices.begin(), record.slices.end(),
                    [](const SliceRecord& s) { return s.logits_rows > 0; })) {
      LILY_TRY_VOID(finish(model_.queue()));
    }
  }
  return {};
}

// The stream in the order of the pass.
Result<void> PassRunner::probe(const Step& step, const Probe& see, const PassRecord& record) {
  const size_t hidden = plan_.shape.hidden;
  std::vector<float> stream(record.rows * hidden);
  LILY_TRY_VOID(copy_to_host(stream.data(), model_.stream(), stream.size() * sizeof(float), model_.queue()));
  LILY_TRY_VOID(finish(model_.queue()));
  probed_.clear();
  for (uint32_t i = 0; i < record.slices.size(); ++i) {
    const auto slice = std::find_if(record.slices.begin(), record.slices.end(),
                                    [i](const SliceRecord& s) { return s.slice == i; });
    const auto from = stream.begin() + static_cast<ptrdiff_t>(slice->first_row * hidden);
    probed_.insert(probed_.end(), from, from + static_cast<ptrdiff_t>(slice->rows * hidden));
  }
  see(step, probed_);
  return {};
}

}  // namespace lily::cuda
