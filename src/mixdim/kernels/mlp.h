// Linear layers with an activation after each, and their gradients: a few samples go through all layers at once.
//
// The activation is x where x > 0 and slope * x elsewhere: 0 for ReLU, 1 for none. Results do not depend on the number
// of threads: samples are shared out in tiles of one size, and what is summed over samples is summed tile by tile, or
// by gemm.h.

#pragma once

#include <omp.h>

#include <utility>

#include "gemm.h"

namespace mixdim {

struct MlpLayer {
  const float* weight;  // (outputs, inputs)
  const float* bias;    // (outputs), or null
  float* values;        // (B, outputs): what the activation returned; or null, where nobody needs it
  int64_t inputs, outputs;
};

struct Mlp {
  const float* input;  // (B, inputs of the first layer)
  const MlpLayer* layers;
  const float* slopes;  // one for each layer
  int64_t batch, num_layers;

  const float* input_of(int64_t l) const { return l ? layers[l - 1].values : input; }
  // Samples that a thread takes at a time: 16 times or more, to share out a small batch evenly too.
  int64_t tile() const;
};

// Where gradients go; null where nobody needs one.
struct MlpGradients {
  float *weight, *bias;
};

constexpr int64_t kMlpTile = 16 * kTileRows;      // samples whose values of two layers stay in the second cache
constexpr int64_t kLeastTile = 4 * kTileRows;     // that make use of a panel while it is in the first
constexpr int64_t kMlpRectangle = 256;            // rows and columns of a weight's gradient: what a thread computes

inline int64_t Mlp::tile() const {
  return std::clamp(parts_of(batch, 16 * kTileRows) * kTileRows, kLeastTile, kMlpTile);
}

// x or slope * x, by a sign that x itself need not have. As in PyTorch, ReLU makes 0 of all that it does not let
// through, infinities included; where the sign is of no number, ReLU lets through and others do not.
inline Vector activated(Vector x, Vector sign, float slope) {
  if (slope == 0.0f) return sign <= Vector{} ? Vector{} : x;
  return sign > Vector{} ? x : x * slope;
}

// Calls `work(column, count)` for each vector of a row, and for what is left at its end.
template <typename Work>
inline void for_vectors(int64_t columns, const Work& work) {
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t c = 0; c < whole; c += kLanes) work(c, kLanes);
  if (whole < columns) work(whole, columns - whole);
}

// Each row of values (rows x columns) plus the bias, activated.
inline void finish_rows(float* values, int64_t rows, int64_t columns, const float* bias, float slope) {
  for (int64_t i = 0; i < rows; ++i, values += columns) {
    for_vectors(columns, [&](int64_t c, int64_t count) {
      const Vector x = load_some(values + c, count) + (bias ? load_some(bias + c, count) : Vector{});
      store_some(values + c, activated(x, x, slope), count);
    });
  }
}

// From the gradient of what the activation returned to that of what it was given, and its sums over the rows.
inline void finish_gradient(const float* gradient, const float* values, int64_t rows, int64_t columns, float slope,
                            float* to, float* sums) {
  std::fill_n(sums, columns, 0.0f);
  for (int64_t i = 0; i < rows; ++i, gradient += columns, values += columns, to += columns) {
    for_vectors(columns, [&](int64_t c, int64_t count) {
      const Vector x = activated(load_some(gradient + c, count), load_some(values + c, count), slope);
      store_some(to + c, x, count);
      store_some(sums + c, x + load_some(sums + c, count), count);
    });
  }
}

// The weights of all layers as panels: as they are, or transposed.
struct PackedWeights {
  std::vector<float> memory;
  std::vector<Panels> panels;
  std::vector<std::pair<int64_t, int64_t>> tasks;  // (layer, first column of a panel)

  void plan(const Mlp& mlp, bool turned) {
    panels.clear();
    tasks.clear();
    int64_t size = 0;
    for (int64_t l = 0; l < mlp.num_layers; ++l) {
      const MlpLayer& layer = mlp.layers[l];
      const int64_t depth = turned ? layer.inputs : layer.outputs, columns = turned ? layer.outputs : layer.inputs;
      panels.push_back({nullptr, depth, columns});
      for (int64_t c = 0; c < columns; c += Panels::width) tasks.emplace_back(l, c);
      size += Panels::size(depth, columns);
    }
    float* next = aligned_room(size, &memory);
    for (Panels& p : panels) {
      p.data = next;
      next += Panels::size(p.depth, p.columns);
    }
  }
  void pack(const Mlp& mlp, bool turned, size_t task) const {
    const auto [l, c] = tasks[task];
    const Matrix weight{mlp.layers[l].weight, mlp.layers[l].inputs, 1};
    panels[l].pack(turned ? transposed(weight) : weight, c, std::min(c + Panels::width, panels[l].columns));
  }
};

// Kept from call to call, by each thread that calls: fresh memory costs a fault for every page.
struct MlpScratch {
  struct Thread {
    GemmScratch gemm;
    std::vector<float> values[2];  // of a tile, after this layer and the one before
  };
  PackedWeights weights;
  std::vector<Thread> threads;
  std::vector<float> gradients, sums;

  void prepare(const Mlp& mlp, bool turned, int64_t num_threads) {
    weights.plan(mlp, turned);
    if (static_cast<int64_t>(threads.size()) < num_threads) threads.resize(num_threads);
  }
};

// The length of a part, if as few parts as possible, none of more than `most`, are made of whole units.
inline int64_t even_part(int64_t length, int64_t most, int64_t unit) {
  return parts_of(parts_of(length, parts_of(length, most)), unit) * unit;
}

inline void mlp_forward(const Mlp& mlp, int64_t num_threads, MlpScratch* scratch) {
  const int64_t tile = mlp.tile(), tiles = parts_of(mlp.batch, tile);
  scratch->prepare(mlp, true, num_threads);
  const PackedWeights& weights = scratch->weights;
#pragma omp parallel num_threads(num_threads)
  {
    MlpScratch::Thread& own = scratch->threads[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 4)
    for (size_t task = 0; task < weights.tasks.size(); ++task) weights.pack(mlp, true, task);
#pragma omp for schedule(dynamic, 1)
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = t * tile, rows = std::min(tile, mlp.batch - first);
      const float* from = mlp.input + first * mlp.layers[0].inputs;
      for (int64_t l = 0; l < mlp.num_layers; ++l) {
        const MlpLayer& layer = mlp.layers[l];
        float* to = layer.values ? layer.values + first * layer.outputs
                                 : aligned_room(kMlpTile * layer.outputs, &own.values[l % 2]);
        multiply_packed(rows, {from, layer.inputs, 1}, weights.panels[l], to, layer.outputs, false);
        finish_rows(to, rows, layer.outputs, layer.bias, mlp.slopes[l]);
        from = to;
      }
    }
  }
}

// From the gradient of the last layer's values to those of the input (null if nobody needs it) and of the parameters.
inline void mlp_backward(const Mlp& mlp, const float* gradient, float* input_gradient, const MlpGradients* to,
                         int64_t num_threads, MlpScratch* scratch) {
  const int64_t tile = mlp.tile(), tiles = parts_of(mlp.batch, tile), last = mlp.num_layers - 1;
  scratch->prepare(mlp, false, num_threads);
  const PackedWeights& weights = scratch->weights;
  // Of each layer, before its activation: the gradient (B, outputs), and its sums (tiles, outputs).
  std::vector<int64_t> column(mlp.num_layers + 1, 0);
  for (int64_t l = 0; l <= last; ++l) column[l + 1] = column[l] + mlp.layers[l].outputs;
  float* gradients = aligned_room(mlp.batch * column.back(), &scratch->gradients);
  float* sums = aligned_room(tiles * column.back(), &scratch->sums);
  const auto gradient_of = [&](int64_t l) { return gradients + mlp.batch * column[l]; };
  struct Rectangle {
    int64_t layer, top, left, rows, columns;
  };
  std::vector<Rectangle> rectangles;  // of the gradients of weights
  for (int64_t l = 0; l <= last; ++l) {
    const int64_t outputs = mlp.layers[l].outputs, inputs = mlp.layers[l].inputs;
    const int64_t height = even_part(outputs, kMlpRectangle, kTileRows);
    const int64_t width = even_part(inputs, kMlpRectangle, Panels::width);
    for (int64_t top = 0; to[l].weight && top < outputs; top += height) {
      for (int64_t left = 0; left < inputs; left += width) {
        rectangles.push_back({l, top, left, std::min(height, outputs - top), std::min(width, inputs - left)});
      }
    }
  }
  // The large ones first, so that no thread is left with one at the end.
  std::stable_sort(rectangles.begin(), rectangles.end(), [](const Rectangle& x, const Rectangle& y) {
    return x.rows * x.columns > y.rows * y.columns;
  });
#pragma omp parallel num_threads(num_threads)
  {
    GemmScratch* own = &scratch->threads[omp_get_thread_num()].gemm;
#pragma omp for schedule(dynamic, 4)
    for (size_t task = 0; task < weights.tasks.size(); ++task) weights.pack(mlp, false, task);
#pragma omp for schedule(dynamic, 1)
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = t * tile, rows = std::min(tile, mlp.batch - first);
      const float* from = gradient + first * mlp.layers[last].outputs;
      for (int64_t l = last; l >= 0; --l) {
        const MlpLayer& layer = mlp.layers[l];
        float* own_gradient = gradient_of(l) + first * layer.outputs;
        finish_gradient(from, layer.values + first * layer.outputs, rows, layer.outputs, mlp.slopes[l], own_gradient,
                        sums + t * column.back() + column[l]);
        float* below = l ? gradient_of(l - 1) : input_gradient;
        if (!below) break;
        below += first * layer.inputs;
        multiply_packed(rows, {own_gradient, layer.outputs, 1}, weights.panels[l], below, layer.inputs, false);
        from = below;
      }
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (size_t r = 0; r < rectangles.size(); ++r) {
      const auto [l, top, left, rows, columns] = rectangles[r];
      const int64_t outputs = mlp.layers[l].outputs, inputs = mlp.layers[l].inputs;
      const Matrix a{gradient_of(l) + top, 1, outputs}, b{mlp.input_of(l) + left, inputs, 1};
      matrix_product(rows, columns, mlp.batch, a, b, to[l].weight + top * inputs + left, inputs, false, own);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t l = 0; l <= last; ++l) {
      const int64_t outputs = mlp.layers[l].outputs;
      if (!to[l].bias) continue;
      std::fill_n(to[l].bias, outputs, 0.0f);
      for (int64_t t = 0; t < tiles; ++t) {
        const float* from = sums + t * column.back() + column[l];
        for (int64_t c = 0; c < outputs; ++c) to[l].bias[c] += from[c];
      }
    }
  }
}

}  // namespace mixdim
