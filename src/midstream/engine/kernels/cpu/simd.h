// Owns the few vector operations that differ between instruction sets. Everything above is written once.
//
// AVX2 is the floor; with AVX-512 VNNI the integer dot product is one instruction instead of three.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace midstream {

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
constexpr bool kHasVnni = true;
#else
constexpr bool kHasVnni = false;
#endif

// Weights of 8 bits as `dot_signed` takes them: raised by 128, because VNNI multiplies unsigned by signed, or as they are.
inline __m256i prepare_signed(__m256i bytes) { return kHasVnni ? _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) : bytes; }

// For h < H, in each of 8 int32 lanes: start, and the sum over j < 8 of 4 bytes of v[j * H + h] times the 4 of q[j].
// v: 0 ... 15; q: -127 ... 127.
template <int H>
inline void dot_nibbles(__m256i start, const __m256i *v, const int32_t *q, __m256i *total) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  __m256i odd[H];
  for (int h = 0; h < H; h++) total[h] = start, odd[h] = _mm256_setzero_si256();
  for (int j = 0; j < 8; j += 2) {
    const __m256i first = _mm256_set1_epi32(q[j]), second = _mm256_set1_epi32(q[j + 1]);
    for (int h = 0; h < H; h++) {
      total[h] = _mm256_dpbusd_epi32(total[h], v[j * H + h], first);
      odd[h] = _mm256_dpbusd_epi32(odd[h], v[(j + 1) * H + h], second);
    }
  }
  for (int h = 0; h < H; h++) total[h] = _mm256_add_epi32(total[h], odd[h]);
#else
  // 8 products of at most 2 * 15 * 127 fit int16: one widening add a block instead of eight.
  for (int h = 0; h < H; h++) {
    __m256i pairs = _mm256_maddubs_epi16(v[h], _mm256_set1_epi32(q[0]));
    __m256i others = _mm256_maddubs_epi16(v[4 * H + h], _mm256_set1_epi32(q[4]));
    for (int j = 1; j < 4; j++) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(v[j * H + h], _mm256_set1_epi32(q[j])));
      others = _mm256_add_epi16(others, _mm256_maddubs_epi16(v[(j + 4) * H + h], _mm256_set1_epi32(q[j + 4])));
    }
    total[h] = _mm256_add_epi32(start, _mm256_madd_epi16(_mm256_add_epi16(pairs, others), _mm256_set1_epi16(1)));
  }
#endif
}

// The sum alone for bytes of `prepare_signed`. minus8: -8 times the sum of q's bytes.
template <int H>
inline void dot_signed(__m256i minus8, const __m256i *v, const int32_t *q, __m256i *total) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  dot_nibbles<H>(_mm256_slli_epi32(minus8, 4), v, q, total);
#else
  // |w| * x with w's sign on x: two products of at most 128 * 127 never saturate.
  (void)minus8;
  for (int h = 0; h < H; h++) {
    total[h] = _mm256_setzero_si256();
    for (int j = 0; j < 8; j++) {
      const __m256i w = v[j * H + h], x = _mm256_sign_epi8(_mm256_set1_epi32(q[j]), w);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), x);
      total[h] = _mm256_add_epi32(total[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
#endif
}

inline __m256 load_halves(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

inline void store_halves(uint16_t *p, __m256 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// A bfloat16 is the upper half of a float.
inline __m256 load_bf16(const uint16_t *p) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

// The sum of all lanes, in the order of `sum_lanes_of_4`.
inline float sum_lanes(__m256 x) {
  const __m256 s = _mm256_hadd_ps(x, x), t = _mm256_hadd_ps(s, s);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
}

// Lane i of the result is the sum of x[i]'s lanes.
inline __m128 sum_lanes_of_4(const __m256 *x) {
  const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

inline float max_lanes(__m256 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

// e^x to about 1e-7 relative; below -87 it is 0. Source: Cephes' expf, the range reduced by log2.
inline __m256 exp_lanes(__m256 x) {
  const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_LT_OQ);
  x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-87.3f)), _mm256_set1_ps(88.0f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)), 8);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

}  // namespace midstream
