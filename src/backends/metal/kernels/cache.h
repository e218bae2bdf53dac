// Where the keys and values of a sequence lie.
#pragma once

#include "backends/metal/kernels/common.h"

struct Cache {
  device const ushort* pages;
  device const uint* table;
  uint kv_head;
};

// The kHeadSize elements of a position's key (which 0) or value (1).
inline device const ushort* cached(thread const Cache& cache, constant AttendArgs& a, uint which,
                                   uint position) {
  return cache.pages + page_offset(a, cache.table[position / kPageTokens], which, cache.kv_head) +
         position % kPageTokens * kHeadSize;
}
