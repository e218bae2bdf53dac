// Relaxed atomics of 4 bytes in device and threadgroup memory.
#pragma once

#include "math.h"

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  T lily_value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;

#ifdef LILY_METAL_TYPES_ONLY
#define LILY_ATOMIC(object, reads, writes) (void)object
#else
#define LILY_ATOMIC(object, reads, writes) lily_metal::atomic_access(&object->lily_value, 4, reads, writes)
#endif

template <class P>
LILY_QUIET inline auto atomic_load_explicit(P object, memory_order) {
  LILY_ATOMIC(object, true, false);
  auto value = object->lily_value;
  return value;
}
template <class P, class T>
LILY_QUIET inline void atomic_store_explicit(P object, T value, memory_order) {
  LILY_ATOMIC(object, false, true);
  object->lily_value = value;
}
#define LILY_FETCH(name, expression)                         \
  template <class P, class T>                                \
  LILY_QUIET inline auto name(P object, T b, memory_order) { \
    LILY_ATOMIC(object, true, true);                         \
    auto a = object->lily_value;                             \
    object->lily_value = expression;                         \
    return a;                                                \
  }
LILY_FETCH(atomic_exchange_explicit, b)
LILY_FETCH(atomic_fetch_add_explicit, a + b)
LILY_FETCH(atomic_fetch_sub_explicit, a - b)
LILY_FETCH(atomic_fetch_max_explicit, a > b ? a : b)
LILY_FETCH(atomic_fetch_min_explicit, a < b ? a : b)
LILY_FETCH(atomic_fetch_or_explicit, a | b)
LILY_FETCH(atomic_fetch_and_explicit, a& b)
#undef LILY_FETCH
#undef LILY_ATOMIC

}  // namespace metal
