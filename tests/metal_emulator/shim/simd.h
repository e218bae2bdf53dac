// Barriers and the functions of a SIMD group. Every one is a meeting of its 32 threads.
#pragma once

#include "math.h"

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

inline void threadgroup_barrier(mem_flags flags, LILY_HERE) {
  lily_metal::group_barrier(uint(flags), file, line);
}
inline void simdgroup_barrier(mem_flags flags, LILY_HERE) {
  lily_metal::simd_barrier(uint(flags), file, line);
}

}  // namespace metal

namespace lily_metal {

// `all` computes 32 results of 32 values.
template <class T, class All>
LILY_QUIET inline T together(T value, All all, const char* what, const char* file, int line) {
  static_assert(sizeof(T) <= 16, "a value that a SIMD function takes");
  const Meeting m = meeting();
  static_cast<T*>(m.in)[m.lane] = value;
  if (arrive(what, file, line)) {
    all(static_cast<const T*>(m.in), static_cast<T*>(m.out));
    release();
  }
  return static_cast<const T*>(m.out)[m.lane];
}

template <class T, class Combine>
LILY_QUIET inline T reduce(T value, Combine combine, const char* what, const char* file, int line) {
  return together(
      value,
      [combine](const T* in, T* out) LILY_QUIET {
        T sum[32];
        for (int i = 0; i < 32; ++i) {
          sum[i] = in[i];
        }
        for (int half_width = 16; half_width > 0; half_width /= 2) {
          for (int i = 0; i < half_width; ++i) {
            sum[i] = combine(sum[i], sum[i + half_width]);
          }
        }
        for (int i = 0; i < 32; ++i) {
          out[i] = sum[0];
        }
      },
      what, file, line);
}

// A lane that is not there has no value: bits that are not a number in any floating-point type.
template <class T>
LILY_QUIET inline T nothing() {
  T value;
  __builtin_memset(&value, 0xff, sizeof(T));
  return value;
}

}  // namespace lily_metal

namespace metal {

#define LILY_REDUCTION(name, expression)                                                \
  template <class T>                                                                    \
  LILY_QUIET inline T name(T value, LILY_HERE) {                                        \
    return lily_metal::reduce(                                                          \
        value, [](T a, T b) LILY_QUIET -> T { return expression; }, #name, file, line); \
  }
LILY_REDUCTION(simd_sum, a + b)
LILY_REDUCTION(simd_product, a* b)
LILY_REDUCTION(simd_max, max(a, b))
LILY_REDUCTION(simd_min, min(a, b))
LILY_REDUCTION(simd_and, a& b)
LILY_REDUCTION(simd_or, a | b)
LILY_REDUCTION(simd_xor, a ^ b)
#undef LILY_REDUCTION
LILY_QUIET inline bool simd_all(bool value, LILY_HERE) {
  return lily_metal::reduce(
      value, [](bool a, bool b) LILY_QUIET -> bool { return a && b; }, "simd_all", file, line);
}
LILY_QUIET inline bool simd_any(bool value, LILY_HERE) {
  return lily_metal::reduce(
      value, [](bool a, bool b) LILY_QUIET -> bool { return a || b; }, "simd_any", file, line);
}

// What each lane gets from lane `from(lane)`; -1 = from none.
#define LILY_EXCHANGE(name, parameter, from)                                                            \
  template <class T>                                                                                    \
  LILY_QUIET inline T name(T value, ushort parameter, LILY_HERE) {                                      \
    const T mine = value;                                                                               \
    const lily_metal::Meeting m = lily_metal::meeting();                                                \
    const int lane = int(m.lane);                                                                       \
    const int source = (from);                                                                          \
    (void)lane;                                                                                         \
    static_cast<T*>(m.in)[m.lane] = mine;                                                               \
    if (lily_metal::arrive(#name, file, line)) {                                                        \
      for (int i = 0; i < 32; ++i) {                                                                    \
        static_cast<T*>(m.out)[i] = static_cast<const T*>(m.in)[i];                                     \
      }                                                                                                 \
      lily_metal::release();                                                                            \
    }                                                                                                   \
    return source < 0 || source > 31 ? lily_metal::nothing<T>() : static_cast<const T*>(m.out)[source]; \
  }
LILY_EXCHANGE(simd_shuffle, from_lane, int(from_lane))
LILY_EXCHANGE(simd_shuffle_xor, mask, lane ^ int(mask))
LILY_EXCHANGE(simd_shuffle_down, delta, lane + int(delta))
LILY_EXCHANGE(simd_shuffle_up, delta, lane - int(delta))
LILY_EXCHANGE(simd_broadcast, from_lane, int(from_lane))
#undef LILY_EXCHANGE
template <class T>
LILY_QUIET inline T simd_broadcast_first(T value, LILY_HERE) {
  return simd_broadcast(value, 0, file, line);
}

template <class T>
LILY_QUIET inline T simd_prefix_inclusive_sum(T value, LILY_HERE) {
  return lily_metal::together(
      value,
      [](const T* in, T* out) LILY_QUIET {
        out[0] = in[0];
        for (int i = 1; i < 32; ++i) {
          out[i] = out[i - 1] + in[i];
        }
      },
      "simd_prefix_inclusive_sum", file, line);
}
template <class T>
LILY_QUIET inline T simd_prefix_exclusive_sum(T value, LILY_HERE) {
  return lily_metal::together(
      value,
      [](const T* in, T* out) LILY_QUIET {
        out[0] = T(0);
        for (int i = 1; i < 32; ++i) {
          out[i] = out[i - 1] + in[i - 1];
        }
      },
      "simd_prefix_exclusive_sum", file, line);
}

}  // namespace metal
