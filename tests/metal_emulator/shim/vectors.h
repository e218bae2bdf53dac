// Vectors of 2, 3 and 4: the compiler's own for built-in scalars, a class for half and bfloat. Their
// constructors are macros with the name of the type, so that float4(a, b) is a call and float4 alone the
// type.
#pragma once

#include "types.h"

namespace lily_metal {

template <class T, int N>
struct Vector;
template <class V>
struct Parts {  // of a vector type
  static constexpr int size = 0;
};

#define LILY_VECTOR(T, name, N)                       \
  typedef T name __attribute__((ext_vector_type(N))); \
  namespace lily_metal {                              \
  template <>                                         \
  struct Vector<T, N> {                               \
    using type = name;                                \
  };                                                  \
  template <>                                         \
  struct Parts<name> {                                \
    using element = T;                                \
    static constexpr int size = N;                    \
  };                                                  \
  }
#define LILY_VECTORS(T, name) \
  LILY_VECTOR(T, name##2, 2)  \
  LILY_VECTOR(T, name##3, 3)  \
  LILY_VECTOR(T, name##4, 4)

}  // namespace lily_metal

LILY_VECTORS(char, char)
LILY_VECTORS(unsigned char, uchar)
LILY_VECTORS(short, short)
LILY_VECTORS(unsigned short, ushort)
LILY_VECTORS(int, int)
LILY_VECTORS(unsigned int, uint)
LILY_VECTORS(long, long)
LILY_VECTORS(unsigned long, ulong)
LILY_VECTORS(float, float)

#ifdef LILY_METAL_TYPES_ONLY
LILY_VECTORS(half, half)
LILY_VECTORS(bfloat, bfloat)
#else
template <class T, int N>
struct alignas(N == 2 ? 4 : 8) lily_storage_vector {
  T x, y;
  T z, w;
  T& operator[](int i) { return (&x)[i]; }
  T operator[](int i) const { return (&x)[i]; }
};
template <class T>
struct alignas(4) lily_storage_vector<T, 2> {
  T x, y;
  T& operator[](int i) { return (&x)[i]; }
  T operator[](int i) const { return (&x)[i]; }
};
#define LILY_STORAGE(T, N)                \
  typedef lily_storage_vector<T, N> T##N; \
  namespace lily_metal {                  \
  template <>                             \
  struct Vector<T, N> {                   \
    using type = T##N;                    \
  };                                      \
  template <>                             \
  struct Parts<T##N> {                    \
    using element = T;                    \
    static constexpr int size = N;        \
  };                                      \
  }
LILY_STORAGE(half, 2)
LILY_STORAGE(half, 3)
LILY_STORAGE(half, 4)
LILY_STORAGE(bfloat, 2)
LILY_STORAGE(bfloat, 3)
LILY_STORAGE(bfloat, 4)
#undef LILY_STORAGE
#endif
#undef LILY_VECTORS
#undef LILY_VECTOR

namespace lily_metal {

template <class V, class A>
inline typename When<Parts<A>::size == 0>::type put(V& v, int& at, A a) {
  v[at++] = static_cast<typename Parts<V>::element>(a);
}
template <class To, class From>
struct Convert {
  static To of(From from) { return static_cast<To>(from); }
};
#ifndef LILY_METAL_TYPES_ONLY
template <class To>
struct Convert<To, bfloat> {
  static To of(bfloat from) { return static_cast<To>(static_cast<float>(from)); }
};
template <>
struct Convert<bfloat, bfloat> {
  static bfloat of(bfloat from) { return from; }
};
#endif
template <class V, class A>
inline typename When<Parts<A>::size != 0>::type put(V& v, int& at, A a) {
  for (int i = 0; i < Parts<A>::size; ++i) {
    v[at++] = Convert<typename Parts<V>::element, typename Parts<A>::element>::of(a[i]);
  }
}
// All elements from one scalar, or each from its own.
template <class V, class A>
inline typename When<Parts<A>::size == 0, V>::type make(A a) {
  V v;
  const auto element = static_cast<typename Parts<V>::element>(a);
  for (int i = 0; i < Parts<V>::size; ++i) {
    v[i] = element;
  }
  return v;
}
template <class V, class A>
inline typename When<Parts<A>::size != 0, V>::type make(A a) {
  static_assert(Parts<A>::size == Parts<V>::size, "as many elements as the vector has");
  V v;
  int at = 0;
  put(v, at, a);
  return v;
}
template <class A>
constexpr int width() {
  return Parts<A>::size == 0 ? 1 : Parts<A>::size;
}
constexpr int total() { return 0; }
template <class... Rest>
constexpr int total(int first, Rest... rest) {
  return first + total(rest...);
}
template <class V, class A, class B, class... Rest>
inline V make(A a, B b, Rest... rest) {
  static_assert(total(width<A>(), width<B>(), width<Rest>()...) == Parts<V>::size,
                "as many elements as the vector has");
  V v;
  int at = 0;
  put(v, at, a);
  put(v, at, b);
  const int each[] = {0, (put(v, at, rest), 0)...};
  (void)each;
  return v;
}

}  // namespace lily_metal
