// Dot products of looked-up vectors of two banded tables, without ever making the vectors.
//
// A user in block i and an item in block j have the product  u P_i (v Q_j)^T = u G_ij v^T  with
// G_ij = P_i Q_j^T, a small matrix of their narrow widths. The grams of all pairs of blocks are the
// blocks of one matrix; two blocks of full width need none.

#pragma once

#include "gradient.h"

namespace mixdim {

struct Side {
  const Layer* layer;  // of one feature
  const Ids* ids;      // (B, 1)
  const int64_t* starts;  // where each block's width begins among the rows or columns of the gram matrix

  const float* row(int64_t sample, int64_t* block) const {
    int64_t row = 0;
    *block = find(*layer, layer->features[0], ids->value(sample), &row);
    return *block < 0 ? nullptr : layer->blocks[*block].table + row * layer->blocks[*block].width;
  }
};

// The grams G_ij, one after the other, and transposed; empty where both blocks have full width.
struct Grams {
  int64_t items;
  std::vector<Padded> straight, transposed;

  Grams(const Side& users, const Side& item_side, const float* matrix, int64_t columns)
      : items(item_side.layer->num_blocks),
        straight(users.layer->num_blocks * items),
        transposed(users.layer->num_blocks * items) {
    std::vector<float> block;
    for (int64_t i = 0; i < users.layer->num_blocks; ++i) {
      for (int64_t j = 0; j < items; ++j) {
        const Block &user = users.layer->blocks[i], &item = item_side.layer->blocks[j];
        if (!user.projection && !item.projection) continue;
        block.resize(user.width * item.width);
        const float* from = matrix + users.starts[i] * columns + item_side.starts[j];
        for (int64_t a = 0; a < user.width; ++a) {
          std::memcpy(&block[a * item.width], from + a * columns, item.width * sizeof(float));
        }
        straight[i * items + j].copy(block.data(), user.width, item.width);
        transposed[i * items + j].copy_transposed(block.data(), user.width, item.width);
      }
    }
  }
};

// out = scale * (row @ gram), or scale * row where there is no gram; `out` has room for a padded row.
inline void through(const Padded& gram, const float* row, int64_t length, int64_t columns, float* out) {
  if (gram.stride == 0) {
    std::memcpy(out, row, length * sizeof(float));
  } else {
    multiply<1>(&row, length, gram.data(), gram.stride, &out, columns, false);
  }
}

inline float dot(const float* x, const float* y, int64_t length) {
  Vector sum = {};
  int64_t c = 0;
  for (; c + kLanes <= length; c += kLanes) sum += load(x + c) * load(y + c);
  float total = add_lanes(sum);
  for (; c < length; ++c) total += x[c] * y[c];
  return total;
}

// The row gradients of one block of one side; of users also those of the grams in its rows.
inline void scores_back(const Side& mine, const Side& other, const std::vector<Padded>& grams, bool mine_is_user,
                        int64_t b, const Run& run, const uint32_t* rows, const uint32_t* samples,
                        const float* gradient, const BlockGradient& to, float* gram_gradient, int64_t columns) {
  const Block& block = mine.layer->blocks[b];
  const int64_t width = block.width, others = other.layer->num_blocks;
  std::vector<float> pulled(padded(mine.layer->base_dim));
  std::vector<Padded> gram_sums(gram_gradient ? others : 0);
  int64_t unique = -1;
  for (int64_t i = run.first; i < run.first + run.count; ++i) {
    if (i == run.first || rows[i] != rows[i - 1]) {
      ++unique;
      to.rows[unique] = to.first_row + rows[i];
      std::fill_n(to.values + unique * width, width, 0.0f);
    }
    const float scale = gradient[samples[i]];
    int64_t j = 0;
    const float* other_row = other.row(samples[i], &j);
    if (!other_row) continue;
    const Block& other_block = other.layer->blocks[j];
    const int64_t pair = mine_is_user ? b * others + j : j * mine.layer->num_blocks + b;
    through(grams[pair], other_row, other_block.width, width, pulled.data());
    float* value = to.values + unique * width;
    for (int64_t k = 0; k < width; ++k) value[k] += scale * pulled[k];
    if (!gram_gradient || grams[pair].stride == 0) continue;
    Padded& gram_sum = gram_sums[j];
    if (gram_sum.stride == 0) {
      gram_sum.stride = padded(other_block.width);
      gram_sum.values.assign(width * gram_sum.stride, 0.0f);
    }
    const float* row = block.table + rows[i] * width;
    for (int64_t a = 0; a < width; ++a) {
      const float factor = scale * row[a];
      float* sums = &gram_sum.values[a * gram_sum.stride];
      int64_t c = 0;
      for (; c + kLanes <= other_block.width; c += kLanes) store(sums + c, load(sums + c) + factor * load(other_row + c));
      for (; c < other_block.width; ++c) sums[c] += factor * other_row[c];
    }
  }
  for (int64_t j = 0; j < static_cast<int64_t>(gram_sums.size()); ++j) {
    if (gram_sums[j].stride == 0) continue;
    float* out = gram_gradient + mine.starts[b] * columns + other.starts[j];
    for (int64_t a = 0; a < width; ++a) {
      std::memcpy(out + a * columns, &gram_sums[j].values[a * gram_sums[j].stride],
                  other.layer->blocks[j].width * sizeof(float));
    }
  }
}

}  // namespace mixdim
