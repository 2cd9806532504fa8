// The products of features with one another in the split form, and their gradients.
//
// (j, i) stands for the features at positions i < j, and (j, j) for the feature at j with the dense vector.

#pragma once

#include "split_dense.h"

namespace mixdim {

constexpr int64_t kSamplesAtOnce = 64;

// What a sample has of a feature. With padding, x is null and y is zeros.
struct Hit {
  const float *x, *y;  // see SplitBlock; x is null for a one-hot block too
  int64_t block, column, vectors;  // column is the row's own, if one-hot
};

inline int64_t pair_number(int64_t j, int64_t i) { return j * (j + 1) / 2 + i; }

// hits (count, F), by position, of `count` samples.
void find_hits(const Layer& layer, const Split& split, int64_t first, int64_t count, const float* zeros, Hit* hits) {
  const int64_t F = layer.num_features;
  for (int64_t f = 0; f < F; ++f) {
    const Place* places = split.places + f * split.batch + first;
    for (int64_t s = 0; s < count; ++s) {
      Hit* hit = hits + s * F + f;
      if (places[s].block < 0) {
        *hit = {nullptr, zeros, -1, 0, 0};
        continue;
      }
      const SplitBlock& own = split.blocks[places[s].block];
      const int64_t entry = places[s].entry;
      const float* y = own.y + entry * own.y_stride;
      *hit = own.is_one_hot ? Hit{nullptr, y, places[s].block, own.column + entry, 0}
                            : Hit{own.x + entry * own.stride(), y, places[s].block, own.column, own.stride() / kLanes};
    }
  }
}

// to[i] = y[i] . x for 8 rows, each of `vectors` vectors.
template <int Known>
inline Vector eight_products(const float* const* y, const float* x, int64_t vectors) {
  Vector sums[kLanes];
  for (int n = 0; n < kLanes; ++n) {
    Vector sum = load(y[n]) * load(x);
    for (int64_t v = 1; v < (Known ? Known : vectors); ++v) sum += load(y[n] + v * kLanes) * load(x + v * kLanes);
    sums[n] = sum;
  }
  return add_lanes_of_8(sums);
}

inline Vector products_of_8(const float* const* y, const float* x, int64_t vectors) {
  switch (vectors) {
    case 1: return eight_products<1>(y, x, 1);
    case 2: return eight_products<2>(y, x, 2);
    case 4: return eight_products<4>(y, x, 4);
    default: return eight_products<0>(y, x, vectors);
  }
}

// Where the columns of features after each position begin.
std::vector<int64_t> later_columns(const Layer& layer, const Split& split) {
  std::vector<int64_t> later(layer.num_features);
  for (int64_t b = 0; b < layer.num_blocks; ++b) later[split.blocks[b].position] = split.blocks[b].later;
  return later;
}

// The columns of a sample's output after the dense vector, `to` being where its row begins.
void sample_pairs(const Layer& layer, const Split& split, const std::vector<int64_t>& later, const Hit* hits,
                  int64_t sample, const float* products, float* to) {
  const int64_t F = layer.num_features;
  const float* z = split.z + sample * split.z_columns;
  for (int64_t j = 0; j < F; ++j) {
    const Hit& hit = hits[j];
    const int64_t* column = split.pair_column + pair_number(j, 0);
    if (hit.block < 0) {
      for (int64_t i = 0; i <= j; ++i) to[column[i]] = 0.0f;
      continue;
    }
    const SplitBlock& own = split.blocks[hit.block];
    float with_dense = products[j * split.batch + sample];
    if (!own.is_lifted) {
      with_dense = 0.0f;
      for (int64_t k = 0; k < own.width; ++k) with_dense += z[own.z_column + k] * hit.x[k];
    }
    to[column[j]] = with_dense;
    if (own.is_one_hot) {
      for (int64_t i = 0; i < j; ++i) to[column[i]] = hits[i].y[hit.column - later[i]];
      continue;
    }
    for (int64_t i = 0; i < j; i += kLanes) {
      const int64_t count = std::min(kLanes, j - i);
      const float* y[kLanes];
      for (int64_t n = 0; n < kLanes; ++n) {
        const int64_t at = i + std::min(n, count - 1);
        y[n] = hits[at].y + hit.column - later[at];
      }
      const Vector found = products_of_8(y, hit.x, hit.vectors);
      for (int64_t n = 0; n < count; ++n) to[column[i + n]] = found[n];
    }
  }
}

// out (B, D + pairs), from the dense vectors and all that was prepared.
void pairs(const Layer& layer, const Split& split, const float* dense, const float* products, float* out,
           int64_t threads) {
  const int64_t B = split.batch, F = layer.num_features, D = layer.base_dim, columns = D + F * (F + 1) / 2;
  const std::vector<float> zeros(split.columns + kLanes, 0.0f);
  const std::vector<int64_t> later = later_columns(layer, split);
#pragma omp parallel num_threads(threads)
  {
    std::vector<Hit> hits(kSamplesAtOnce * F);
#pragma omp for schedule(static)
    for (int64_t first = 0; first < B; first += kSamplesAtOnce) {
      const int64_t count = std::min(kSamplesAtOnce, B - first);
      find_hits(layer, split, first, count, zeros.data(), hits.data());
      for (int64_t s = 0; s < count; ++s) {
        float* to = out + (first + s) * columns;
        std::memcpy(to, dense + (first + s) * D, D * sizeof(float));
        sample_pairs(layer, split, later, &hits[s * F], first + s, products, to);
      }
    }
  }
}

// sum[v] += weights[i] * y[i][v] for vectors v of a row, those of `Known` at once.
template <int Known>
inline void add_rows(const float* const* y, const float* weights, int64_t count, float* sum) {
  Vector sums[Known];
  for (int v = 0; v < Known; ++v) sums[v] = load(sum + v * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < Known; ++v) sums[v] += weights[i] * load(y[i] + v * kLanes);
  }
  for (int v = 0; v < Known; ++v) store(sum + v * kLanes, sums[v]);
}

// From the gradients of all products with the feature at position f to those of its entries' x and y, `offset` floats
// from x and y, and of z. gradients (count, F): with each other feature, and with the dense vector at f.
void feature_back(const Layer& layer, const Split& split, const std::vector<int64_t>& later, int64_t f, int64_t first,
                  int64_t count, const Hit* hits, const float* gradients, int64_t offset, float* z_gradient) {
  const int64_t F = layer.num_features;
  std::vector<const float*> y(F);
  for (int64_t s = 0; s < count; ++s, hits += F, gradients += F) {
    const Hit& hit = hits[f];
    if (hit.block < 0) continue;
    float* y_gradient = const_cast<float*>(hit.y) + offset - later[f];
    for (int64_t j = f + 1; j < F; ++j) {
      const Hit& other = hits[j];
      const float g = gradients[j];
      float* to = y_gradient + other.column;
      if (other.x) {
        for (int64_t v = 0; v < other.vectors * kLanes; v += kLanes) store(to + v, load(to + v) + g * load(other.x + v));
      } else if (other.block >= 0) {
        *to += g;
      }
    }
    if (!hit.x) continue;
    float* x_gradient = const_cast<float*>(hit.x) + offset;
    for (int64_t i = 0; i < f; ++i) y[i] = hits[i].y + hit.column - later[i];
    int64_t v = 0;
    for (; v + 4 <= hit.vectors; v += 4) {
      add_rows<4>(y.data(), gradients, f, x_gradient + v * kLanes);
      for (int64_t i = 0; i < f; ++i) y[i] += 4 * kLanes;
    }
    for (; v < hit.vectors; ++v) {
      add_rows<1>(y.data(), gradients, f, x_gradient + v * kLanes);
      for (int64_t i = 0; i < f; ++i) y[i] += kLanes;
    }
    const SplitBlock& own = split.blocks[hit.block];
    if (own.is_lifted) continue;
    const int64_t at = (first + s) * split.z_columns + own.z_column;
    for (int64_t k = 0; k < own.width; ++k) {
      x_gradient[k] += gradients[f] * split.z[at + k];
      z_gradient[at + k] = gradients[f] * hit.x[k];
    }
  }
}

// From the gradient of the output to those of all entries' x and y, of z, and of the products with the dense vector.
void pairs_back(const Layer& layer, const Split& split, const float* gradient, int64_t offset, float* z_gradient,
                float* products, int64_t threads) {
  const int64_t B = split.batch, F = layer.num_features, columns = layer.base_dim + F * (F + 1) / 2;
  const std::vector<float> zeros(split.columns + kLanes, 0.0f);
  const std::vector<int64_t> later = later_columns(layer, split);
  // As many samples at once as keep their gradients in the cache, both (j, i) and (i, j).
  const int64_t at_once = std::max<int64_t>(8, std::min<int64_t>(256, (1 << 18) / (F * F)));
  std::vector<Hit> hits(at_once * F);
  std::vector<float> by_feature(at_once * F * F);
#pragma omp parallel num_threads(threads)
  for (int64_t first = 0; first < B; first += at_once) {
    const int64_t count = std::min(at_once, B - first);
#pragma omp for schedule(static)
    for (int64_t s = 0; s < count; ++s) {
      find_hits(layer, split, first + s, 1, zeros.data(), &hits[s * F]);
      const float* from = gradient + (first + s) * columns;
      for (int64_t j = 0; j < F; ++j) {
        const int64_t* column = split.pair_column + pair_number(j, 0);
        float* row = &by_feature[(j * count + s) * F];
        for (int64_t i = 0; i <= j; ++i) row[i] = by_feature[(i * count + s) * F + j] = from[column[i]];
        products[j * B + first + s] = hits[s * F + j].block < 0 ? 0.0f : row[j];
      }
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t f = 0; f < F; ++f) {
      feature_back(layer, split, later, f, first, count, hits.data(), &by_feature[f * count * F], offset, z_gradient);
    }
  }
}

}  // namespace mixdim
