// Which rows make up a chunk of a sequence (prefill_launch.h, DeltaArgs).
#pragma once

#include "backends/cuda/kernels/prefill_launch.h"

namespace lily::cuda::prefill {

struct ChunkRows {
  uint32_t segment;
  uint32_t in_segment;  // first row, counted from the segment's
  uint32_t row;         // first row of the pass
  uint32_t count;       // 1..kChunk
};

// Chunk `index` of one segment.
__device__ __forceinline__ ChunkRows chunk_of(const Segment& segment, uint32_t which, uint32_t index) {
  const uint32_t skipped = segment.position % kChunk;  // of the first chunk: earlier passes had them
  const uint32_t begin = index == 0 ? 0 : index * kChunk - skipped;
  const uint32_t end = min((index + 1) * kChunk - skipped, segment.rows);
  return {which, begin, segment.first_row + begin, end - begin};
}

// Chunk `index` of the pass.
__device__ __forceinline__ ChunkRows find_chunk(const DeltaArgs& args, uint32_t index) {
  uint32_t which = 0;
  while (index >= chunks_of(args.segments[which])) {
    index -= chunks_of(args.segments[which]);
    ++which;
  }
  return chunk_of(args.segments[which], which, index);
}

__device__ __forceinline__ float* layer_state(const DeltaArgs& args, const Segment& segment) {
  return segment.recurrent + args.layer * recurrent_stride(args.dims);
}

}  // namespace lily::cuda::prefill
