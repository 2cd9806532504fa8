// Rows of codes of 8 or 4 bits, decoded: see mixdim.storages.rounding. Memory traffic is what limits a lookup in a
// large table, so codes are read as they are stored, once, and those of later rows are on their way meanwhile.

#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "vectors.h"

namespace mixdim {

// The codes of the values of a block, one row after the other, and their scales.
struct Codes {
  const uint8_t* codes;    // int8, or code + 8 in half a byte, the first in the lower half
  const uint16_t* scales;  // float16, finite and not negative
  int64_t bits;            // 8 or 4; 0 where there are no codes
};

template <int Bits>
constexpr int kGroup = Bits == 8 ? 6 : 5;  // 64 values share a scale, or 32

inline float float_of_half(uint16_t half) {
  const uint32_t exponent = half >> 10, fraction = half & 1023;
  if (!exponent) return static_cast<float>(fraction) * 0x1p-24f;
  const uint32_t bits = (exponent + 112) << 23 | fraction << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <int Bits>
inline float decode_one(const uint8_t* codes, int64_t place) {
  if (Bits == 8) return static_cast<int8_t>(codes[place]);
  return static_cast<float>((codes[place / 2] >> place % 2 * 4 & 15) - 8);
}

// Eight codes; of four bits, the first at an even place.
template <int Bits>
inline Vector decode_eight(const uint8_t* codes, int64_t place) {
  if (Bits == 8) {
#ifdef __AVX2__  // one instruction, which GCC does not find by itself
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + place));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
    Vector found;
    for (int n = 0; n < kLanes; ++n) found[n] = static_cast<int8_t>(codes[place + n]);
    return found;
#endif
  }
  typedef uint32_t Words __attribute__((vector_size(32)));
  typedef int32_t Numbers __attribute__((vector_size(32)));
  uint32_t word;
  std::memcpy(&word, codes + place / 2, sizeof word);
  const Words halves = (Words{} + word) >> Words{0, 4, 8, 12, 16, 20, 24, 28} & 15;
  return __builtin_convertvector(reinterpret_cast<Numbers>(halves) - 8, Vector);
}

// Values of one scale.
template <int Bits>
inline void decode_group(const uint8_t* codes, int64_t place, int64_t count, float scale, float* to) {
  int64_t n = 0;
  if (Bits == 4 && place % 2 && count) to[n++] = decode_one<Bits>(codes, place) * scale;
  for (; n + kLanes <= count; n += kLanes) store(to + n, decode_eight<Bits>(codes, place + n) * scale);
  for (; n < count; ++n) to[n] = decode_one<Bits>(codes, place + n) * scale;
}

// Values `place` to `place + count` of a block.
template <int Bits>
inline void decode(const uint8_t* codes, const uint16_t* scales, int64_t place, int64_t count, float* to) {
  constexpr int group = kGroup<Bits>;
  for (const int64_t end = place + count; place < end;) {
    const int64_t number = place >> group, next = std::min(end, (number + 1) << group);
    decode_group<Bits>(codes, place, next - place, float_of_half(scales[number]), to);
    to += next - place;
    place = next;
  }
}

inline void decode(const Codes& from, int64_t place, int64_t count, float* to) {
  if (from.bits == 8) {
    decode<8>(from.codes, from.scales, place, count, to);
  } else {
    decode<4>(from.codes, from.scales, place, count, to);
  }
}

PREFETCH prefetch(const Codes& from, int64_t place, int64_t count) {
  const uint8_t *first = from.codes + place * from.bits / 8, *last = from.codes + (place + count - 1) * from.bits / 8;
  for (; first < last; first += 64) __builtin_prefetch(first);
  __builtin_prefetch(last);
  __builtin_prefetch(from.scales + (place >> (from.bits == 8 ? kGroup<8> : kGroup<4>)));
}

// The codes and scales of several blocks of one width, each with the numbers of its first code and first scale.
struct Rounded {
  Codes all;
  const int64_t* starts;  // (blocks, 2)
  int64_t num_codes, num_scales, num_blocks;
  int64_t dim, most_rows;

  // Whether all that a row reads is there. `row` and `block` come from outside.
  bool has(int64_t block, int64_t row) const {
    if (block < 0 || block >= num_blocks || row < 0 || row >= most_rows) return false;
    const int64_t code = starts[2 * block], scale = starts[2 * block + 1], last = (row + 1) * dim - 1;
    const int group = all.bits == 8 ? kGroup<8> : kGroup<4>, codes_a_byte = 8 / all.bits;
    return code >= 0 && code % codes_a_byte == 0 && scale >= 0 && last < num_codes - code &&
           last >> group < num_scales - scale;
  }
  Codes of(int64_t block) const {
    return {all.codes + starts[2 * block] * all.bits / 8, all.scales + starts[2 * block + 1], all.bits};
  }
};

// Decodes rows (count,) to out (count, dim). The block of row i is blocks[i], or `block` if there are no blocks.
// Returns the least i whose row is not there, or `count`.
inline int64_t take_rounded(const Rounded& rounded, const int64_t* rows, int64_t count, const int64_t* blocks,
                            int64_t block, float* out, int64_t threads) {
  constexpr int64_t ahead = 16;
  const int64_t dim = rounded.dim;
  int64_t first_bad = count;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(min : first_bad)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t later = std::min(i + ahead, count - 1), of_later = blocks ? blocks[later] : block;
    if (rounded.has(of_later, rows[later])) prefetch(rounded.of(of_later), rows[later] * dim, dim);
    const int64_t own = blocks ? blocks[i] : block;
    if (rounded.has(own, rows[i])) {
      decode(rounded.of(own), rows[i] * dim, dim, out + i * dim);
    } else {
      first_bad = std::min(first_bad, i);
    }
  }
  return first_bad;
}

}  // namespace mixdim
