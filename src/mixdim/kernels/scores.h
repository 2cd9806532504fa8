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

// Whether both sides have one id for each of as many samples.
inline bool fits(const Side& users, const Side& items) {
  return users.ids->batch == items.ids->batch && fits(*users.layer, *users.ids) && fits(*items.layer, *items.ids);
}

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

inline float dot(const float* x, const float* y, int64_t length) {
  Vector sum = {};
  int64_t c = 0;
  for (; c + kLanes <= length; c += kLanes) sum += load(x + c) * load(y + c);
  float total = add_lanes(sum);
  for (; c < length; ++c) total += x[c] * y[c];
  return total;
}

// out[n] = in[n] @ gram, or in[n] itself where there is no gram.
inline void through(const Padded& gram, const float* const* in, int64_t length, float* const* out, int64_t columns,
                    int64_t count) {
  if (gram.stride) {
    multiply_rows(in, length, gram.data(), gram.stride, out, columns, count, false);
  } else {
    for (int64_t n = 0; n < count; ++n) std::memcpy(out[n], in[n], columns * sizeof(float));
  }
}

// Sorts `count` things by their bucket, stably: order holds them bucket after bucket, from starts on.
struct Buckets {
  std::vector<int64_t> starts;
  std::vector<int32_t> order;

  void fill(const std::vector<int32_t>& bucket_of, int64_t count, int64_t buckets) {
    starts.assign(buckets + 1, 0);
    order.resize(count);
    for (int64_t n = 0; n < count; ++n) {
      if (bucket_of[n] >= 0) ++starts[bucket_of[n] + 1];
    }
    for (int64_t b = 0; b < buckets; ++b) starts[b + 1] += starts[b];
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    for (int64_t n = 0; n < count; ++n) {
      if (bucket_of[n] >= 0) order[next[bucket_of[n]]++] = static_cast<int32_t>(n);
    }
  }
};

constexpr int64_t kScoresAtOnce = 1024;  // samples that are sorted by their pair of blocks

// The scores of `count` samples from `first` on. Returns whether all ids were in range.
inline bool score(const Side& users, const Side& items, const Grams& grams, int64_t first, int64_t count,
                  float* out) {
  std::vector<const float*> user_rows(count), item_rows(count);
  std::vector<int32_t> pair_of(count);
  for (int64_t s = 0; s < count; ++s) {
    int64_t i = 0, j = 0;
    user_rows[s] = users.row(first + s, &i);
    item_rows[s] = items.row(first + s, &j);
    if (i == kBad || j == kBad) return false;
    pair_of[s] = i < 0 || j < 0 ? -1 : static_cast<int32_t>(i * grams.items + j);
    out[first + s] = 0.0f;
    if (pair_of[s] < 0) continue;
    prefetch(user_rows[s], users.layer->blocks[i].width);
    prefetch(item_rows[s], items.layer->blocks[j].width);
  }
  Buckets pairs;
  pairs.fill(pair_of, count, grams.straight.size());
  std::vector<float> pulled(kRowsAtOnce * padded(users.layer->base_dim));
  for (size_t pair = 0; pair < grams.straight.size(); ++pair) {
    const int64_t length = users.layer->blocks[pair / grams.items].width;
    const int64_t width = items.layer->blocks[pair % grams.items].width;
    for (int64_t p = pairs.starts[pair]; p < pairs.starts[pair + 1]; p += kRowsAtOnce) {
      const int64_t found = std::min<int64_t>(kRowsAtOnce, pairs.starts[pair + 1] - p);
      const float* in[kRowsAtOnce];
      float* to[kRowsAtOnce];
      for (int64_t n = 0; n < found; ++n) {
        in[n] = user_rows[pairs.order[p + n]];
        to[n] = &pulled[n * padded(width)];
      }
      through(grams.straight[pair], in, length, to, width, found);
      for (int64_t n = 0; n < found; ++n) {
        out[first + pairs.order[p + n]] = dot(to[n], item_rows[pairs.order[p + n]], width);
      }
    }
  }
  return true;
}

// sums (length, stride) += the outer products of factors[n] * rows[n] and others[n], of N values.
inline void add_outer(float* sums, int64_t stride, int64_t length, int64_t columns, const float* const* rows,
                      const float* factors, const float* const* others, int64_t count, std::vector<float>* scratch) {
  scratch->assign(kRowsAtOnce * stride, 0.0f);
  float factor[kRowsAtOnce] = {};
  const float* row[kRowsAtOnce];
  for (int64_t n = 0; n < kRowsAtOnce; ++n) {
    row[n] = rows[std::min(n, count - 1)];
    if (n >= count) continue;
    factor[n] = factors[n];
    std::memcpy(&(*scratch)[n * stride], others[n], columns * sizeof(float));
  }
  const float* other = scratch->data();
  for (int64_t a = 0; a < length; ++a) {
    const float f0 = factor[0] * row[0][a], f1 = factor[1] * row[1][a];
    const float f2 = factor[2] * row[2][a], f3 = factor[3] * row[3][a];
    float* sum = sums + a * stride;
    for (int64_t c = 0; c < stride; c += kLanes) {
      store(sum + c, load(sum + c) + f0 * load(other + c) + f1 * load(other + stride + c) +
                         f2 * load(other + 2 * stride + c) + f3 * load(other + 3 * stride + c));
    }
  }
}

// The row gradients of one block of one side; of users (gram_gradient is not null) also those of its grams.
inline void scores_back(const Side& mine, const Side& other, const std::vector<Padded>& grams, int64_t items,
                        bool mine_is_user, int64_t b, const Run& run, const uint32_t* rows, const uint32_t* samples,
                        const float* gradient, const BlockGradient& to, float* gram_gradient, int64_t columns) {
  const Block& block = mine.layer->blocks[b];
  const int64_t width = block.width, others = other.layer->num_blocks;
  std::vector<const float*> other_rows(run.count);
  std::vector<int32_t> block_of(run.count);
  for (int64_t n = 0; n < run.count; ++n) {
    int64_t j = 0;
    other_rows[n] = other.row(samples[run.first + n], &j);
    block_of[n] = static_cast<int32_t>(j);
    if (j >= 0) prefetch(other_rows[n], other.layer->blocks[j].width);
  }
  Buckets by_block;
  by_block.fill(block_of, run.count, others);
  static thread_local std::vector<float> pulled;  // kept: fresh memory costs a fault for every page
  pulled.assign(run.count * width, 0.0f);
  std::vector<float> scratch, gram_sum;
  for (int64_t j = 0; j < others; ++j) {
    const int64_t length = other.layer->blocks[j].width, stride = padded(length);
    const Padded& gram = grams[mine_is_user ? b * items + j : j * items + b];
    const bool wants_gram = gram_gradient && gram.stride;
    if (wants_gram) gram_sum.assign(width * stride, 0.0f);
    for (int64_t p = by_block.starts[j]; p < by_block.starts[j + 1]; p += kRowsAtOnce) {
      const int64_t found = std::min<int64_t>(kRowsAtOnce, by_block.starts[j + 1] - p);
      const float *in[kRowsAtOnce], *mine_rows[kRowsAtOnce];
      float *out[kRowsAtOnce], factors[kRowsAtOnce];
      for (int64_t n = 0; n < found; ++n) {
        const int64_t at = by_block.order[p + n];
        in[n] = other_rows[at];
        out[n] = &pulled[at * width];
        mine_rows[n] = block.table + rows[run.first + at] * width;
        factors[n] = gradient[samples[run.first + at]];
      }
      through(gram, in, length, out, width, found);
      if (wants_gram) add_outer(gram_sum.data(), stride, width, length, mine_rows, factors, in, found, &scratch);
    }
    if (!wants_gram) continue;
    float* place = gram_gradient + mine.starts[b] * columns + other.starts[j];
    for (int64_t a = 0; a < width; ++a) {
      std::memcpy(place + a * columns, &gram_sum[a * stride], length * sizeof(float));
    }
  }
  int64_t unique = -1;
  for (int64_t n = 0; n < run.count; ++n) {
    const int64_t i = run.first + n;
    if (n == 0 || rows[i] != rows[i - 1]) {
      ++unique;
      to.rows[unique] = to.first_row + rows[i];
      std::fill_n(to.values + unique * width, width, 0.0f);
    }
    const float scale = gradient[samples[i]];
    for (int64_t k = 0; k < width; ++k) to.values[unique * width + k] += scale * pulled[n * width + k];
  }
}

}  // namespace mixdim
