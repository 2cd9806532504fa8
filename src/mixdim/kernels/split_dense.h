// The dense vectors' part of the split form: their products with the lifted rows of every feature, and the gradients.

#pragma once

#include "split.h"

namespace mixdim {

// to[n] = the sum of the lanes of v[n].
inline Vector add_lanes_of_8(const Vector* v) {
  typedef int32_t Lanes __attribute__((vector_size(32)));
  const auto pair = [](Vector x, Vector y, Lanes first, Lanes second) {
    return __builtin_shuffle(x, y, first) + __builtin_shuffle(x, y, second);
  };
  Vector two[4], four[2];
  for (int n = 0; n < 4; ++n) {
    two[n] = pair(v[2 * n], v[2 * n + 1], Lanes{0, 8, 2, 10, 4, 12, 6, 14}, Lanes{1, 9, 3, 11, 5, 13, 7, 15});
  }
  for (int n = 0; n < 2; ++n) {
    four[n] = pair(two[2 * n], two[2 * n + 1], Lanes{0, 1, 8, 9, 4, 5, 12, 13}, Lanes{2, 3, 10, 11, 6, 7, 14, 15});
  }
  return pair(four[0], four[1], Lanes{0, 1, 2, 3, 8, 9, 10, 11}, Lanes{4, 5, 6, 7, 12, 13, 14, 15});
}

// The lifted rows that a sample has, of some features.
struct LiftedRows {
  std::vector<const float*> rows;
  std::vector<int64_t> column;  // where the product with the dense vector goes in the output

  void clear() {
    rows.clear();
    column.clear();
  }
  void add(const float* row, int64_t at) {
    rows.push_back(row);
    column.push_back(at);
  }
};

// The products of R rows, at most 8, and the dense vector, both `length` long with what is padded.
template <int R>
inline void some_dense_products(const float* const* rows, const int64_t* column, const float* dense, int64_t length,
                                float* out) {
  Vector sums[kLanes] = {};
  for (int64_t c = 0; c < length; c += kLanes) {
    const Vector x = load(dense + c);
#pragma GCC unroll 8
    for (int n = 0; n < R; ++n) sums[n] += load(rows[n] + c) * x;
  }
  const Vector found = add_lanes_of_8(sums);
#pragma GCC unroll 8
  for (int n = 0; n < R; ++n) out[column[n]] = found[n];
}

inline void dense_products(const LiftedRows& lifted, const float* dense, int64_t length, float* out) {
  const int64_t count = lifted.rows.size();
  int64_t n = 0;
  for (; n + 8 <= count; n += 8) some_dense_products<8>(&lifted.rows[n], &lifted.column[n], dense, length, out);
  for (; n + 4 <= count; n += 4) some_dense_products<4>(&lifted.rows[n], &lifted.column[n], dense, length, out);
  for (; n < count; ++n) some_dense_products<1>(&lifted.rows[n], &lifted.column[n], dense, length, out);
}

// From the gradient of a sample's output to that of V vectors of its dense vector, of which `count` floats are there.
template <int V>
inline void some_dense_gradient(const LiftedRows& lifted, const float* gradient, int64_t first, int64_t count, float* to) {
  Vector sums[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) sums[v] = load_some(gradient + first + v * kLanes, count - v * kLanes);
  for (size_t n = 0; n < lifted.rows.size(); ++n) {
    const float g = gradient[lifted.column[n]];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[v] += g * load(lifted.rows[n] + first + v * kLanes);
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) store_some(to + first + v * kLanes, sums[v], count - v * kLanes);
}

inline void dense_gradient(const LiftedRows& lifted, const float* gradient, int64_t D, float* to) {
  int64_t c = 0;
  for (; c + 8 * kLanes <= D; c += 8 * kLanes) some_dense_gradient<8>(lifted, gradient, c, 8 * kLanes, to);
  for (; c < D; c += kLanes) some_dense_gradient<1>(lifted, gradient, c, std::min(kLanes, D - c), to);
}

// Columns first to first + 32 of a matrix of D columns, zeros beyond them.
inline void pack_columns(const float* matrix, int64_t rows, int64_t D, int64_t first, float* to) {
  const int64_t count = std::min(kChunkColumns, D - first);
  for (int64_t r = 0; r < rows; ++r, to += kChunkColumns) {
    std::memcpy(to, matrix + r * D + first, count * sizeof(float));
    std::fill(to + count, to + kChunkColumns, 0.0f);
  }
}

// Rows of one chunk are far apart, and entries come one after the other.
PREFETCH prefetch_chunk(const float* row) {
  for (int64_t c = 0; c < kChunkColumns; c += 16) __builtin_prefetch(row + c, 1);
}

// From the gradients of the products (F, B + 16) to those of the lifted rows, `offset` floats from the rows. A few columns at a
// time, so that those of the whole batch stay in the cache while the values of each block, sorted by row, go over them.
void lifted_back(const Layer& layer, const Split& split, const Run* runs, const uint32_t* values, const float* dense,
                 const float* products, int64_t offset, int64_t threads) {
  constexpr int kVectors = kChunkColumns / kLanes;
  constexpr int64_t rows_ahead = 6;
  const int64_t B = split.batch, D = layer.base_dim;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> packed(B * kChunkColumns);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
      const int64_t first = chunk * kChunkColumns;
      pack_columns(dense, B, D, first, packed.data());
      for (int64_t b = 0; b < layer.num_blocks; ++b) {
        const SplitBlock& own = split.blocks[b];
        if (!own.is_lifted) continue;
        const float* of_feature = products + own.position * split.feature_stride();
        const int64_t end = runs[b].first + runs[b].count;
        for (int64_t i = runs[b].first; i < end;) {
          const uint32_t entry = split.entry_of[i];
          Vector sum[kVectors] = {};
          for (; i < end && split.entry_of[i] == entry; ++i) {
            const float g = of_feature[values[i]];
            const float* x = packed.data() + values[i] * kChunkColumns;
            for (int n = 0; n < kVectors; ++n) sum[n] += g * load(x + n * kLanes);
          }
          float* to = own.lifted + offset + entry * split.stride + first;
          prefetch_chunk(to + rows_ahead * split.stride);
          for (int n = 0; n < kVectors; ++n) store(to + n * kLanes, sum[n]);
        }
      }
    }
  }
}

}  // namespace mixdim
