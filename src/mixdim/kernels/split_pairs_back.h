// The gradients of the products of features with one another in the split form.
//
// Back to the rows of later features it goes sample by sample. Back to y of earlier ones, entry by entry: what one
// needs of later ones are *elements* of a sample: one for each later one-hot feature, then one for each 4, 2 or 1 vectors
// of later narrow columns, in this order. Nothing there depends on where a feature ends and the next begins.

#pragma once

#include "split_pairs.h"

namespace mixdim {

constexpr int64_t kSamplesAhead = 6;  // which are on their way from memory: those of an entry are anywhere in the batch

// What the gradients of a batch are sorted into.
struct PairGradients {
  float* products;  // (F, B + 16): with the dense vector
  float* elements;  // (B, elements)
  float *x, *of_x;  // (B, narrow columns): x itself, and its gradient

  PREFETCH ask_for_sample(const Split& split, int64_t s) const {
    const int64_t num_elements = split.element_start[split.features], narrow = split.columns - split.narrow;
    ask_for<true>(elements + s * num_elements, num_elements);
    ask_for<true>(x + s * narrow, narrow);
    ask_for<true>(of_x + s * narrow, narrow);
  }
};

// to = the sum over all features before position j of their N vectors of y for it, each times its gradient.
template <int N>
inline void add_before(const Sample& sample, int64_t j, int64_t v, const float* from, const int32_t* column, float* to) {
  Vector sums[N] = {};
  for (int64_t i = 0; i < j; ++i) {
    const float g = from[column[i]];
    const float* y = sample.y_of(i, j) + v;
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[n] += g * load(y + n * kLanes);
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) store(to + v + n * kLanes, sums[n]);
}

// From the gradient of a sample's output to those of its x and z, sorted.
inline void sample_back(const Split& split, const Sample& sample, int64_t s, const float* from, float* z_gradient,
                        const PairGradients& to) {
  const int64_t F = split.features, narrow = split.columns - split.narrow;
  const int64_t num_elements = split.element_start[F];
  float* elements = to.elements + s * num_elements;
  for (int64_t e = 0; e < num_elements; ++e) elements[e] = from[split.element_column[e]];
  std::fill_n(to.x + s * narrow, narrow, 0.0f);
  std::fill_n(to.of_x + s * narrow, narrow, 0.0f);
  for (int64_t j = 0; j < F; ++j) {
    const Place& place = split.place(s, j);
    const float with_dense = place.block < 0 ? 0.0f : from[split.dense_column[j]];
    to.products[j * split.feature_stride() + s] = with_dense;
    if (j < split.hot || place.block < 0) continue;
    const int32_t* column = split.pair_column + j * (j - 1) / 2;
    float *x = to.x + s * narrow + sample.column[j] - split.narrow, *of_x = x + (to.of_x - to.x);
    const int64_t width = sample.width[j];
    for (int64_t v = 0; v < width; v += kLanes) store(x + v, load(sample.x[j] + v));
    int64_t v = 0;
    for (; v + 4 * kLanes <= width; v += 4 * kLanes) add_before<4>(sample, j, v, from, column, of_x);
    if (width - v == 2 * kLanes) add_before<2>(sample, j, v, from, column, of_x);
    if (width - v == kLanes) add_before<1>(sample, j, v, from, column, of_x);
    const SplitBlock& own = split.blocks[place.block];
    if (own.is_lifted) continue;
    const int64_t z = s * split.z_columns + own.z_column;
    for (int64_t k = 0; k < own.width; ++k) {
      of_x[k] += with_dense * split.z[z + k];
      z_gradient[z + k] = with_dense * x[k];
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
  const int64_t narrow = split.columns - split.narrow, num_elements = split.element_start[split.features];
  for (int64_t first = 0; first < split.batch; first += kSamplesAtOnce) {
    for (int64_t i = thread; i < split.hot; i += threads) {
      const int64_t start = split.element_start[i];
      const auto [of_four, of_two, of_one] = split.elements[i];
      for (int64_t s = first; s < std::min(first + kSamplesAtOnce, split.batch); ++s) {
        const uint32_t* columns = split.hot_columns + s * split.hot;
        const float *g = from.elements + s * num_elements + start, *x = from.x + s * narrow;
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
  const int64_t i = own.position, start = split.element_start[i], stride = split.element_start[split.features];
  const int64_t narrow = split.columns - split.narrow, end = run.first + run.count;
  const float *elements = from.elements + start, *of_x = from.of_x + own.column - split.narrow;
  const float* later_x = from.x + own.later - split.narrow;
  const auto [of_four, of_two, of_one] = split.elements[i];
  int64_t asked = run.first;
  for (int64_t at = run.first, next; at < end; at = next) {
    const uint32_t entry = split.entry_of[at];
    for (next = at + 1; next < end && split.entry_of[next] == entry;) ++next;
    for (; asked < std::min(next + kSamplesAhead, end); ++asked) {
      ask_for(elements + values[asked] * stride, of_four + of_two + of_one);
      ask_for(later_x + values[asked] * narrow, split.columns - own.later);
      ask_for(of_x + values[asked] * narrow, own.stride);
    }
    Samples samples{values + at, next - at, elements, later_x, stride, narrow};
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

// From the gradient of the output to those of all entries' x and y, of z, of the products with the dense vector and, but
// for what comes of z, of the dense vector.
void pairs_back(const Layer& layer, const Split& split, const Run* runs, const uint32_t* values, const float* gradient,
                int64_t offset, float* z_gradient, const PairGradients& to, float* of_dense, int64_t threads) {
  const int64_t F = split.features, D = split.base_dim, columns = D + F * (F + 1) / 2;
#pragma omp parallel num_threads(threads)
  {
    for_samples(split, [&](int64_t s, const Sample& sample) {
      if (s + 1 < split.batch) {
        ask_for(gradient + (s + 1) * columns, columns);
        to.ask_for_sample(split, s + 1);
      }
      sample_back(split, sample, s, gradient + s * columns, z_gradient, to);
      dense_gradient(sample.lifted, gradient + s * columns, D, of_dense + s * D);
    });
#pragma omp for schedule(static, 1) nowait
    for (int64_t t = 0; t < threads; ++t) hot_back(split, to, offset, t, threads);
#pragma omp for schedule(dynamic, 1)
    for (int64_t b = 0; b < layer.num_blocks; ++b) {
      if (!split.blocks[b].is_one_hot) entries_back(split, b, runs[b], values, to, offset);
    }
  }
}

}  // namespace mixdim
