// Owns a linear's input: integers with one scale for each 32 values, or plain floats, as its weights want them.
//
// Rounds to nearest, keeps -127 ... 127.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace midstream {

constexpr int kBlock = 32;  // values under one scale, in weights and activations alike

// One row of K values. Quantised, x[i] = scale[i / 32] * q[i]; else x[i] = values[i].
struct ActivationRow {
  int8_t *q;       // [K]
  float *scale;    // [K / 32]
  float *sum;      // [K / 32] scale * (q summed over the block), for weights with a minimum
  int32_t *minus8; // [K / 32] -8 * (q summed over the block), for weights stored 8 too high
  float *values;   // [K]
};

// Rows of K values, one after the other.
struct Activations {
  int8_t *q;
  float *scale, *sum;
  int32_t *minus8;
  float *values;

  ActivationRow row(int token, int columns) const {
    const size_t at = static_cast<size_t>(token) * columns, block = at / kBlock;
    return {q + at, scale + block, sum + block, minus8 + block, values + at};
  }
};

inline void quantize_block(const float *x, const ActivationRow &row, int block) {
  __m256 v[4];
  __m256 most = _mm256_setzero_ps();
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, v[i]));
  }
  const float largest = max_lanes(most);
  const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
  __m256i n[4];
  __m256i total = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++) {
    n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    total = _mm256_add_epi32(total, n[i]);
  }
  // The packs work on halves of 128 bits; the permutation puts the 32 bytes back in order.
  const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(row.q + block * kBlock), _mm256_permutevar8x32_epi32(words, order));
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  t = _mm_hadd_epi32(t, t);
  t = _mm_hadd_epi32(t, t);
  const int32_t sum = _mm_cvtsi128_si32(t);
  row.scale[block] = largest / 127.0f;
  row.sum[block] = row.scale[block] * static_cast<float>(sum);
  row.minus8[block] = -8 * sum;
}

// The 32 values x as block `block` of `row`.
inline void put_block(const float *x, bool as_floats, const ActivationRow &row, int block) {
  if (as_floats) {
    std::memcpy(row.values + block * kBlock, x, kBlock * sizeof(float));
  } else {
    quantize_block(x, row, block);
  }
}

inline void put_row(const float *x, int num_values, bool as_floats, const ActivationRow &row) {
  for (int block = 0; block < num_values / kBlock; block++) put_block(x + block * kBlock, as_floats, row, block);
}

}  // namespace midstream
