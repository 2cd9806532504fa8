// The dense vectors' part of the split form: their products with the lifted rows of every feature, and the gradients.
//
// A few columns at a time, so that those of the whole batch stay in the cache while the values of each block, sorted
// by row, go over them. Each thread has its own columns.

#pragma once

#include "split.h"

namespace mixdim {

constexpr int kVectors = kChunkColumns / kLanes;

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

// Rows of one chunk are far apart, and entries come one after the other.
constexpr int64_t kRowsAhead = 6;
inline void prefetch_chunk(const float* row) {
  for (int64_t c = 0; c < kChunkColumns; c += 16) __builtin_prefetch(row + c);
}

// Columns first to first + 32 of a matrix of D columns, zeros beyond them.
inline void pack_columns(const float* matrix, int64_t row_stride, int64_t rows, int64_t D, int64_t first, float* to) {
  const int64_t count = std::min(kChunkColumns, D - first);
  for (int64_t r = 0; r < rows; ++r, to += kChunkColumns) {
    const float* from = matrix + r * row_stride + first;
    if (count == kChunkColumns) {
      for (int64_t c = 0; c < kChunkColumns; c += kLanes) store(to + c, load(from + c));
    } else {
      std::memcpy(to, from, count * sizeof(float));
      std::fill(to + count, to + kChunkColumns, 0.0f);
    }
  }
}

// One-hot features have few rows, which stay in the cache: they go sample by sample, all at once. q is their first row's
// chunk.
void hot_products(const Split& split, const float* q, const float* packed, float* to) {
  for (int64_t s = 0; s < split.batch; ++s, packed += kChunkColumns) {
    const uint32_t* columns = split.hot_columns + s * split.hot;
    for (int64_t first = 0; first < split.hot; first += kLanes) {
      const int64_t count = std::min(kLanes, split.hot - first);
      Vector sums[kLanes];
      for (int64_t n = 0; n < kLanes; ++n) {
        const float* row = q + columns[first + std::min(n, count - 1)] * split.stride;
        sums[n] = load(row) * load(packed);
        for (int v = 1; v < kVectors; ++v) sums[n] += load(row + v * kLanes) * load(packed + v * kLanes);
      }
      const Vector found = add_lanes_of_8(sums);
      for (int64_t n = 0; n < count; ++n) to[(first + n) * split.batch + s] = found[n];
    }
  }
}

void hot_products_back(const Split& split, float* q, const float* products, const float* packed, int64_t offset,
                       float* back) {
  for (int64_t s = 0; s < split.batch; ++s, packed += kChunkColumns, back += kChunkColumns) {
    Vector x[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = load(packed + v * kLanes);
      sum[v] = load(back + v * kLanes);
    }
    for (int64_t i = 0; i < split.hot; ++i) {
      float* row = q + split.hot_columns[s * split.hot + i] * split.stride;
      const float g = products[i * split.batch + s];
      for (int v = 0; v < kVectors; ++v) {
        sum[v] += g * load(row + v * kLanes);
        store(row + offset + v * kLanes, load(row + offset + v * kLanes) + g * x[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) store(back + v * kLanes, sum[v]);
  }
}

// products (F, B), by position: of the dense vector and each feature that is lifted; partial has room for
// (chunks, F, B).
void dense_products(const Layer& layer, const Split& split, const Run* runs, const uint32_t* values,
                    const float* dense, float* partial, float* products, int64_t threads) {
  const int64_t B = split.batch, D = layer.base_dim, F = layer.num_features;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> packed(B * kChunkColumns);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
      pack_columns(dense, D, B, D, chunk * kChunkColumns, packed.data());
      float* to = partial + chunk * F * B;
      std::fill_n(to, F * B, 0.0f);
      hot_products(split, split.q + chunk * kChunkColumns, packed.data(), to);
      for (int64_t b = 0; b < layer.num_blocks; ++b) {
        const SplitBlock& own = split.blocks[b];
        if (own.is_one_hot || !own.is_lifted) continue;
        float* of_feature = to + own.position * B;
        const float* lifted = own.lifted + chunk * kChunkColumns;
        const int64_t end = runs[b].first + runs[b].count;
        for (int64_t i = runs[b].first; i < end; i += kLanes) {
          Vector sums[kLanes] = {};
          const int64_t count = std::min(kLanes, end - i);
          for (int64_t n = 0; n < count; ++n) {
            const float* x = packed.data() + values[i + n] * kChunkColumns;
            const float* v = lifted + split.entry_of[i + n] * split.stride;
            prefetch_chunk(v + kRowsAhead * split.stride);
            for (int64_t c = 0; c < kChunkColumns; c += kLanes) sums[n] += load(x + c) * load(v + c);
          }
          const Vector found = add_lanes_of_8(sums);
          for (int64_t n = 0; n < count; ++n) of_feature[values[i + n]] = found[n];
        }
      }
    }
#pragma omp for schedule(static)
    for (int64_t f = 0; f < F; ++f) {
      float* to = products + f * B;
      std::fill_n(to, B, 0.0f);
      for (int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
        const float* from = partial + (chunk * F + f) * B;
        for (int64_t s = 0; s < B; ++s) to[s] += from[s];
      }
    }
  }
}

// From the gradients of those products (F, B) to those of the lifted rows, `offset` floats from the rows, and of the
// dense vectors: to (B, D) = gradient (B, columns) + what comes of the products.
void dense_products_back(const Layer& layer, const Split& split, const Run* runs, const uint32_t* values,
                         const float* dense, const float* products, const float* gradient, int64_t gradient_stride,
                         int64_t offset, float* to, int64_t threads) {
  const int64_t B = split.batch, D = layer.base_dim;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> packed(B * kChunkColumns), sums(B * kChunkColumns);
#pragma omp for schedule(dynamic, 1)
    for (int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
      const int64_t first = chunk * kChunkColumns;
      pack_columns(dense, D, B, D, first, packed.data());
      pack_columns(gradient, gradient_stride, B, D, first, sums.data());
      hot_products_back(split, split.q + first, products, packed.data(), offset, sums.data());
      for (int64_t b = 0; b < layer.num_blocks; ++b) {
        const SplitBlock& own = split.blocks[b];
        if (own.is_one_hot || !own.is_lifted) continue;
        const float* of_feature = products + own.position * B;
        const int64_t end = runs[b].first + runs[b].count;
        for (int64_t i = runs[b].first; i < end;) {
          const uint32_t entry = split.entry_of[i];
          const float* row = own.lifted + entry * split.stride + first;
          Vector v[kVectors], sum[kVectors];
          for (int n = 0; n < kVectors; ++n) {
            v[n] = load(row + n * kLanes);
            sum[n] = Vector{};
          }
          for (; i < end && split.entry_of[i] == entry; ++i) {
            const float g = of_feature[values[i]];
            const float* x = packed.data() + values[i] * kChunkColumns;
            float* back = sums.data() + values[i] * kChunkColumns;
            for (int n = 0; n < kVectors; ++n) {
              sum[n] += g * load(x + 8 * n);
              store(back + 8 * n, load(back + 8 * n) + g * v[n]);
            }
          }
          float* row_gradient = own.lifted + offset + entry * split.stride + first;
          prefetch_chunk(row + kRowsAhead * split.stride);
          prefetch_chunk(row_gradient + kRowsAhead * split.stride);
          for (int n = 0; n < kVectors; ++n) store(row_gradient + 8 * n, sum[n]);
        }
      }
      const int64_t count = std::min(kChunkColumns, D - first);
      for (int64_t s = 0; s < B; ++s) std::memcpy(to + s * D + first, &sums[s * kChunkColumns], count * sizeof(float));
    }
  }
}

}  // namespace mixdim
