// The products of features with one another in the split form, and their gradients.
//
// What a feature gives and needs of later ones is a row of *elements* a sample: one for each later one-hot feature, then
// one for each 4, 2 or 1 vectors of later narrow columns, in this order. Nothing depends on where a feature ends and the
// next begins, except where elements go in the output: those of one pair are added up there.

#pragma once

#include "split_dense.h"

namespace mixdim {

constexpr int64_t kSamplesAtOnce = 16;

// What some samples have of all features, by position: see SplitBlock. With padding y is zeros.
struct Tile {
  int64_t first = 0, count = 0, narrow;
  std::vector<const float*> y;  // (F, samples), from the first column that is later
  std::vector<float> x;         // (samples, narrow columns), zeros in those of other blocks
  std::vector<float> zeros;

  explicit Tile(const Split& split)
      : narrow(split.columns - split.narrow),
        y(split.features * kSamplesAtOnce),
        x(narrow * kSamplesAtOnce),
        zeros(split.columns) {}

  void find(const Split& split, int64_t tile) {
    first = tile * kSamplesAtOnce;
    count = std::min(kSamplesAtOnce, split.batch - first);
    std::fill(x.begin(), x.end(), 0.0f);
    for (int64_t i = 0; i < split.features; ++i) {
      for (int64_t s = 0; s < count; ++s) {
        const Place& place = split.places[(first + s) * split.features + i];
        const SplitBlock* own = place.block < 0 ? nullptr : split.blocks + place.block;
        y[i * kSamplesAtOnce + s] = own ? own->y + place.entry * own->y_stride : zeros.data();
        if (own && i >= split.hot) {
          const float* from = own->x + place.entry * own->stride;
          float* to = x_of(s) + own->column - split.narrow;
          for (int64_t v = 0; v < own->stride; v += kLanes) store(to + v, load(from + v));
        }
      }
    }
  }

  float* x_of(int64_t s) { return x.data() + s * narrow; }

  // y of a feature and a sample; that of a later sample is on its way from memory from now on.
  const float* y_of(const Split& split, int64_t i, int64_t s) const {
    constexpr int64_t ahead = 4;
    if (s + ahead < count) {
      const float* then = y[i * kSamplesAtOnce + s + ahead];
      for (int64_t c = 0; c < split.columns - split.later[i]; c += 16) __builtin_prefetch(then + c);
    }
    return y[i * kSamplesAtOnce + s];
  }
};

inline const float* narrow_part(const Split& split, const float* y, int64_t i) {
  return y + (std::max(split.later[i], split.narrow) - split.later[i]);
}
inline int64_t first_narrow(const Split& split, int64_t i) { return std::max(split.later[i], split.narrow) - split.narrow; }

// Adds the products of R elements of N vectors, at most 8, to where they go.
template <int N, int R>
inline void add_some_products(const float* y, const float* x, const int32_t* column, float* to) {
  Vector sums[kLanes];
#pragma GCC unroll 8
  for (int n = 0; n < kLanes; ++n) {
    sums[n] = Vector{};
    if (n >= R) continue;
    sums[n] = load(y + n * N * kLanes) * load(x + n * N * kLanes);
#pragma GCC unroll 4
    for (int v = 1; v < N; ++v) sums[n] += load(y + (n * N + v) * kLanes) * load(x + (n * N + v) * kLanes);
  }
  const Vector found = add_lanes_of_8(sums);
#pragma GCC unroll 8
  for (int n = 0; n < R; ++n) to[column[n]] += found[n];
}

template <int N>
inline void add_products(int64_t count, const float* y, const float* x, const int32_t* column, float* to) {
  for (; count >= kLanes; count -= kLanes, column += kLanes, y += N * kLanes * kLanes, x += N * kLanes * kLanes) {
    add_some_products<N, 8>(y, x, column, to);
  }
  switch (count) {
    case 1: return add_some_products<N, 1>(y, x, column, to);
    case 2: return add_some_products<N, 2>(y, x, column, to);
    case 3: return add_some_products<N, 3>(y, x, column, to);
    case 4: return add_some_products<N, 4>(y, x, column, to);
    case 5: return add_some_products<N, 5>(y, x, column, to);
    case 6: return add_some_products<N, 6>(y, x, column, to);
    case 7: return add_some_products<N, 7>(y, x, column, to);
  }
}

// The products of the feature at position i and all later ones, and of all with the dense vector, for a tile.
void tile_pairs(const Split& split, Tile* tile, int64_t i, const float* products, float* out) {
  const int64_t F = split.features, columns = split.base_dim + F * (F + 1) / 2, narrow = first_narrow(split, i);
  const auto [of_four, of_two, of_one] = split.elements[i];
  const int64_t two = 4 * kLanes * of_four, one = two + 2 * kLanes * of_two;  // where those of two and of one vector begin
  for (int64_t s = 0; s < tile->count; ++s) {
    const int64_t sample = tile->first + s;
    const int32_t* column = split.element_column + split.element_start[i];
    const float *row = tile->y_of(split, i, s), *y = narrow_part(split, row, i), *x = tile->x_of(s) + narrow;
    float* to = out + sample * columns;
    for (int64_t j = i + 1; j < split.hot; ++j) {
      to[*column++] = row[split.hot_columns[sample * split.hot + j] - split.later[i]];
    }
    add_products<4>(of_four, y, x, column, to);
    add_products<2>(of_two, y + two, x + two, column + of_four, to);
    add_products<1>(of_one, y + one, x + one, column + of_four + of_two, to);
    const Place& place = split.places[sample * F + i];
    if (place.block < 0) continue;
    const SplitBlock& own = split.blocks[place.block];
    float with_dense = own.is_lifted ? products[i * split.batch + sample] : 0.0f;
    const float *z = split.z + sample * split.z_columns + own.z_column, *own_x = own.x + place.entry * own.stride;
    for (int64_t k = 0; !own.is_lifted && k < own.width; ++k) with_dense += z[k] * own_x[k];
    to[split.dense_column[i]] = with_dense;
  }
}

// out (B, D + pairs), from the dense vectors and all that was prepared.
void pairs(const Split& split, const float* dense, const float* products, float* out, int64_t threads) {
  const int64_t F = split.features, D = split.base_dim, columns = D + F * (F + 1) / 2;
#pragma omp parallel num_threads(threads)
  {
    Tile tile(split);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < (split.batch + kSamplesAtOnce - 1) / kSamplesAtOnce; ++t) {
      tile.find(split, t);
      for (int64_t s = tile.first; s < tile.first + tile.count; ++s) {
        std::memcpy(out + s * columns, dense + s * D, D * sizeof(float));
        std::fill_n(out + s * columns + D, columns - D, 0.0f);
      }
      for (int64_t i = 0; i < F; ++i) tile_pairs(split, &tile, i, products, out);
    }
  }
}

// What the gradients of a batch are sorted into.
struct PairGradients {
  float* products;  // (F, B): with the dense vector
  float* elements;  // for each position i, (B, elements of i)
  float *x, *of_x;  // (B, narrow columns): x itself, and its gradient
};

// Takes `count` elements of N vectors from where they are in the output; of_x += each times its vectors of y.
template <int N>
inline void add_gradients(int64_t count, const float* from, const int32_t* column, const float* y, float* elements,
                          float* of_x) {
  for (int64_t e = 0; e < count; ++e, y += N * kLanes, of_x += N * kLanes) {
    const float g = elements[e] = from[column[e]];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) store(of_x + v * kLanes, load(of_x + v * kLanes) + g * load(y + v * kLanes));
  }
}

// From the gradient of a tile's output to those of its x and z, for the feature at position i, when all before it have
// been here.
void tile_back(const Split& split, Tile* tile, int64_t i, const float* gradient, float* z_gradient,
               const PairGradients& to) {
  const int64_t F = split.features, B = split.batch, columns = split.base_dim + F * (F + 1) / 2;
  const int64_t start = split.element_start[i], count = split.element_start[i + 1] - start;
  const int64_t hot = std::max<int64_t>(split.hot - 1 - i, 0), narrow = first_narrow(split, i);
  const int32_t* column = split.element_column + start;
  const auto [of_four, of_two, of_one] = split.elements[i];
  const int64_t two = 4 * kLanes * of_four, one = two + 2 * kLanes * of_two;  // where those of two and of one vector begin
  for (int64_t s = 0; s < tile->count; ++s) {
    const int64_t sample = tile->first + s, two_at = hot + of_four, one_at = two_at + of_two;
    const float *from = gradient + sample * columns, *y = narrow_part(split, tile->y_of(split, i, s), i);
    float *elements = to.elements + B * start + sample * count, *x = to.of_x + sample * tile->narrow + narrow;
    for (int64_t e = 0; e < hot; ++e) elements[e] = from[column[e]];
    add_gradients<4>(of_four, from, column + hot, y, elements + hot, x);
    add_gradients<2>(of_two, from, column + two_at, y + two, elements + two_at, x + two);
    add_gradients<1>(of_one, from, column + one_at, y + one, elements + one_at, x + one);
    const Place& place = split.places[sample * F + i];
    const float with_dense = place.block < 0 ? 0.0f : from[split.dense_column[i]];
    to.products[i * B + sample] = with_dense;
    if (place.block < 0 || split.blocks[place.block].is_lifted) continue;
    const SplitBlock& own = split.blocks[place.block];
    const int64_t z = sample * split.z_columns + own.z_column;
    const float* own_x = tile->x_of(s) + own.column - split.narrow;
    float* of_own_x = to.of_x + sample * tile->narrow + own.column - split.narrow;
    for (int64_t k = 0; k < own.width; ++k) {
      of_own_x[k] += with_dense * split.z[z + k];
      z_gradient[z + k] = with_dense * own_x[k];
    }
  }
}

// The samples that have one entry of a block, and what their gradients of later columns are added up from.
struct Samples {
  const uint32_t* values;
  int64_t count;
  const float *elements, *x;
  int64_t element_stride, x_stride;

  // to = the sum over samples of E elements, each times its N vectors of x; goes on behind them.
  template <int N, int E>
  void add_some(float** to) {
    Vector sums[E * N];
    for (int v = 0; v < E * N; ++v) sums[v] = Vector{};
    for (int64_t n = 0; n < count; ++n) {
      const float *g = elements + values[n] * element_stride, *row = x + values[n] * x_stride;
      for (int v = 0; v < E * N; ++v) sums[v] += g[v / N] * load(row + v * kLanes);
    }
    for (int v = 0; v < E * N; ++v) store(*to + v * kLanes, sums[v]);
    elements += E;
    x += E * N * kLanes;
    *to += E * N * kLanes;
  }

  template <int N>
  void add(int64_t num_elements, float** to) {
    constexpr int kAtOnce = 8 / N;
    for (; num_elements >= kAtOnce; num_elements -= kAtOnce) add_some<N, kAtOnce>(to);
    for (; num_elements > 0; --num_elements) add_some<N, 1>(to);
  }
};

// From those of all samples to those of y of one-hot features, `offset` floats from it: rows of the Gram matrix. A
// thread takes every `threads`-th feature; all go through the samples together, a few at a time.
void hot_back(const Split& split, const PairGradients& from, int64_t offset, int64_t thread, int64_t threads) {
  const int64_t narrow = split.columns - split.narrow;
  for (int64_t first = 0; first < split.batch; first += kSamplesAtOnce) {
    for (int64_t i = thread; i < split.hot; i += threads) {
      const int64_t start = split.element_start[i], count = split.element_start[i + 1] - start;
      const auto [of_four, of_two, of_one] = split.elements[i];
      for (int64_t s = first; s < std::min(first + kSamplesAtOnce, split.batch); ++s) {
        const uint32_t* columns = split.hot_columns + s * split.hot;
        const float *g = from.elements + split.batch * start + s * count, *x = from.x + s * narrow;
        float* row = split.gram + offset + columns[i] * split.columns;
        for (int64_t j = i + 1; j < split.hot; ++j) row[columns[j]] += *g++;
        float* y = row + split.narrow;
        const auto add = [&](int64_t num_elements, int64_t vectors) {
          for (int64_t e = 0; e < num_elements; ++e, ++g) {
            for (int64_t v = 0; v < vectors; ++v, y += kLanes, x += kLanes) store(y, load(y) + *g * load(x));
          }
        };
        add(of_four, 4);
        add(of_two, 2);
        add(of_one, 1);
      }
    }
  }
}

// From those of all samples to those of the entries' x and y, `offset` floats from x and y, of a narrow block.
void entries_back(const Split& split, int64_t b, const Run& run, const uint32_t* values, const PairGradients& from,
                  int64_t offset) {
  const SplitBlock& own = split.blocks[b];
  const int64_t i = own.position, start = split.element_start[i], stride = split.element_start[i + 1] - start;
  const int64_t narrow = split.columns - split.narrow, end = run.first + run.count;
  const float *elements = from.elements + split.batch * start, *of_x = from.of_x + own.column - split.narrow;
  const auto [of_four, of_two, of_one] = split.elements[i];
  for (int64_t at = run.first, next; at < end; at = next) {
    const uint32_t entry = split.entry_of[at];
    for (next = at + 1; next < end && split.entry_of[next] == entry;) ++next;
    Samples samples{values + at, next - at, elements, from.x + own.later - split.narrow, stride, narrow};
    float* y = own.y + offset + entry * own.y_stride;
    samples.add<4>(of_four, &y);
    samples.add<2>(of_two, &y);
    samples.add<1>(of_one, &y);
    float* sum = own.x + offset + entry * own.stride;
    for (int64_t c = 0; c < own.stride; c += kLanes) {
      Vector total = {};
      for (int64_t n = at; n < next; ++n) total += load(of_x + values[n] * narrow + c);
      store(sum + c, total);
    }
  }
}

// From the gradient of the output to those of all entries' x and y, of z, and of the products with the dense vector.
void pairs_back(const Layer& layer, const Split& split, const Run* runs, const uint32_t* values, const float* gradient,
                int64_t offset, float* z_gradient, const PairGradients& to, int64_t threads) {
#pragma omp parallel num_threads(threads)
  {
    Tile tile(split);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < (split.batch + kSamplesAtOnce - 1) / kSamplesAtOnce; ++t) {
      tile.find(split, t);
      std::copy_n(tile.x.data(), tile.count * tile.narrow, to.x + tile.first * tile.narrow);
      std::fill_n(to.of_x + tile.first * tile.narrow, tile.count * tile.narrow, 0.0f);
      for (int64_t i = 0; i < split.features; ++i) tile_back(split, &tile, i, gradient, z_gradient, to);
    }
#pragma omp for schedule(static, 1) nowait
    for (int64_t t = 0; t < threads; ++t) hot_back(split, to, offset, t, threads);
#pragma omp for schedule(dynamic, 1)
    for (int64_t b = 0; b < layer.num_blocks; ++b) {
      if (!split.blocks[b].is_one_hot) entries_back(split, b, runs[b], values, to, offset);
    }
  }
}

}  // namespace mixdim
