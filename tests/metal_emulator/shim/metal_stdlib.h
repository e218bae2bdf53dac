// <metal_stdlib> and <metal_simdgroup_matrix> for a host compiler: the subset that docs/METAL.md lists.
// Included once, before the text of a kernel file; the macros below are the words of the language that C++
// does not have.
#pragma once

#include "atomic.h"
#include "matrix.h"

namespace lily_metal {
// Positions, in the type that the kernel asks for.
inline void take(const Triple& from, uint& to) { to = from.x; }
inline void take(const Triple& from, uint2& to) {
  to.x = from.x;
  to.y = from.y;
}
inline void take(const Triple& from, uint3& to) {
  to.x = from.x;
  to.y = from.y;
  to.z = from.z;
}
template <class T>
inline T position(Triple triple) {
  T value;
  take(triple, value);
  return value;
}
}  // namespace lily_metal

#define __METAL_VERSION__ 310
#define __METAL__ 1
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define UINT_MAX 0xffffffffu
#define INT_MAX 0x7fffffff

#ifdef LILY_METAL_TYPES_ONLY
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel static

namespace lily_metal {
template <class T>
struct Itself {  // a name of a type that no macro is in
  using type = T;
};
template <class T>
inline threadgroup T& shared(const char* name, int line) {
#ifdef LILY_METAL_TYPES_ONLY
  threadgroup T* memory = nullptr;
  (void)name, (void)line;
  return *memory;
#else
  return *static_cast<T*>(shared_memory(sizeof(T), name, line));
#endif
}
}  // namespace lily_metal

#define char2(...) lily_metal::make<char2>(__VA_ARGS__)
#define char3(...) lily_metal::make<char3>(__VA_ARGS__)
#define char4(...) lily_metal::make<char4>(__VA_ARGS__)
#define uchar2(...) lily_metal::make<uchar2>(__VA_ARGS__)
#define uchar3(...) lily_metal::make<uchar3>(__VA_ARGS__)
#define uchar4(...) lily_metal::make<uchar4>(__VA_ARGS__)
#define short2(...) lily_metal::make<short2>(__VA_ARGS__)
#define short3(...) lily_metal::make<short3>(__VA_ARGS__)
#define short4(...) lily_metal::make<short4>(__VA_ARGS__)
#define ushort2(...) lily_metal::make<ushort2>(__VA_ARGS__)
#define ushort3(...) lily_metal::make<ushort3>(__VA_ARGS__)
#define ushort4(...) lily_metal::make<ushort4>(__VA_ARGS__)
#define int2(...) lily_metal::make<int2>(__VA_ARGS__)
#define int3(...) lily_metal::make<int3>(__VA_ARGS__)
#define int4(...) lily_metal::make<int4>(__VA_ARGS__)
#define uint2(...) lily_metal::make<uint2>(__VA_ARGS__)
#define uint3(...) lily_metal::make<uint3>(__VA_ARGS__)
#define uint4(...) lily_metal::make<uint4>(__VA_ARGS__)
#define long2(...) lily_metal::make<long2>(__VA_ARGS__)
#define long3(...) lily_metal::make<long3>(__VA_ARGS__)
#define long4(...) lily_metal::make<long4>(__VA_ARGS__)
#define ulong2(...) lily_metal::make<ulong2>(__VA_ARGS__)
#define ulong3(...) lily_metal::make<ulong3>(__VA_ARGS__)
#define ulong4(...) lily_metal::make<ulong4>(__VA_ARGS__)
#define float2(...) lily_metal::make<float2>(__VA_ARGS__)
#define float3(...) lily_metal::make<float3>(__VA_ARGS__)
#define float4(...) lily_metal::make<float4>(__VA_ARGS__)
#define half2(...) lily_metal::make<half2>(__VA_ARGS__)
#define half3(...) lily_metal::make<half3>(__VA_ARGS__)
#define half4(...) lily_metal::make<half4>(__VA_ARGS__)
#define bfloat2(...) lily_metal::make<bfloat2>(__VA_ARGS__)
#define bfloat3(...) lily_metal::make<bfloat3>(__VA_ARGS__)
#define bfloat4(...) lily_metal::make<bfloat4>(__VA_ARGS__)
