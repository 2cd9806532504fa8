// Products of dense matrices whose sums have one order.
//
// The terms of an element are added in ascending order within each block of kDepthBlock terms, and the sums of the
// blocks in ascending order: neither threads, nor the tile an element lies in, nor other sizes change a bit of it.
// Tiles of a few rows and vectors of columns stay in registers; b is packed into panels as wide as a tile, a is read
// as it is.

#pragma once

#include "vectors.h"

namespace mixdim {

// Element (i, j) is data[i * row_stride + j * column_stride]; one of the strides is 1, unless there is one row or
// column only.
struct Matrix {
  const float* data;
  int64_t row_stride, column_stride;

  const float* at(int64_t i, int64_t j) const { return data + i * row_stride + j * column_stride; }
  Matrix from(int64_t i, int64_t j) const { return {at(i, j), row_stride, column_stride}; }
};

inline Matrix transposed(Matrix m) { return {m.data, m.column_stride, m.row_stride}; }

// What one thread packs, kept from call to call.
struct GemmScratch {
  std::vector<float> panels, turned;
};

#ifdef __AVX__
constexpr int kPanelVectors = 2;  // a tile takes 12 of 16 registers
#else
constexpr int kPanelVectors = 1;  // a vector takes two of them
#endif
constexpr int kTileRows = 6;
constexpr int kFlatRows = 2, kFlatVectors = 4;    // so few rows take wider panels, to have enough sums at a time
constexpr int64_t kFewRows = 2 * kTileRows + 4;   // that read a panel too seldom to pack it
constexpr int64_t kDepthBlock = 256;              // a panel of so many rows stays in the first cache
constexpr int64_t kDepthGroup = 4 * kDepthBlock;  // rows of b that are packed before the next rows of a are read
constexpr int64_t kRowBlock = 32 * kTileRows;     // rows of a that stay in the second cache
constexpr int64_t kColumnBlock = 1024;            // columns of b whose panels stay in the third
constexpr int64_t kLongDepth = 32;                // terms that take longer than to fetch where their sum goes
constexpr int64_t kSmall = 6144;                  // floats that leave room for others in the first cache

inline int64_t parts_of(int64_t length, int64_t part) { return (length + part - 1) / part; }

inline float* aligned_room(int64_t count, std::vector<float>* memory) {
  constexpr int64_t line = 16;
  if (static_cast<int64_t>(memory->size()) < count + line) memory->resize(count + line);
  float* start = memory->data();
  return start + (-(reinterpret_cast<uintptr_t>(start) / sizeof(float)) & (line - 1));
}

// to[k][c] = b[k][c] for `width` columns; the rows of a panel are `step` apart and end with zeros.
inline void pack_panel(Matrix b, int64_t depth, int64_t width, int64_t step, float* to) {
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t c = 0; c < whole; c += kLanes) {
    int64_t k = 0;
    if (b.column_stride == 1) {
      for (; k < depth; ++k) store(to + k * step + c, load(b.at(k, c)));
    } else if (b.row_stride == 1) {
      for (; k + kLanes <= depth; k += kLanes) {
        const float* corner[kLanes];
        for (int64_t n = 0; n < kLanes; ++n) corner[n] = b.at(k, c + n);
        transpose_8_by_8(corner, to + k * step + c, step);
      }
    }
    for (; k < depth; ++k) {
      for (int64_t n = c; n < c + kLanes; ++n) to[k * step + n] = *b.at(k, n);
    }
  }
  if (whole == step) return;
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t c = whole; c < width; ++c) to[k * step + c] = *b.at(k, c);
    for (int64_t c = width; c < step; ++c) to[k * step + c] = 0.0f;
  }
}

// R rows and V vectors of columns of the result.
template <int R, int V>
void multiply_tile(int64_t depth, Matrix a, const float* b, int64_t b_step, float* out, int64_t out_stride,
                   bool accumulate) {
  Vector sum[R][V];
  const float* row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    row[r] = a.at(r, 0);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = Vector{};
    if (depth < kLongDepth) continue;
    __builtin_prefetch(out + r * out_stride, 1);
    __builtin_prefetch(out + r * out_stride + V * kLanes - 1, 1);
  }
  for (int64_t k = 0; k < depth; ++k, b += b_step) {
    Vector right[V];
    for (int v = 0; v < V; ++v) right[v] = load(b + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const float left = row[r][k * a.column_stride];
      for (int v = 0; v < V; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r, out += out_stride) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      store(out + v * kLanes, accumulate ? sum[r][v] + load(out + v * kLanes) : sum[r][v]);
    }
  }
}

using MultiplyTile = decltype(&multiply_tile<1, 1>);

template <int V>
MultiplyTile tile_of_rows(int64_t rows) {
  static_assert(kTileRows == 6, "a case for every number of rows");
  switch (rows) {
    case 1: return multiply_tile<1, V>;
    case 2: return multiply_tile<2, V>;
    case 3: return multiply_tile<3, V>;
    case 4: return multiply_tile<4, V>;
    case 5: return multiply_tile<5, V>;
    default: return multiply_tile<6, V>;
  }
}

inline MultiplyTile tile_of(int64_t rows, int64_t columns) {
  if (columns <= kLanes) return tile_of_rows<1>(rows);
  if (columns <= kPanelVectors * kLanes) return tile_of_rows<kPanelVectors>(rows);
  return rows == 1 ? multiply_tile<1, kFlatVectors> : multiply_tile<kFlatRows, kFlatVectors>;
}

// All rows of a times one panel, of which the first `columns` are in the result.
inline void multiply_panel(int64_t rows, int64_t depth, Matrix a, const float* b, int64_t b_step, int64_t panel,
                           int64_t columns, float* out, int64_t out_stride, bool accumulate) {
  constexpr int64_t most = kFlatVectors * kLanes;
  float spare[kTileRows * most];
  for (int64_t i = 0; i < rows; i += kTileRows, out += kTileRows * out_stride) {
    const int64_t height = std::min<int64_t>(kTileRows, rows - i);
    if (columns == panel) {
      tile_of(height, panel)(depth, a.from(i, 0), b, b_step, out, out_stride, accumulate);
      continue;
    }
    for (int64_t r = 0; accumulate && r < height; ++r) {
      for (int64_t c = 0; c < panel; ++c) spare[r * most + c] = c < columns ? out[r * out_stride + c] : 0.0f;
    }
    tile_of(height, columns)(depth, a.from(i, 0), b, b_step, spare, most, accumulate);
    for (int64_t r = 0; r < height; ++r) std::memcpy(out + r * out_stride, spare + r * most, columns * sizeof(float));
  }
}

// A matrix (depth x columns) as panels: those of the first kDepthBlock rows, then those of the next.
struct Panels {
  float* data;
  int64_t depth, columns;

  static constexpr int64_t width = kPanelVectors * kLanes;
  static int64_t size(int64_t depth, int64_t columns) { return parts_of(columns, width) * width * depth; }
  float* at(int64_t k, int64_t c) const {
    return data + k * parts_of(columns, width) * width + c * std::min(kDepthBlock, depth - k);
  }
  // Packs the panels from column `first` to `end`.
  void pack(Matrix b, int64_t first, int64_t end) const {
    const int64_t step = b.column_stride == 1 ? kLanes : kDepthBlock;  // so that lines of b are read once
    for (int64_t k = 0; k < depth; k += step) {
      const int64_t block = k / kDepthBlock * kDepthBlock;
      for (int64_t c = first; c < end; c += width) {
        pack_panel(b.from(k, c), std::min(step, depth - k), std::min(width, columns - c), width,
                   at(block, c) + (k - block) * width);
      }
    }
  }
};

// out (rows x columns) (+)= a @ b.
inline void multiply_packed(int64_t rows, Matrix a, const Panels& b, float* out, int64_t out_stride, bool accumulate) {
  // If all of b stays in the first cache, the result is written row by row.
  const int64_t block = Panels::size(b.depth, b.columns) <= kSmall ? kTileRows : kRowBlock;
  for (int64_t top = 0; top < rows; top += block) {
    for (int64_t k = 0; k < b.depth; k += kDepthBlock) {
      for (int64_t c = 0; c < b.columns; c += Panels::width) {
        multiply_panel(std::min(block, rows - top), std::min(kDepthBlock, b.depth - k), a.from(top, k), b.at(k, c),
                       Panels::width, Panels::width, std::min(Panels::width, b.columns - c),
                       out + top * out_stride + c, out_stride, accumulate || k > 0);
      }
    }
  }
}

// The same for few rows: every panel is read as it is, if it can be, or packed just before.
inline void multiply_few_rows(int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, float* out,
                              int64_t out_stride, bool accumulate, GemmScratch* scratch) {
  const int64_t panel = (rows <= kFlatRows ? kFlatVectors : kPanelVectors) * kLanes;
  float* packed = aligned_room(panel * kDepthBlock, &scratch->panels);
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t block_depth = std::min(kDepthBlock, depth - k);
    for (int64_t c = 0; c < columns; c += panel) {
      const int64_t width = std::min(panel, columns - c);
      const bool as_it_is = b.column_stride == 1 && width == panel;
      if (!as_it_is) pack_panel(b.from(k, c), block_depth, width, panel, packed);
      multiply_panel(rows, block_depth, a.from(0, k), as_it_is ? b.at(k, c) : packed,
                     as_it_is ? b.row_stride : panel, panel, width, out + c, out_stride, accumulate || k > 0);
    }
  }
}

// out (rows x columns, rows `out_stride` apart) = a (rows x depth) @ b (depth x columns), added to what is there if
// `accumulate`. One thread; any size may be 0.
inline void matrix_product(int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, float* out,
                           int64_t out_stride, bool accumulate, GemmScratch* scratch) {
  if (depth == 0 && !accumulate) {
    for (int64_t i = 0; i < rows; ++i) std::fill_n(out + i * out_stride, columns, 0.0f);
  }
  if (depth == 0 || rows == 0) return;
  if (columns < rows && (columns <= kFlatRows || (columns <= kFewRows && a.row_stride == 1))) {
    // Most lanes would stay empty, or most of the time go into packing: turn the result.
    std::vector<float>& turned = scratch->turned;
    turned.resize(std::max<size_t>(turned.size(), rows * columns));
    const auto each = [&](const auto& copy) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) copy(&turned[j * rows + i], out + i * out_stride + j);
      }
    };
    if (accumulate) each([](float* mine, const float* theirs) { *mine = *theirs; });
    multiply_few_rows(columns, rows, depth, transposed(b), transposed(a), turned.data(), rows, accumulate, scratch);
    return each([](const float* mine, float* theirs) { *theirs = *mine; });
  }
  if (rows <= kFewRows) {
    return multiply_few_rows(rows, columns, depth, a, b, out, out_stride, accumulate, scratch);
  }
  for (int64_t left = 0; left < columns; left += kColumnBlock) {
    for (int64_t k = 0; k < depth; k += kDepthGroup) {
      Panels panels{nullptr, std::min(kDepthGroup, depth - k), std::min(kColumnBlock, columns - left)};
      panels.data = aligned_room(Panels::size(panels.depth, panels.columns), &scratch->panels);
      panels.pack(b.from(k, left), 0, panels.columns);
      multiply_packed(rows, a.from(0, k), panels, out + left, out_stride, accumulate || k > 0);
    }
  }
}

// The same bits by several threads, which share out the result. `scratch` points to one for each thread.
inline void matrix_product_in_parallel(int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, float* out,
                                       int64_t out_stride, bool accumulate, GemmScratch* scratch, int64_t threads) {
  // Rectangles that are nearly squares: so the threads pack the least.
  const auto edges = [&](int64_t across) { return rows * across / threads + columns / across; };
  int64_t across = 1;
  for (int64_t n = 2; n <= threads; ++n) {
    if (threads % n == 0 && edges(n) < edges(across)) across = n;
  }
  const int64_t height = parts_of(parts_of(rows, kTileRows), threads / across) * kTileRows;
  const int64_t width = parts_of(parts_of(columns, 2 * kLanes), across) * 2 * kLanes;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t top = std::min(rows, t / across * height), left = std::min(columns, t % across * width);
    matrix_product(std::min(height, rows - top), std::min(width, columns - left), depth, a.from(top, 0),
                   b.from(0, left), out + top * out_stride + left, out_stride, accumulate, scratch + t);
  }
}

}  // namespace mixdim
