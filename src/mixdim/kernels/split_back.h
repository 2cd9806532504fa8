// From the gradients of all that the split form prepared back to those of the weights.
//
// The gradient of anything prepared lies `offset` floats from it.

#pragma once

#include "split_pairs_back.h"

namespace mixdim {

// All gradients to which something is added, or that not every sample has, begin at zero.
void clear_gradients(const Split& split, int64_t offset, int64_t threads) {
  const auto clear = [&](float* values, int64_t count) {
    in_parallel(threads, threads, [&](int64_t t) {
      const int64_t first = count * t / threads;
      std::fill_n(values + offset + first, count * (t + 1) / threads - first, 0.0f);
    });
  };
  clear(split.q, split.columns * split.stride);
  clear(split.gram, split.columns * split.columns);
  clear(split.z, split.batch * split.z_columns);
}

// A product of matrices in columns of the result, so that several threads share what one block asks for.
struct Columns {
  int64_t block, first, count;
  bool of_projection;
};

// The gradients of the Gram matrix from y = x @ gram, and of the projections from lifted = x @ projection.
void weights_of_entries(const Layer& layer, const Split& split, const BlockGradient* to, int64_t offset,
                        int64_t threads) {
  constexpr int64_t kAtOnce = 128;
  const int64_t D = layer.base_dim;
  std::vector<Columns> tasks;
  for (int64_t b = 0; b < layer.num_blocks; ++b) {
    const SplitBlock& own = split.blocks[b];
    if (own.is_one_hot) continue;
    const bool is_projected = own.is_lifted && to[b].projection;
    for (int64_t c = 0; is_projected && c < D; c += kAtOnce) tasks.push_back({b, c, std::min(kAtOnce, D - c), true});
    const int64_t later = split.columns - own.later;
    for (int64_t c = 0; c < later; c += kAtOnce) tasks.push_back({b, c, std::min(kAtOnce, later - c), false});
  }
  in_parallel(tasks.size(), threads, [&](int64_t task) {
    const auto [b, first, count, of_projection] = tasks[task];
    const SplitBlock& own = split.blocks[b];
    const Matrix x = transposed(rows_of(own.x, own.stride));
    if (of_projection) {
      matrix_product(own.width, count, own.entries, x, rows_of(own.lifted + offset + first, split.stride),
                     to[b].projection + first, D, false, scratches(1));
    } else {
      float* gram = split.gram + offset + own.column * split.columns + own.later + first;
      matrix_product(own.width, count, own.entries, x, rows_of(own.y + offset + first, own.y_stride), gram,
                     split.columns, false, scratches(1));
    }
  });
}

// The gradient of the Gram matrix is symmetric: what is left of the diagonal is filled in.
void mirror(float* matrix, int64_t size, int64_t threads) {
  constexpr int64_t kTileSide = 32;
  in_parallel((size + kTileSide - 1) / kTileSide, threads, [&](int64_t tile) {
    const int64_t first = tile * kTileSide, last = std::min(first + kTileSide, size);
    for (int64_t r = 0; r < last; r += kTileSide) {
      for (int64_t i = first; i < last; ++i) {
        for (int64_t j = r; j < std::min(r + kTileSide, i); ++j) matrix[i * size + j] = matrix[j * size + i];
      }
    }
  });
}

// The gradients of the entries' rows, where rows are stored on their own.
void rows_of_entries(const Layer& layer, const Split& split, const BlockGradient* to, int64_t offset, int64_t threads) {
  const auto pieces = pieces_of(layer, split, [](const SplitBlock& own) { return !own.is_one_hot; });
  in_parallel(pieces.size(), threads, [&](int64_t task) {
    const Piece& piece = pieces[task];
    const SplitBlock& own = split.blocks[piece.block];
    float* x = own.x + offset + piece.first * own.stride;
    matrix_product(piece.count, own.width, split.columns - own.later,
                   rows_of(own.y + offset + piece.first * own.y_stride, own.y_stride),
                   transposed(rows_of(split.gram + own.column * split.columns + own.later, split.columns)), x,
                   own.stride, true, scratches(1));
    if (own.is_lifted) {
      matrix_product(piece.count, own.width, layer.base_dim,
                     rows_of(own.lifted + offset + piece.first * split.stride, split.stride),
                     transposed(rows_of(split.q + own.column * split.stride, split.stride)), x, own.stride, true,
                     scratches(1));
    }
    float* values = to[piece.block].values + piece.first * own.width;
    for (int64_t e = 0; e < piece.count; ++e) {
      std::memcpy(values + e * own.width, x + e * own.stride, own.width * sizeof(float));
    }
  });
}

// From the gradient of Q to those of the projections and, where Q has lifted rows, of these rows.
void weights_of_q(const Layer& layer, const Split& split, const Run* runs, const uint32_t* rows,
                  const BlockGradient* to, const float* z_weight_gradient, int64_t offset, int64_t threads) {
  const int64_t D = layer.base_dim;
  in_parallel(layer.num_blocks, threads, [&](int64_t b) {
    const Block& block = layer.blocks[b];
    const SplitBlock& own = split.blocks[b];
    const float* q = split.q + offset + own.column * split.stride;
    const Run& run = runs[b];
    int64_t unique = 0;
    for (int64_t i = run.first; i < run.first + run.count; ++i) {
      if (i > run.first && rows[i] == rows[i - 1]) continue;
      to[b].rows[unique++] = to[b].first_row + rows[i];
    }
    if (!own.is_one_hot) {
      for (int64_t k = 0; to[b].projection && k < own.width; ++k) {
        float* row = to[b].projection + k * D;
        const float* of_z = z_weight_gradient + (own.z_column + k) * D;
        for (int64_t c = 0; c < D; ++c) {
          row[c] = (own.is_lifted ? row[c] : of_z[c]) + q[k * split.stride + c];
        }
      }
      return;
    }
    const float* of_rows = q;
    int64_t stride = split.stride;
    std::vector<float> present, rows_gradient;
    if (block.projection) {
      present.assign(own.width * block.width, 0.0f);  // the rows that occur, among zeros
      for (int64_t u = 0; u < unique; ++u) {
        const int64_t at = (to[b].rows[u] - to[b].first_row) * block.width;
        std::memcpy(&present[at], block.table + at, block.width * sizeof(float));
      }
      matrix_product(block.width, D, own.width, transposed(rows_of(present.data(), block.width)),
                     rows_of(q, split.stride), to[b].projection, D, false, scratches(1));
      rows_gradient.resize(own.width * block.width);
      of_rows = rows_gradient.data();
      stride = block.width;
      matrix_product(own.width, block.width, D, rows_of(q, split.stride), transposed(rows_of(block.projection, D)),
                     rows_gradient.data(), block.width, false, scratches(1));
    }
    for (int64_t u = 0; u < unique; ++u) {
      const int64_t row = to[b].rows[u] - to[b].first_row;
      std::memcpy(to[b].values + u * block.width, of_rows + row * stride, block.width * sizeof(float));
    }
  });
}

}  // namespace mixdim
