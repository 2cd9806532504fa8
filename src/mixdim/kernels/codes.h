// Rows of codes, decoded: see mixdim.storages.codes. Memory traffic is what limits a lookup in a large table, so codes
// are read as they are stored, once, and those of later rows are on their way meanwhile.
//
// Nothing here is believed: a decoder is made for each call, and only if all rows of its block lie within the tensors.

#pragma once

#include <limits>
#include <optional>

#include "vectors.h"

namespace mixdim {

constexpr int64_t kWidths[] = {8, 6, 5, 4, 3, 2, 1};  // bits of a code; directions of more bits come first
constexpr int64_t kNumWidths = 7;
constexpr int64_t kMostDirections = 1 << 24;

// The tensors that hold the codes of all blocks of a layer. All structs are laid out as rows of int64 by structs.py.
struct CodeTensors {
  const uint8_t* codes;
  int64_t num_bytes;
  const uint16_t* steps;  // float16
  int64_t num_steps;
  const uint16_t* lift;  // float16
  int64_t num_lift;
  const float* levels;  // of all numbers of bits: see mixdim.storages.levels
  int64_t num_levels;
};

constexpr int64_t kNumLevels = 126 + 256;  // those of 8 bits are the last

// Where a block is in them.
struct CodedBlock {
  int64_t block, rows, first_byte, first_step, first_lift;  // the number of the block; first_lift -1: no lift
  int64_t has_mean;
  int64_t directions[kNumWidths];  // how many have so many bits
};

inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  uint32_t bits = exponent == 31 ? 0x7f800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
  float value;
  if (!exponent) {
    value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  bits |= sign;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// At most eight directions, whose codes lie in eight bytes.
struct Chunk {
  int32_t byte, count;      // where its first code begins in a row
  int32_t shift;            // and in that byte
  int32_t bits;             // of all of its codes if these are few and equal, else 0
  int32_t shifts[kLanes];   // of each code
  int32_t masks[kLanes];
  const float* levels[kLanes];
};

class Decoder {
 public:
  int64_t row_bytes = 0, dim = 0, rows = 0;  // dim: numbers of a decoded row, with the one of a mean

  // Nothing where the block would read beyond a tensor, or contradicts itself.
  static std::optional<Decoder> of(const CodedBlock& block, const CodeTensors& from, int64_t base_dim) {
    int64_t directions = 0, bits = 0;
    for (int64_t n = 0; n < kNumWidths; ++n) {
      if (block.directions[n] < 0 || block.directions[n] > kMostDirections) return std::nullopt;
      directions += block.directions[n];
      bits += block.directions[n] * kWidths[n];
    }
    const bool mean = block.has_mean == 1, is_lifted = block.first_lift >= 0;
    Decoder made;
    made.row_bytes = (bits + 7) / 8;
    made.dim = directions + mean;
    made.rows = block.rows;
    if (from.num_levels < kNumLevels || directions < 1 || directions > kMostDirections || (block.has_mean & ~int64_t{1})) return std::nullopt;
    if (block.rows < 0 || !has(from.num_bytes, block.first_byte, block.rows, made.row_bytes)) return std::nullopt;
    if (!has(from.num_steps, block.first_step, directions, 1)) return std::nullopt;
    if (is_lifted && (base_dim < 1 || !has(from.num_lift, block.first_lift, made.dim, base_dim))) return std::nullopt;
    made.codes_ = from.codes + block.first_byte;
    made.end_ = from.codes + from.num_bytes;
    made.has_mean_ = mean;
    made.prepare(block, from);
    if (is_lifted) {
      made.projection_.resize(made.dim * base_dim);
      std::transform(from.lift + block.first_lift, from.lift + block.first_lift + made.dim * base_dim,
                     made.projection_.begin(), float_of_half);
    }
    return made;
  }

  const float* projection() const { return projection_.empty() ? nullptr : projection_.data(); }

  // Decodes a row that is there to dim numbers.
  void decode(int64_t row, float* to) const {
    const uint8_t* codes = codes_ + row * row_bytes;
    const float* steps = steps_.data();
    for (const Chunk& chunk : chunks_) {
      const uint64_t word = load_word(codes + chunk.byte);
      store_some(to, (chunk.bits ? few_levels(chunk, word) : any_levels(chunk, word)) * load(steps), chunk.count);
      to += chunk.count;
      steps += kLanes;
    }
    if (has_mean_) *to = 1.0f;
  }

  PREFETCH prefetch(int64_t row) const {
    const uint8_t *first = codes_ + row * row_bytes, *last = first + row_bytes - 1;
    for (; first < last; first += 64) __builtin_prefetch(first);
    __builtin_prefetch(last);
  }

 private:
  typedef int32_t Numbers __attribute__((vector_size(32)));
  typedef uint32_t Words __attribute__((vector_size(32)));

  static bool has(int64_t length, int64_t first, int64_t count, int64_t each) {
    return first >= 0 && first <= length && count <= (length - first) / each;
  }

  void prepare(const CodedBlock& block, const CodeTensors& from) {
    int64_t bit = 0, direction = 0;
    for (int64_t n = 0; n < kNumWidths; ++n) {
      const int64_t bits = kWidths[n], first_level = (int64_t{1} << std::min<int64_t>(bits, 7)) - 2;
      for (int64_t k = 0; k < block.directions[n]; ++k, ++direction, bit += bits) {
        const int64_t lane = direction % kLanes;
        if (lane == 0) {
          Chunk chunk{};
          chunk.byte = static_cast<int32_t>(bit / 8);
          chunk.shift = static_cast<int32_t>(bit % 8);
          chunk.bits = bits <= 4 ? static_cast<int32_t>(bits) : 0;
          std::fill_n(chunk.levels, kLanes, from.levels);
          chunks_.push_back(chunk);
          steps_.resize(steps_.size() + kLanes, 0.0f);
        }
        Chunk& chunk = chunks_.back();
        if (chunk.bits != bits) chunk.bits = 0;
        chunk.count = static_cast<int32_t>(lane + 1);
        chunk.shifts[lane] = static_cast<int32_t>(bit - 8 * int64_t{chunk.byte});
        chunk.masks[lane] = static_cast<int32_t>((1 << bits) - 1);
        chunk.levels[lane] = from.levels + first_level;
        steps_[direction] = float_of_half(from.steps[block.first_step + direction]);
      }
    }
    for (Chunk& chunk : chunks_) {
      if (!chunk.bits) continue;
      for (int32_t n = 0; n < kLanes; ++n) chunk.shifts[n] = chunk.bits * n;
    }
  }

  // Eight bytes; after the end of all codes, zeros.
  uint64_t load_word(const uint8_t* at) const {
    uint64_t word = 0;
    if (end_ - at >= 8) {
      std::memcpy(&word, at, 8);
    } else {
      std::memcpy(&word, at, end_ - at);
    }
    return word;
  }

  // Of codes of at most 4 bits: their levels are in two vectors.
  static Vector few_levels(const Chunk& chunk, uint64_t word) {
    Words shifts;
    std::memcpy(&shifts, chunk.shifts, sizeof shifts);
    const Words all = Words{} + static_cast<uint32_t>(word >> chunk.shift);
    const Numbers codes = reinterpret_cast<Numbers>(all >> shifts) & chunk.masks[0];
    return chunk.bits == 4 ? __builtin_shuffle(load(chunk.levels[0]), load(chunk.levels[0] + kLanes), codes)
                           : __builtin_shuffle(load(chunk.levels[0]), codes);
  }

  static Vector any_levels(const Chunk& chunk, uint64_t word) {
    Vector found;
    for (int n = 0; n < kLanes; ++n) found[n] = chunk.levels[n][word >> chunk.shifts[n] & chunk.masks[n]];
    return found;
  }

  const uint8_t *codes_ = nullptr, *end_ = nullptr;
  bool has_mean_ = false;
  std::vector<Chunk> chunks_;
  std::vector<float> steps_;       // padded to whole chunks
  std::vector<float> projection_;  // (dim, D), of a block that is lifted
};

// Decodes rows (count,) to out (count, dim). The block of row i is blocks[i], or `block` if there are no blocks.
// Returns the least i whose row is not there, or `count`.
inline int64_t take_coded(const std::vector<std::optional<Decoder>>& decoders, const int64_t* rows, int64_t count,
                          const int64_t* blocks, int64_t block, int64_t dim, float* out, int64_t threads) {
  constexpr int64_t ahead = 16;
  const auto decoder_of = [&](int64_t i) -> const Decoder* {
    const int64_t own = blocks ? blocks[i] : block;
    if (own < 0 || own >= static_cast<int64_t>(decoders.size()) || !decoders[own]) return nullptr;
    const Decoder& found = *decoders[own];
    return rows[i] >= 0 && rows[i] < found.rows ? &found : nullptr;
  };
  int64_t first_bad = count;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(min : first_bad)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t later = std::min(i + ahead, count - 1);
    if (const Decoder* next = decoder_of(later)) next->prefetch(rows[later]);
    if (const Decoder* own = decoder_of(i)) {
      own->decode(rows[i], out + i * dim);
    } else {
      first_bad = std::min(first_bad, i);
    }
  }
  return first_bad;
}

}  // namespace mixdim
