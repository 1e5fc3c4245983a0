// Owns how weights lie in memory. GGUF's own blocks and plain floats, repacked without loss: 16 rows stand side by
// side, so that a vector holds the same columns of 8 of them and a sum never crosses lanes.
//
//   group of 16 rows, 32 columns    Q4_0: d[16] halves | 256 bytes of nibbles                   = 288 bytes
//                                   Q4_1: d[16] | m[16] halves | 256 bytes of nibbles           = 320 bytes
//                                   Q8_0: d[16] halves | 512 bytes                              = 544 bytes
//   nibble byte 64j + 4r + i: columns 4j + i (low) and 16 + 4j + i (high) of row r, j < 4
//   byte 64j + 4r + i of Q8_0: column 4j + i of row r, j < 8
//   floats (F32, F16, BF16): column by column the 16 rows' values
#pragma once

#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "simd.h"

namespace midstream {

enum class WeightType : int32_t { kQ4_0 = 0, kQ4_1 = 1, kQ8_0 = 2, kF32 = 3, kF16 = 4, kBF16 = 5 };

constexpr int kGroup = 2 * kLanes;  // rows that lie together: each lane of a vector is one

inline size_t bytes_per_block(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0: return 288;
    case WeightType::kQ4_1: return 320;
    case WeightType::kQ8_0: return 544;
    case WeightType::kF32: return kBlock * kGroup * 4;
    case WeightType::kF16:
    case WeightType::kBF16: return kBlock * kGroup * 2;
  }
  return 0;
}

struct Linear {
  const uint8_t *packed;
  const float *bias;  // [rows], null where there is none
  WeightType type;
  int rows;  // a multiple of 16; the repacking pads with zero rows
  int columns;

  bool takes_floats() const { return type >= WeightType::kF32; }
  size_t bytes_per_group() const { return bytes_per_block(type) * (columns / kBlock); }
};

// The values of one column in 8 of a group's rows: the first (half 0) or the others (half 1).
template <WeightType Type>
inline Floats load_column(const uint8_t *w, int column, int half) {
  const int at = column * kGroup + half * kLanes;
  if constexpr (Type == WeightType::kF32) return load(reinterpret_cast<const float *>(w) + at);
  const uint16_t *halves = reinterpret_cast<const uint16_t *>(w) + at;
  if constexpr (Type == WeightType::kF16) return load_halves(halves);
  return load_bf16(halves);
}

template <WeightType Type>
inline void float_lane(const uint8_t *w, int num_columns, int lane, float *out) {
  for (int column = 0; column < num_columns; column++) {
    float rows[kLanes];
    store(rows, load_column<Type>(w, column, lane / kLanes));
    out[column] = rows[lane % kLanes];
  }
}

inline void quantised_lane(WeightType type, const uint8_t *w, int num_columns, int lane, float *out) {
  const size_t stride = bytes_per_block(type);
  for (int block = 0; block < num_columns / kBlock; block++, w += stride, out += kBlock) {
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(w);
    const float d = half_to_float(halves[lane]);
    if (type == WeightType::kQ8_0) {
      const int8_t *q = reinterpret_cast<const int8_t *>(w + 2 * kGroup) + 4 * lane;
      for (int i = 0; i < kBlock; i++) out[i] = d * q[4 * kGroup * (i / 4) + i % 4];
      continue;
    }
    const bool has_minimum = type == WeightType::kQ4_1;
    const float offset = has_minimum ? half_to_float(halves[kGroup + lane]) : -8.0f * d;
    const uint8_t *q = w + (has_minimum ? 4 : 2) * kGroup + 4 * lane;
    for (int i = 0; i < kBlock / 2; i++) {
      const uint8_t both = q[4 * kGroup * (i / 4) + i % 4];
      out[i] = d * (both & 15) + offset;
      out[i + 16] = d * (both >> 4) + offset;
    }
  }
}

// Row `index` of the matrix as floats: out[K].
inline void dequantize_row(const Linear &linear, int index, float *out) {
  const uint8_t *w = linear.packed + index / kGroup * linear.bytes_per_group();
  const int lane = index % kGroup;
  switch (linear.type) {
    case WeightType::kF32: return float_lane<WeightType::kF32>(w, linear.columns, lane, out);
    case WeightType::kF16: return float_lane<WeightType::kF16>(w, linear.columns, lane, out);
    case WeightType::kBF16: return float_lane<WeightType::kBF16>(w, linear.columns, lane, out);
    default: return quantised_lane(linear.type, w, linear.columns, lane, out);
  }
}

}  // namespace midstream
