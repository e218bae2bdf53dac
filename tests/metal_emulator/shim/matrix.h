// simdgroup_matrix: held whole by thread 0 of the SIMD group, which executes its operations; the other
// threads pass by and are held to doing the same ones. Elements lie row by row.
#pragma once

#include "simd.h"

namespace lily_metal {
typedef float Eight __attribute__((ext_vector_type(8)));  // a row
template <class P>
struct Pointee {};
template <class T>
struct Pointee<T*> {
  using type = T;
};
template <class T>
struct Pointee<const T*> {
  using type = T;
};
}  // namespace lily_metal

namespace metal {

template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix is 8 by 8");
  T lily_elements[64];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Columns, int Rows = Columns>
inline simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> matrix;
  for (T& element : matrix.lily_elements) {
    element = value;
  }
  return matrix;
}

// Element (row, column) is at pointer[(origin.y + row) * elements_per_row + origin.x + column]; transposed,
// rows and columns change places in the matrix.
template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, P pointer, ulong elements_per_row = 8,
                           ulong2 origin = 0, bool transpose = false, LILY_HERE) {
#ifdef LILY_METAL_TYPES_ONLY
  matrix.lily_elements[0] = pointer[origin.y * elements_per_row + origin.x + (transpose ? 1 : 0)];
  (void)file, (void)line;
#else
  static_assert(lily_metal::Same<T, typename lily_metal::Pointee<P>::type>::value,
                "a matrix of the memory's type");
  if (!lily_metal::matrix_turn("simdgroup_load", pointer, file, line)) {
    return;
  }
  lily_metal::collective_begin();
  for (ulong row = 0; row < 8; ++row) {
    for (ulong column = 0; column < 8; ++column) {
      matrix.lily_elements[transpose ? column * 8 + row : row * 8 + column] =
          pointer[(origin.y + row) * elements_per_row + origin.x + column];
    }
  }
  lily_metal::collective_end();
#endif
}
template <class T, class P>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> matrix, P pointer, ulong elements_per_row = 8,
                            ulong2 origin = 0, bool transpose = false, LILY_HERE) {
#ifdef LILY_METAL_TYPES_ONLY
  pointer[origin.y * elements_per_row + origin.x + (transpose ? 1 : 0)] = matrix.lily_elements[0];
  (void)file, (void)line;
#else
  static_assert(lily_metal::Same<T, typename lily_metal::Pointee<P>::type>::value,
                "a matrix of the memory's type");
  if (!lily_metal::matrix_turn("simdgroup_store", pointer, file, line)) {
    return;
  }
  lily_metal::collective_begin();
  for (ulong row = 0; row < 8; ++row) {
    for (ulong column = 0; column < 8; ++column) {
      pointer[(origin.y + row) * elements_per_row + origin.x + column] =
          matrix.lily_elements[transpose ? column * 8 + row : row * 8 + column];
    }
  }
  lily_metal::collective_end();
#endif
}

// d = a * b + c, summed in float.
template <class D, class A, class B, class C>
LILY_QUIET inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                                     const simdgroup_matrix<A, 8, 8>& a,
                                                     const simdgroup_matrix<B, 8, 8>& b,
                                                     const simdgroup_matrix<C, 8, 8>& c, LILY_HERE) {
  if (!lily_metal::matrix_turn("simdgroup_multiply_accumulate", nullptr, file, line)) {
    return;
  }
  lily_metal::Eight right[8];
  for (int k = 0; k < 8; ++k) {
    for (int column = 0; column < 8; ++column) {
      right[k][column] = static_cast<float>(b.lily_elements[k * 8 + column]);
    }
  }
  for (int row = 0; row < 8;
       ++row) {  // d may be one of the others: of a and c only this row is needed from here on
    lily_metal::Eight sum;
    for (int column = 0; column < 8; ++column) {
      sum[column] = static_cast<float>(c.lily_elements[row * 8 + column]);
    }
    for (int k = 0; k < 8; ++k) {
      sum += static_cast<float>(a.lily_elements[row * 8 + k]) * right[k];
    }
    for (int column = 0; column < 8; ++column) {
      d.lily_elements[row * 8 + column] = static_cast<D>(sum[column]);
    }
  }
}
template <class D, class A, class B>
LILY_QUIET inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b, LILY_HERE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), file, line);
}

}  // namespace metal
