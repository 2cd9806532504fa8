// The split form of lookup and dot interaction: for a wide base_dim, where lifting every sample's vectors costs most.
//
// Every block has a few *columns*: one for each of its numbers, or, where it has hardly more rows than numbers, one for
// each of its rows (one-hot). A row's vector is x @ Q_b, with x its entries in those columns and Q_b the block's
// projection, or its lifted rows. So with features put into an order, the product of a row of block a and one of a
// later feature's block b is
//     (x_a @ Q_a) . (x_b @ Q_b) = y_a[columns of b] . x_b    with    y_a = x_a @ G[columns of a, later columns],
// where G = Q @ Q^T is small. y is made once for each row that occurs, not for each sample; that of a one-hot row is a
// row of G, and the product with a one-hot row is one number of y. Products with the dense vector take lifted rows, made
// once for each row that occurs too, or, where a block has few columns, z = dense @ Q_b^T.
//
// A block's *entries* are the rows that occur in the batch, each once, or all its rows. Letters as in native.cpp; W
// columns in all.

#pragma once

#include "gemm.h"
#include "gradient.h"

namespace mixdim {

constexpr int64_t kChunkColumns = 32;  // columns of the dense vectors that are worked on at once
constexpr int64_t kPiece = 1024;  // entries of a block that are one task

// Both structs are laid out by split.py, field by field.
struct SplitBlock {
  int64_t position;       // of its feature in the order
  int64_t column, width;  // its columns
  int64_t stride;         // where the next block's begin: a whole number of vectors later
  int64_t later;          // where the columns of later features begin
  int64_t is_one_hot;
  int64_t is_lifted;     // or else it has columns of z:
  int64_t z_column;
  int64_t has_all_rows;  // whether all its rows are entries
  int64_t is_ready;      // whether x, y and lifted are there already
  int64_t entries;
  int64_t y_stride;
  float* x;              // (entries, stride); null if one-hot
  float* y;              // (entries, W - later)
  float* lifted;         // (entries, D, padded); null if not lifted
};

// How many elements of 4, 2 and 1 vectors a position has: see split_pairs_back.h.
struct Elements {
  int64_t of_four, of_two, of_one;
};

// Which entry of which block a sample has of a feature; block -1 for padding.
struct Place {
  int32_t block;
  uint32_t entry;
};

struct Split {
  const SplitBlock* blocks;       // in the order of the layer's blocks
  const int64_t* order;           // (F,) the features, one-hot ones first
  const int64_t* later;           // (F,) where the columns of features after each position begin
  const Elements* elements;       // (F,)
  const int64_t* element_start;   // (F + 1,) how many elements the positions before have, one-hot ones included
  const int64_t* dense_column;    // (F,) where the product of each with the dense vector goes in the output
  const int32_t* element_column;  // where elements go
  const int32_t* pair_column;     // where products go: of each position with those before it
  int64_t features, hot, batch, base_dim;
  int64_t columns, narrow;  // narrow columns, of features that are not one-hot, are last: zeros before them
  int64_t z_columns, stride;
  float* q;               // (W, stride)
  float* gram;            // (W, W): what is right of the diagonal
  float* z_weight;        // (z_columns, D)
  float* z;               // (B, z_columns)
  Place* places;          // (F, B + 16), by position
  uint32_t* hot_columns;  // (B, one-hot features): the column of each, with padding one that is always zero
  uint32_t* entry_of;     // the entry of each sorted value

  // Where the next feature's begin, of what is (F, B + 16): if that were a power of two, all of a sample's would compete
  // for a few places in the cache.
  int64_t feature_stride() const { return batch + 16; }
  Place& place(int64_t sample, int64_t position) const { return places[position * feature_stride() + sample]; }
  int64_t chunks() const { return stride / kChunkColumns; }
};

// Runs work(task) for all tasks, one thread each.
template <typename Work>
void in_parallel(int64_t tasks, int64_t threads, const Work& work) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) work(task);
}

// One for each thread, of the thread that calls.
inline GemmScratch* scratches(int64_t threads) {
  static thread_local std::vector<GemmScratch> kept;
  if (static_cast<int64_t>(kept.size()) < threads) kept.resize(threads);
  return kept.data();
}

// Some entries of a block.
struct Piece {
  int64_t block, first, count;
};

// The entries of the blocks that are asked for, in pieces, those of wide blocks first.
template <typename Wanted>
std::vector<Piece> pieces_of(const Layer& layer, const Split& split, const Wanted& wanted) {
  std::vector<Piece> pieces;
  for (int64_t b = 0; b < layer.num_blocks; ++b) {
    if (!wanted(split.blocks[b])) continue;
    for (int64_t e = 0; e < split.blocks[b].entries; e += kPiece) {
      pieces.push_back({b, e, std::min(kPiece, split.blocks[b].entries - e)});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [&](const Piece& p, const Piece& q) {
    return split.blocks[p.block].width > split.blocks[q.block].width;
  });
  return pieces;
}

inline Matrix rows_of(const float* data, int64_t stride) { return {data, stride, 1}; }

// Says for each sample and feature which entry it has, from its sorted rows.
void find_places(const Layer& layer, const Split& split, const Run* runs, const uint32_t* rows, const uint32_t* values,
                 int64_t threads) {
  in_parallel(layer.num_features, threads, [&](int64_t position) {
    Place* places = &split.place(0, position);
    for (int64_t s = 0; s < split.batch; ++s) places[s].block = -1;
    const Feature& feature = layer.features[split.order[position]];
    for (int64_t b = feature.first_block; b < feature.first_block + feature.num_blocks; ++b) {
      const Run& run = runs[b];
      uint32_t unique = 0;
      for (int64_t i = run.first; i < run.first + run.count; ++i) {
        unique += i > run.first && rows[i] != rows[i - 1];
        split.entry_of[i] = split.blocks[b].has_all_rows ? rows[i] : unique;
        places[values[i]] = {static_cast<int32_t>(b), split.entry_of[i]};
      }
    }
    for (int64_t s = 0; position < split.hot && s < split.batch; ++s) {
      const Place& place = places[s];
      const int64_t column = place.block < 0 ? split.narrow - kLanes : split.blocks[place.block].column + place.entry;
      split.hot_columns[s * split.hot + position] = static_cast<uint32_t>(column);
    }
  });
}

// Sets the lifted rows of a one-hot block that do not occur to zero: no matter what is in them, they take no part.
void clear_absent_rows(const SplitBlock& own, const Run& run, const uint32_t* rows, float* lifted, int64_t stride) {
  int64_t next = 0;
  for (int64_t i = run.first; i < run.first + run.count; ++i) {
    for (; next < rows[i]; ++next) std::fill_n(lifted + next * stride, stride, 0.0f);
    next = rows[i] + 1;
  }
  for (; next < own.width; ++next) std::fill_n(lifted + next * stride, stride, 0.0f);
}

// Q, its Gram matrix, and what z is made with: all that follows from the weights alone. With runs, for their rows only.
void prepare_weights(const Layer& layer, const Split& split, const Run* runs, const uint32_t* rows, int64_t threads) {
  const int64_t D = layer.base_dim, stride = split.stride;
  in_parallel(layer.num_blocks, threads, [&](int64_t b) {
    const Block& block = layer.blocks[b];
    const SplitBlock& own = split.blocks[b];
    float* q = split.q + own.column * stride;
    std::fill_n(q, own.stride * stride, 0.0f);
    if (own.is_one_hot && block.projection) {
      matrix_product(own.width, D, block.width, rows_of(block.table, block.width), rows_of(block.projection, D), q,
                     stride, false, scratches(1));
    } else if (own.is_one_hot || block.projection) {
      const float* from = own.is_one_hot ? block.table : block.projection;
      for (int64_t r = 0; r < own.width; ++r) std::memcpy(q + r * stride, from + r * D, D * sizeof(float));
    } else {  // at full width the projection is the identity
      for (int64_t r = 0; r < own.width; ++r) q[r * stride + r] = 1.0f;
    }
    if (own.is_one_hot && runs) clear_absent_rows(own, runs[b], rows, q, stride);
    if (!own.is_lifted) {
      for (int64_t r = 0; r < own.width; ++r) {
        std::memcpy(split.z_weight + (own.z_column + r) * D, q + r * stride, D * sizeof(float));
      }
    }
  });
  const int64_t zeros = split.hot ? split.later[split.hot - 1] : split.narrow;
  std::fill_n(split.q + zeros * stride, (split.narrow - zeros) * stride, 0.0f);
  constexpr int64_t kPanel = 96;
  const int64_t W = split.columns, panels = (W + kPanel - 1) / kPanel;
  in_parallel(panels, threads, [&](int64_t task) {
    const int64_t c = (panels - 1 - task) * kPanel, width = std::min(kPanel, W - c);  // the highest first
    matrix_product(c + width, width, D, rows_of(split.q, stride), transposed(rows_of(split.q + c * stride, stride)),
                   split.gram + c, W, false, scratches(1));
  });
}

// x, y and the lifted rows of all entries that are not there yet. An entry's row is that of its first sorted value.
void prepare_entries(const Layer& layer, const Split& split, const Run* runs, const uint32_t* rows, int64_t threads) {
  const int64_t D = layer.base_dim;
  in_parallel(layer.num_blocks, threads, [&](int64_t b) {
    const SplitBlock& own = split.blocks[b];
    if (own.is_one_hot || own.is_ready) return;
    const Block& block = layer.blocks[b];
    const auto copy = [&](int64_t entry, int64_t row) {
      float* to = own.x + entry * own.stride;
      std::memcpy(to, block.table + row * block.width, block.width * sizeof(float));
      std::fill(to + block.width, to + own.stride, 0.0f);
    };
    if (own.has_all_rows) {
      for (int64_t row = 0; row < own.entries; ++row) copy(row, row);
      return;
    }
    const Run& run = runs[b];
    int64_t entry = 0;
    for (int64_t i = run.first; i < run.first + run.count; ++i) {
      if (i + kAhead < run.first + run.count) prefetch(block.table + rows[i + kAhead] * block.width, block.width);
      if (i == run.first || rows[i] != rows[i - 1]) copy(entry++, rows[i]);
    }
  });
  const auto pieces = pieces_of(layer, split, [](const SplitBlock& own) { return !own.is_one_hot && !own.is_ready; });
  in_parallel(pieces.size(), threads, [&](int64_t task) {
    const Piece& piece = pieces[task];
    const SplitBlock& own = split.blocks[piece.block];
    const float* x = own.x + piece.first * own.stride;
    matrix_product(piece.count, split.columns - own.later, own.width, rows_of(x, own.stride),
                   rows_of(split.gram + own.column * split.columns + own.later, split.columns),
                   own.y + piece.first * own.y_stride, own.y_stride, false, scratches(1));
    if (!own.is_lifted) return;
    float* lifted = own.lifted + piece.first * split.stride;
    matrix_product(piece.count, D, own.width, rows_of(x, own.stride), rows_of(split.q + own.column * split.stride, split.stride),
                   lifted, split.stride, false, scratches(1));
    for (int64_t e = 0; e < piece.count; ++e) std::fill(lifted + e * split.stride + D, lifted + (e + 1) * split.stride, 0.0f);
  });
}

}  // namespace mixdim
