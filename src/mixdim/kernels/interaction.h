// DLRM's dot interaction: the dense vector, then the product of every pair of slots.
//
// A sample has S slots of D floats: the dense vector, then its F = S - 1 features.

#pragma once

#include "vectors.h"

namespace mixdim {

struct Interaction {
  const float* dense;    // (B, D)
  const float* vectors;  // (B, F, D)
  int64_t batch, num_features, base_dim;

  int64_t slots() const { return num_features + 1; }
  int64_t columns() const { return base_dim + slots() * num_features / 2; }
  const float* slot(int64_t sample, int64_t i) const {
    return i == 0 ? dense + sample * base_dim : vectors + (sample * num_features + i - 1) * base_dim;
  }
};

// What one thread works with, sample after sample.
struct InteractionScratch {
  std::vector<float> matrix, pairs;
  std::vector<const float*> in;
  std::vector<float*> to;

  explicit InteractionScratch(const Interaction& from)
      : matrix(std::max(from.base_dim * padded(from.slots()), from.slots() * padded(from.base_dim)), 0.0f),
        pairs(from.slots() * padded(from.slots()), 0.0f),
        in(from.slots()),
        to(from.slots()) {}
};

// Slot i with the slots before it, row after row: 1 with 0, 2 with 0 and 1, ...
inline void interact(const Interaction& from, int64_t sample, float* out, InteractionScratch* scratch) {
  const int64_t slots = from.slots(), base_dim = from.base_dim, stride = padded(slots);
  float* transposed = scratch->matrix.data();  // (D, S), padded
  const float** in = scratch->in.data();
  float** to = scratch->to.data();
  for (int64_t i = 0; i < slots; ++i) {
    in[i] = from.slot(sample, i);
    to[i] = scratch->pairs.data() + i * stride;
  }
  const int64_t whole_slots = slots / kLanes * kLanes, whole_dims = base_dim / kLanes * kLanes;
  for (int64_t i = 0; i < whole_slots; i += kLanes) {
    for (int64_t c = 0; c < whole_dims; c += kLanes) {
      const float* corner[kLanes];
      for (int64_t n = 0; n < kLanes; ++n) corner[n] = in[i + n] + c;
      transpose_8_by_8(corner, transposed + c * stride + i, stride);
    }
  }
  for (int64_t i = 0; i < slots; ++i) {
    for (int64_t c = i < whole_slots ? whole_dims : 0; c < base_dim; ++c) transposed[c * stride + i] = in[i][c];
  }
  std::memcpy(out, in[0], base_dim * sizeof(float));
  out += base_dim;
  for (int64_t i = 1; i < slots; i += kRowsAtOnce) {
    const int64_t count = std::min<int64_t>(kRowsAtOnce, slots - i);
    multiply_rows(in + i, base_dim, transposed, stride, to + i, i + count - 1, count, false);
    for (int64_t n = i; n < i + count; ++n) {
      std::memcpy(out, to[n], n * sizeof(float));
      out += n;
    }
  }
}

// With the gradients of all pairs in a symmetric matrix, that of a slot is its row times all slots.
inline void interact_back(const Interaction& from, int64_t sample, const float* gradient, float* dense,
                          float* vectors, InteractionScratch* scratch) {
  const int64_t slots = from.slots(), base_dim = from.base_dim, stride = padded(base_dim);
  float* values = scratch->matrix.data();  // (S, D), padded
  float* pairs = scratch->pairs.data();    // (S, S), 0 on the diagonal
  const float* pair = gradient + base_dim;
  for (int64_t i = 0; i < slots; ++i) {
    std::memcpy(values + i * stride, from.slot(sample, i), base_dim * sizeof(float));
    std::memcpy(pairs + i * slots, pair, i * sizeof(float));
    for (int64_t j = 0; j < i; ++j) pairs[j * slots + i] = pair[j];
    pair += i;
    scratch->in[i] = pairs + i * slots;
    scratch->to[i] = i ? vectors + (sample * from.num_features + i - 1) * base_dim : dense + sample * base_dim;
  }
  float** to = scratch->to.data();
  multiply_rows(scratch->in.data(), slots, values, stride, to, base_dim, slots, false);
  for (int64_t c = 0; c < base_dim; ++c) to[0][c] += gradient[c];
}

}  // namespace mixdim
