// Rows of codes of 8 or 4 bits, decoded: see mixdim.storages.rounding. Memory traffic is what limits a lookup in a
// large table, so codes are read as they are stored, once, and those of later rows are on their way meanwhile.

#pragma once

#include <algorithm>
#include <cstdint>

namespace mixdim {

// Codes and scales of several blocks, each with its first code and first scale.
struct Rounded {
  const uint8_t* codes;    // int8, or code + 8 in half a byte, the first in the lower half
  const uint16_t* scales;  // float16, finite and not negative
  const int64_t* starts;   // (blocks, 2)
  int64_t num_codes, num_scales, num_blocks;
  int64_t dim, most_rows;

  // Whether all that a row reads is there. `row` and `block` come from outside; 2^group values share a scale.
  bool has(int64_t block, int64_t row, int group) const {
    if (block < 0 || block >= num_blocks || row < 0 || row >= most_rows) return false;
    const int64_t code = starts[2 * block], scale = starts[2 * block + 1], last = (row + 1) * dim - 1;
    return code >= 0 && scale >= 0 && last < num_codes - code && last >> group < num_scales - scale;
  }
};

template <int Bits>
constexpr int kGroup = Bits == 8 ? 6 : 5;  // 64 values share a scale, or 32

inline float float_of_half(uint16_t half) {
  const uint32_t exponent = half >> 10, fraction = half & 1023;
  if (!exponent) return static_cast<float>(fraction) * 0x1p-24f;
  const uint32_t bits = (exponent + 112) << 23 | fraction << 13;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline void decode_8(const uint8_t* __restrict from, int64_t place, int64_t count, float scale, float* __restrict to) {
  const int8_t* __restrict codes = reinterpret_cast<const int8_t*>(from) + place;
  for (int64_t n = 0; n < count; ++n) to[n] = static_cast<float>(codes[n]) * scale;
}

inline void decode_4(const uint8_t* __restrict from, int64_t place, int64_t count, float scale, float* __restrict to) {
  int64_t n = 0;
  if (place % 2 && count) to[n++] = static_cast<float>((from[place / 2] >> 4) - 8) * scale;
  const uint8_t* pairs = from + (place + n) / 2;
  for (; n + 1 < count; n += 2, ++pairs) {
    to[n] = static_cast<float>((*pairs & 15) - 8) * scale;
    to[n + 1] = static_cast<float>((*pairs >> 4) - 8) * scale;
  }
  if (n < count) to[n] = static_cast<float>((*pairs & 15) - 8) * scale;
}

// A row that is there: -> (dim,).
template <int Bits>
inline void decode_row(const Rounded& rounded, int64_t block, int64_t row, float* to) {
  constexpr int group = kGroup<Bits>;
  const int64_t first = rounded.starts[2 * block];
  const uint16_t* scales = rounded.scales + rounded.starts[2 * block + 1];
  const int64_t end = (row + 1) * rounded.dim;
  for (int64_t place = row * rounded.dim; place < end;) {
    const int64_t number = place >> group, next = std::min(end, (number + 1) << group);
    const float scale = float_of_half(scales[number]);
    if (Bits == 8) {
      decode_8(rounded.codes, first + place, next - place, scale, to);
    } else {
      decode_4(rounded.codes, first + place, next - place, scale, to);
    }
    to += next - place;
    place = next;
  }
}

template <int Bits>
inline void prefetch_row(const Rounded& rounded, int64_t block, int64_t row) {
  const int64_t place = row * rounded.dim;
  const uint8_t* codes = rounded.codes + (rounded.starts[2 * block] + place) * Bits / 8;
  for (int64_t n = 0; n < (rounded.dim * Bits + 7) / 8; n += 64) __builtin_prefetch(codes + n);
  __builtin_prefetch(rounded.scales + rounded.starts[2 * block + 1] + (place >> kGroup<Bits>));
}

// Decodes rows (count,) to out (count, dim). The block of row i is blocks[i], or `block` if there are no blocks.
// Returns the least i whose row is not there, or `count`.
template <int Bits>
int64_t take_rounded(const Rounded& rounded, const int64_t* rows, int64_t count, const int64_t* blocks, int64_t block,
                     float* out, int64_t threads) {
  constexpr int64_t ahead = 16;
  constexpr int group = kGroup<Bits>;
  int64_t first_bad = count;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(min : first_bad)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t later = std::min(i + ahead, count - 1), of_later = blocks ? blocks[later] : block;
    if (rounded.has(of_later, rows[later], group)) prefetch_row<Bits>(rounded, of_later, rows[later]);
    const int64_t own = blocks ? blocks[i] : block;
    if (rounded.has(own, rows[i], group)) {
      decode_row<Bits>(rounded, own, rows[i], out + i * rounded.dim);
    } else {
      first_bad = std::min(first_bad, i);
    }
  }
  return first_bad;
}

}  // namespace mixdim
