// Eight floats at a time, and small dense products made of them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mixdim {

typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));  // eight floats, at any address
constexpr int64_t kLanes = 8;
constexpr int64_t kTile = 48;   // samples that are looked up together, feature by feature
constexpr int kRowsAtOnce = 4;  // rows that share every load of a projection

// GCC takes a function that does nothing but prefetch for one that does nothing, and leaves out the calls, unless it is
// put in their place before it looks.
#define PREFETCH inline __attribute__((always_inline)) void

inline int64_t padded(int64_t length) { return (length + kLanes - 1) / kLanes * kLanes; }
inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

inline void store_some(float* to, Vector value, int64_t count) {
  if (count >= kLanes) {
    store(to, value);
  } else {
    std::memcpy(to, &value, count * sizeof(float));
  }
}

inline Vector load_some(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  Vector value = {};
  std::memcpy(&value, from, count * sizeof(float));
  return value;
}

inline float add_lanes(Vector v) {
  return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

// A matrix with padded rows, so that loads need no special case at their end.
struct Padded {
  int64_t stride = 0;
  std::vector<float> values;

  void copy(const float* matrix, int64_t rows, int64_t columns) {
    stride = padded(columns);
    values.assign(rows * stride, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(&values[r * stride], matrix + r * columns, columns * sizeof(float));
    }
  }
  void copy_transposed(const float* matrix, int64_t rows, int64_t columns) {
    stride = padded(rows);
    values.assign(columns * stride, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) values[c * stride + r] = matrix[r * columns + c];
    }
  }
  const float* data() const { return values.data(); }
};

// out[n] (+)= in[n] @ matrix for N rows: in[n] has `length` floats, out[n] takes the first `columns`.
template <int N>
void multiply(const float* const* in, int64_t length, const float* matrix, int64_t stride, float* const* out,
              int64_t columns, bool accumulate) {
  int64_t c = 0;
  const int64_t width = padded(columns);
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) {
    Vector low[N] = {}, high[N] = {};
    for (int64_t k = 0; k < length; ++k) {
      const Vector first = load(matrix + k * stride + c), second = load(matrix + k * stride + c + kLanes);
      for (int n = 0; n < N; ++n) {
        low[n] += in[n][k] * first;
        high[n] += in[n][k] * second;
      }
    }
    for (int n = 0; n < N; ++n) {
      float* to = out[n] + c;
      if (accumulate) {
        low[n] += load_some(to, columns - c);
        if (columns > c + kLanes) high[n] += load_some(to + kLanes, columns - c - kLanes);
      }
      store_some(to, low[n], columns - c);
      if (columns > c + kLanes) store_some(to + kLanes, high[n], columns - c - kLanes);
    }
  }
  if (c < width) {
    Vector sum[N] = {};
    for (int64_t k = 0; k < length; ++k) {
      const Vector row = load(matrix + k * stride + c);
      for (int n = 0; n < N; ++n) sum[n] += in[n][k] * row;
    }
    for (int n = 0; n < N; ++n) {
      if (accumulate) sum[n] += load_some(out[n] + c, columns - c);
      store_some(out[n] + c, sum[n], columns - c);
    }
  }
}

void multiply_rows(const float* const* in, int64_t length, const float* matrix, int64_t stride,
                   float* const* out, int64_t columns, int64_t count, bool accumulate) {
  int64_t n = 0;
  for (; n + kRowsAtOnce <= count; n += kRowsAtOnce) {
    multiply<kRowsAtOnce>(in + n, length, matrix, stride, out + n, columns, accumulate);
  }
  switch (count - n) {
    case 3: return multiply<3>(in + n, length, matrix, stride, out + n, columns, accumulate);
    case 2: return multiply<2>(in + n, length, matrix, stride, out + n, columns, accumulate);
    case 1: return multiply<1>(in + n, length, matrix, stride, out + n, columns, accumulate);
  }
}

// to[c][r] = rows[r][c] for eight rows and eight columns, the rows of `to` being `stride` apart.
inline void transpose_8_by_8(const float* const* rows, float* to, int64_t stride) {
  typedef int32_t Lanes __attribute__((vector_size(32)));
  const auto mix = [](Vector x, Vector y, Lanes lanes) { return __builtin_shuffle(x, y, lanes); };
  Vector v[8], w[8];
  for (int r = 0; r < 8; ++r) v[r] = load(rows[r]);
  for (int r = 0; r < 8; r += 2) {
    w[r] = mix(v[r], v[r + 1], Lanes{0, 8, 1, 9, 4, 12, 5, 13});
    w[r + 1] = mix(v[r], v[r + 1], Lanes{2, 10, 3, 11, 6, 14, 7, 15});
  }
  for (int r = 0; r < 8; r += 4) {
    for (int half = 0; half < 2; ++half) {
      v[r + 2 * half] = mix(w[r + half], w[r + 2 + half], Lanes{0, 1, 8, 9, 4, 5, 12, 13});
      v[r + 2 * half + 1] = mix(w[r + half], w[r + 2 + half], Lanes{2, 3, 10, 11, 6, 7, 14, 15});
    }
  }
  for (int c = 0; c < 4; ++c) {
    store(to + c * stride, mix(v[c], v[c + 4], Lanes{0, 1, 2, 3, 8, 9, 10, 11}));
    store(to + (c + 4) * stride, mix(v[c], v[c + 4], Lanes{4, 5, 6, 7, 12, 13, 14, 15}));
  }
}

}  // namespace mixdim
