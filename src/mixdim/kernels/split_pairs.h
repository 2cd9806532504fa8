// The products of features with one another in the split form, sample by sample.

#pragma once

#include "split_dense.h"

namespace mixdim {

constexpr int64_t kSamplesAtOnce = 16;

// Lets floats be on their way from memory into the second cache: the first is for what is worked on now.
template <bool to_write = false>
PREFETCH ask_for(const float* row, int64_t count) {
  for (int64_t c = 0; c < count; c += 16) __builtin_prefetch(row + c, to_write, 2);
}

// What a sample has of all features, by position. With padding x and y are zeros.
struct Sample {
  std::vector<uintptr_t> y;            // where column 0 of its row would be; there are only those of later features
  std::vector<const float*> x;         // none of one-hot features
  std::vector<int64_t> column, width;  // which columns of y of earlier features are for it; a one-hot one has one
  LiftedRows lifted;
  std::vector<float> zeros;

  explicit Sample(const Split& split)
      : y(split.features), x(split.features), column(split.features), width(split.features), zeros(split.columns) {}

  // Asks for what it finds.
  void find(const Split& split, int64_t s) {
    lifted.clear();
    for (int64_t i = 0; i < split.features; ++i) {
      const Place& place = split.place(s, i);
      const bool is_padding = place.block < 0;
      const SplitBlock& own = split.blocks[is_padding ? 0 : place.block];
      const int64_t entry = place.entry, later = split.later[i];
      const float* row = is_padding ? zeros.data() : own.y + entry * own.y_stride;
      y[i] = reinterpret_cast<uintptr_t>(row) - later * sizeof(float);
      if (!is_padding && own.is_lifted) lifted.add(own.lifted + entry * split.stride, split.dense_column[i]);
      if (i < split.hot) {  // its rows are few, and there already
        column[i] = split.hot_columns[s * split.hot + i];
        continue;
      }
      x[i] = is_padding ? zeros.data() : own.x + entry * own.stride;
      column[i] = is_padding ? later - kLanes : own.column;
      width[i] = is_padding ? kLanes : own.stride;
      ask_for(row, split.columns - later);
      ask_for(x[i], kLanes);
      if (!is_padding && own.is_lifted) ask_for(lifted.rows.back(), split.stride);
    }
  }

  // The columns of y of the feature at position i that are for the one at position j.
  const float* y_of(int64_t i, int64_t j) const {
    return reinterpret_cast<const float*>(y[i] + column[j] * sizeof(float));
  }
};

// Calls `work(s, sample)` for every sample; each thread has its own ones.
template <typename Work>
void for_samples(const Split& split, const Work& work) {
  Sample now(split), next(split);
#pragma omp for schedule(static)
  for (int64_t t = 0; t < (split.batch + kSamplesAtOnce - 1) / kSamplesAtOnce; ++t) {
    const int64_t first = t * kSamplesAtOnce, end = std::min(first + kSamplesAtOnce, split.batch);
    next.find(split, first);
    for (int64_t s = first; s < end; ++s) {
      std::swap(now, next);
      if (s + 1 < end) next.find(split, s + 1);
      work(s, now);
    }
  }
}

// The products of R features, at most 8, from position i, with the one at position j.
template <int R>
inline void some_products(const Sample& sample, int64_t i, int64_t j, const int32_t* column, float* out) {
  Vector sums[kLanes] = {};
  const float* y[R];
#pragma GCC unroll 8
  for (int n = 0; n < R; ++n) y[n] = sample.y_of(i + n, j);
  for (int64_t v = 0; v < sample.width[j]; v += kLanes) {
    const Vector x = load(sample.x[j] + v);
#pragma GCC unroll 8
    for (int n = 0; n < R; ++n) sums[n] += load(y[n] + v) * x;
  }
  const Vector found = add_lanes_of_8(sums);
#pragma GCC unroll 8
  for (int n = 0; n < R; ++n) out[column[i + n]] = found[n];
}

// The products of the feature at position j with all before it.
inline void products_before(const Split& split, const Sample& sample, int64_t j, float* out) {
  const int32_t* column = split.pair_column + j * (j - 1) / 2;
  if (j < split.hot) {
    for (int64_t i = 0; i < j; ++i) out[column[i]] = *sample.y_of(i, j);
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= j; i += kLanes) some_products<8>(sample, i, j, column, out);
  switch (j - i) {
    case 1: return some_products<1>(sample, i, j, column, out);
    case 2: return some_products<2>(sample, i, j, column, out);
    case 3: return some_products<3>(sample, i, j, column, out);
    case 4: return some_products<4>(sample, i, j, column, out);
    case 5: return some_products<5>(sample, i, j, column, out);
    case 6: return some_products<6>(sample, i, j, column, out);
    case 7: return some_products<7>(sample, i, j, column, out);
  }
}

// The products of a sample's features that are not lifted and the dense vector.
inline void z_products(const Split& split, const Sample& sample, int64_t s, float* out) {
  for (int64_t j = split.hot; j < split.features; ++j) {
    const Place& place = split.place(s, j);
    const SplitBlock& own = split.blocks[std::max(place.block, 0)];
    if (place.block < 0 || own.is_lifted) continue;
    const float* z = split.z + s * split.z_columns + own.z_column;
    float sum = 0.0f;
    for (int64_t k = 0; k < own.width; ++k) sum += z[k] * sample.x[j][k];
    out[split.dense_column[j]] = sum;
  }
}

// out (B, D + pairs), from the dense vectors and all that was prepared.
void pairs(const Split& split, const float* dense, float* out, int64_t threads) {
  const int64_t F = split.features, D = split.base_dim, columns = D + F * (F + 1) / 2;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> padded_dense(split.stride);
    for_samples(split, [&](int64_t s, const Sample& sample) {
      float* to = out + s * columns;
      std::memcpy(to, dense + s * D, D * sizeof(float));
      std::memcpy(padded_dense.data(), to, D * sizeof(float));
      for (int64_t j = 0; j < F; ++j) {
        products_before(split, sample, j, to);
        to[split.dense_column[j]] = 0.0f;  // with padding it stays that
      }
      dense_products(sample.lifted, padded_dense.data(), split.stride, to);
      z_products(split, sample, s, to);
    });
  }
}

}  // namespace mixdim
