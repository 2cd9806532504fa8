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

// Slot i with the slots before it, row after row: 1 with 0, 2 with 0 and 1, ...
inline void interact(const Interaction& from, int64_t sample, float* out, std::vector<float>* scratch) {
  const int64_t slots = from.slots(), base_dim = from.base_dim, stride = padded(slots);
  scratch->assign(base_dim * stride + kRowsAtOnce * stride, 0.0f);
  float* transposed = scratch->data();  // (D, S), padded
  float* products = transposed + base_dim * stride;
  for (int64_t i = 0; i < slots; ++i) {
    const float* slot = from.slot(sample, i);
    for (int64_t c = 0; c < base_dim; ++c) transposed[c * stride + i] = slot[c];
  }
  std::memcpy(out, from.slot(sample, 0), base_dim * sizeof(float));
  out += base_dim;
  for (int64_t i = 1; i < slots; i += kRowsAtOnce) {
    const int64_t count = std::min<int64_t>(kRowsAtOnce, slots - i);
    const float* in[kRowsAtOnce];
    float* to[kRowsAtOnce];
    for (int64_t n = 0; n < count; ++n) {
      in[n] = from.slot(sample, i + n);
      to[n] = products + n * stride;
    }
    multiply_rows(in, base_dim, transposed, stride, to, i + count - 1, count, false);
    for (int64_t n = 0; n < count; ++n) {
      std::memcpy(out, to[n], (i + n) * sizeof(float));
      out += i + n;
    }
  }
}

inline void interact_back(const Interaction& from, int64_t sample, const float* gradient, float* dense,
                          float* vectors, std::vector<float>* scratch) {
  const int64_t slots = from.slots(), base_dim = from.base_dim, stride = padded(base_dim);
  scratch->assign(slots * stride + slots * slots, 0.0f);
  float* values = scratch->data();           // (S, D), padded
  float* pairs = values + slots * stride;    // (S, S), symmetric, 0 on the diagonal
  for (int64_t i = 0; i < slots; ++i) {
    std::memcpy(values + i * stride, from.slot(sample, i), base_dim * sizeof(float));
  }
  const float* pair = gradient + base_dim;
  for (int64_t i = 1; i < slots; ++i) {
    for (int64_t j = 0; j < i; ++j) pairs[i * slots + j] = pairs[j * slots + i] = *pair++;
  }
  std::vector<const float*> in(slots);
  std::vector<float*> to(slots);
  for (int64_t i = 0; i < slots; ++i) {
    in[i] = pairs + i * slots;
    to[i] = i == 0 ? dense + sample * base_dim : vectors + (sample * from.num_features + i - 1) * base_dim;
  }
  multiply_rows(in.data(), slots, values, stride, to.data(), base_dim, slots, false);
  for (int64_t c = 0; c < base_dim; ++c) to[0][c] += gradient[c];
}

}  // namespace mixdim
