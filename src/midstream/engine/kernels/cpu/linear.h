// Owns products of weights and activations: y = W x + b, integers by integers or floats by floats.
//
// A row's result is a sum over columns in order: it does not depend on what else is computed, nor by whom.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "simd.h"
#include "weights.h"

namespace midstream {

constexpr int kMostTokens = kHasVnni ? 8 : 4;  // of one tile: as many as the registers hold

// M tokens times one group of 8 quantised rows: acc[m] = W x[m]. `Type` fixes how a block is read.
template <WeightType Type, int M>
inline void quantised_tile(const uint8_t *w, int num_columns, const ActivationRow *x, __m256 *acc) {
  constexpr bool is_nibbles = Type != WeightType::kQ8_0;
  constexpr int num_vectors = is_nibbles ? 4 : 8;
  constexpr int header = Type == WeightType::kQ4_1 ? 32 : 16;
  constexpr size_t stride = header + 32 * num_vectors;
  for (int block = 0; block < num_columns / kBlock; block++, w += stride) {
    const __m256 d = load_halves(reinterpret_cast<const uint16_t *>(w));
    __m256i v[8];
    for (int j = 0; j < num_vectors; j++) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + header + 32 * j));
      if constexpr (is_nibbles) {
        v[j] = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
        v[j + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
      } else {
        v[j] = prepare_signed(bytes);
      }
    }
    if constexpr (M == 1) {
      // One token streams the weights once: far enough ahead to hide memory, near enough to stay in L1.
      for (size_t line = 0; line < stride; line += 64) _mm_prefetch(reinterpret_cast<const char *>(w) + 1024 + line, _MM_HINT_T0);
    }
    // What a stored 0 stands for, in units of the block's sum of activations.
    __m256 offset = _mm256_setzero_ps();
    if constexpr (Type == WeightType::kQ4_1) offset = load_halves(reinterpret_cast<const uint16_t *>(w) + kGroup);
    if constexpr (Type == WeightType::kQ4_0) offset = _mm256_mul_ps(d, _mm256_set1_ps(-8.0f));
    if constexpr (Type == WeightType::kQ8_0) offset = _mm256_mul_ps(d, _mm256_set1_ps(kSignedOffset));
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const int32_t *q = reinterpret_cast<const int32_t *>(x[m].q + block * kBlock);
      const __m256i total = is_nibbles ? dot_nibbles(v, q) : dot_signed(v, q);
      const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(x[m].scale[block]));
      acc[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, acc[m]);
      if constexpr (is_nibbles || kSignedOffset != 0) acc[m] = _mm256_fmadd_ps(offset, _mm256_set1_ps(x[m].sum[block]), acc[m]);
    }
  }
}

// The same for float rows. Even and odd columns are two sums, so that one's latency hides the other's.
template <WeightType Type, int M>
inline void float_tile(const uint8_t *w, int num_columns, const ActivationRow *x, __m256 *acc) {
  __m256 odd[M];
  for (int m = 0; m < M; m++) odd[m] = _mm256_setzero_ps();
  for (int column = 0; column < num_columns; column += 2) {
    const __m256 first = load_column<Type>(w, column), second = load_column<Type>(w, column + 1);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      acc[m] = _mm256_fmadd_ps(first, _mm256_set1_ps(x[m].values[column]), acc[m]);
      odd[m] = _mm256_fmadd_ps(second, _mm256_set1_ps(x[m].values[column + 1]), odd[m]);
    }
  }
  for (int m = 0; m < M; m++) acc[m] = _mm256_add_ps(acc[m], odd[m]);
}

// Where results go: y[token * stride + row].
struct Output {
  float *y;
  size_t stride;
};

template <WeightType Type, int M>
inline void tile(const Linear &linear, int group, const Activations &x, int first, const Output &out) {
  const uint8_t *w = linear.packed + group * linear.bytes_per_group();
  ActivationRow rows[M];
  __m256 acc[M];
  for (int m = 0; m < M; m++) {
    rows[m] = x.row(first + m, linear.columns);
    acc[m] = _mm256_setzero_ps();
  }
  if constexpr (Type >= WeightType::kF32) {
    float_tile<Type, M>(w, linear.columns, rows, acc);
  } else {
    quantised_tile<Type, M>(w, linear.columns, rows, acc);
  }
  for (int m = 0; m < M; m++) {
    if (linear.bias != nullptr) acc[m] = _mm256_add_ps(acc[m], _mm256_loadu_ps(linear.bias + group * kGroup));
    _mm256_storeu_ps(out.y + (first + m) * out.stride + group * kGroup, acc[m]);
  }
}

// Tiles of M tokens from `token` on while they fit before `stop`, then smaller ones.
template <WeightType Type, int M>
inline void tiles(const Linear &linear, int group, const Activations &x, int token, int stop, const Output &out) {
  for (; token + M <= stop; token += M) tile<Type, M>(linear, group, x, token, out);
  if constexpr (M > 1) tiles<Type, M / 2>(linear, group, x, token, stop, out);
}

template <WeightType Type>
void multiply_groups(const Linear &linear, int begin, int end, const Activations &x, int num_tokens, const Output &out) {
  constexpr int kTokensInCache = 64;  // activations that stay in L2 while the groups pass by
  for (int start = 0; start < num_tokens; start += kTokensInCache) {
    const int stop = start + kTokensInCache < num_tokens ? start + kTokensInCache : num_tokens;
    for (int group = begin; group < end; group++) tiles<Type, kMostTokens>(linear, group, x, start, stop, out);
  }
}

// y[token, 8 * group ...] for the groups [begin, end) and all tokens.
inline void multiply(const Linear &linear, int begin, int end, const Activations &x, int num_tokens, const Output &out) {
  switch (linear.type) {
    case WeightType::kQ4_0: return multiply_groups<WeightType::kQ4_0>(linear, begin, end, x, num_tokens, out);
    case WeightType::kQ4_1: return multiply_groups<WeightType::kQ4_1>(linear, begin, end, x, num_tokens, out);
    case WeightType::kQ8_0: return multiply_groups<WeightType::kQ8_0>(linear, begin, end, x, num_tokens, out);
    case WeightType::kF32: return multiply_groups<WeightType::kF32>(linear, begin, end, x, num_tokens, out);
    case WeightType::kF16: return multiply_groups<WeightType::kF16>(linear, begin, end, x, num_tokens, out);
    case WeightType::kBF16: return multiply_groups<WeightType::kBF16>(linear, begin, end, x, num_tokens, out);
  }
}

}  // namespace midstream
