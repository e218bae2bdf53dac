// The model on one device: weights, workspace and the five blocks. Whoever calls says which rows of the
// stream a block is to compute; everything is queued on one stream and nothing waits.
#pragma once

#include "backends/cuda/device.h"
#include "backends/cuda/kernels/decode.h"
#include "backends/cuda/kernels/prefill.h"
#include "backends/cuda/kernels/sample.h"
#include "backends/cuda/places.h"
#include "backends/cuda/residency.h"
#include "backends/cuda/tuning.h"
#include "model/plan.h"

namespace lily::cuda {

// Consecutive rows of the stream that go through a block together. Segments and row_segment are device
// memory; row_segment of the batch's row r, row_segment[r], is an index into segments.
struct Batch {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  const Segment* segments = nullptr;
  const Segment* host_segments = nullptr;
  const uint32_t* row_segment = nullptr;
  uint32_t segment_count = 0;
  bool single = false;   // every segment has one row, and nothing before it in the pass writes its state
  bool prefill = false;  // through the kernels for many rows: else at most kSmallRows rows
  bool relayed = false;  // part of a step(): its blocks run in order from the embedding to the head
};

// Which norm the feed that a block leaves is for.
enum class Next : uint8_t { mixer, moe, head };

class DeviceModel {
 public:
  // Bytes that allocate() takes besides the weights.
  static uint64_t workspace_bytes(const Plan& plan);

  DeviceModel(const Plan& plan, const DeviceTraits& traits, Meter& meter, Stream queue);
  Result<void> load(const ModelWeights& weights, FunctionRef<void(double)> progress);

  // Whether batches of many rows have kernels of their own for the formats of these weights.
  bool takes_prefill() const { return takes_prefill_; }

  // ids and sampled: device memory, as in EmbedArgs. Also clears the experts used.
  Result<void> embed(const int32_t* ids, const int32_t* const* sampled, uint32_t rows);
  // Makes the feed of rows of the stream; needed where the block before did not leave it.
  Result<void> prepare(uint32_t layer, Next next, uint32_t first_row, uint32_t rows);
  Result<void> delta_net(uint32_t layer, const Batch& batch);
  Result<void> attention(uint32_t layer, const Batch& batch);
  Result<void> moe(uint32_t layer, const Batch& batch);
  // Logits of `rows` <= kSmallRows rows: of stream rows rows_of[i] (device memory), or where it is null of
  // rows 0, 1, .. whose feed is that for the head.
  Result<void> head(const uint32_t* rows_of, uint32_t rows);

  // From the ids to logits(), for rows of one sequence each (`batch.single`): the blocks above, in which up
  // to relay_rows() rows are handed from kernel to kernel while these are at work.
  Result<void> step(const int32_t* ids, const int32_t* const* sampled, Batch batch);
  uint32_t relay_rows() const { return relay_rows_; }
  // What a step of `rows` rows leaves to be unwritten before the next one: by sampling, or by unwrite().
  UnwriteArgs relayed(uint32_t rows) const;
  Result<void> unwrite(const UnwriteArgs& args);

  const Plan& plan() const { return plan_; }
  const Dims& dims() const { return dims_; }
  Stream queue() const { return queue_; }
  float* stream() const { return stream_.as<float>(); }
  float* logits() const { return logits_.as<float>(); }
  float* adjusted() const { return adjusted_.as<float>(); }
  SliceBest* slice_best() const { return best_.as<SliceBest>(); }
  uint32_t* experts_used() const { return experts_used_.as<uint32_t>(); }
  // Words of experts_used() per layer, one bit an expert.
  static constexpr uint32_t kExpertWords = 8;
  const ModelViews& views() const { return residency_.views(); }

 private:
  Result<void> allocate();
  uint32_t most_relayed() const;
  Result<void> embed_to(const StreamArgs& to, const int32_t* ids, const int32_t* const* sampled,
                        uint32_t rows);
  Places places(uint32_t layer, const Batch& batch) const;
  Places relay(uint32_t layer, uint32_t rows) const;
  Result<void> project_head(const Feed& feed, uint32_t rows, const Relay& relay);
  Result<void> project(const PackedMatrix& w, const Feed& feed, Scaling scaling, uint32_t rows, float* y,
                       const Relay& relay);
  Result<void> project_to_stream(const PackedMatrix& w, const Feed& feed, Scaling scaling, uint32_t rows,
                                 const StreamArgs& to, const Relay& relay);
  Result<void> project_rows(ProjectArgs args);
  StreamArgs stream_from(uint32_t row, const float* next_norm) const;
  Feed feed_at(uint32_t row) const;
  const float* norm_before(uint32_t layer) const;  // of a mixer, or behind the last layer of the head
  PrefillBatch prefill_batch(uint32_t layer, const Batch& batch) const;

  const Plan plan_;
  const Dims dims_;
  const DeviceTraits traits_;
  Meter& meter_;
  const Stream queue_;
  Residency residency_;
  bool takes_prefill_ = false;

  DeviceMemory stream_;                   // [max_rows][hidden] float
  DeviceMemory feed_x_, feed_squares_;    // of the stream
  DeviceMemory head_x_, head_squares_;    // of chosen rows, for the head
  DeviceMemory mixed_;                    // [kSmallRows][widest projection] float
  DeviceMemory heads_x_, heads_squares_;  // what the heads of a mixer put out
  DeviceMemory partial_, partial_ml_;     // of attention
  DeviceMemory router_;                   // [kSmallRows][ld] float
  DeviceMemory h_, expert_y_;             // of the experts
  DeviceMemory routing_;                  // the mark, and 256 bytes on the words of Published
  uint32_t routings_ = 0;                 // tags used
  DeviceMemory logits_, adjusted_, best_;
  DeviceMemory experts_used_;  // [layers][kExpertWords]
  DeviceMemory relay_;         // what the kernels of a step hand on: every layer has its own
  uint32_t relay_rows_ = 0;
  DeviceMemory rotary_;
  DeviceMemory prefill_;
};

}  // namespace lily::cuda
