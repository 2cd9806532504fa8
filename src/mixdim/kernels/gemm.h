#pragma once
#include "vectors.h"
namespace mixdim {
struct GemmScratch { std::vector<float> v; };
struct Matrix { const float* data; int64_t row_stride, column_stride; };
inline Matrix transposed(Matrix m) { return {m.data, m.column_stride, m.row_stride}; }
inline void matrix_product(int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, float* out, int64_t out_stride, bool accumulate, GemmScratch*) {
  for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < columns; ++j) {
    float s = accumulate ? out[i*out_stride+j] : 0.0f;
    for (int64_t k = 0; k < depth; ++k) s += a.data[i*a.row_stride+k*a.column_stride]*b.data[k*b.row_stride+j*b.column_stride];
    out[i*out_stride+j] = s;
  }
}
inline void matrix_product_in_parallel(int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, float* out, int64_t out_stride, bool accumulate, int64_t) {
  GemmScratch s; matrix_product(rows, columns, depth, a, b, out, out_stride, accumulate, &s);
}
}
