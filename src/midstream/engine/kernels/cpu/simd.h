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

// What a signed byte is raised by to be an unsigned one, as the dot product wants it; its sum is taken off again.
constexpr float kSignedOffset = kHasVnni ? -128.0f : 0.0f;

// Weights of 8 bits as `dot_signed` takes them: raised by 128, or as they are.
inline __m256i prepare_signed(__m256i bytes) { return kHasVnni ? _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) : bytes; }

// In each of 8 int32 lanes: the sum over j < 8 of 4 bytes of v[j] times the 4 bytes of q[j].
// v: 0 ... 15; q: -127 ... 127.
inline __m256i dot_nibbles(const __m256i *v, const int32_t *q) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
  for (int j = 0; j < 8; j += 2) {
    even = _mm256_dpbusd_epi32(even, v[j], _mm256_set1_epi32(q[j]));
    odd = _mm256_dpbusd_epi32(odd, v[j + 1], _mm256_set1_epi32(q[j + 1]));
  }
  return _mm256_add_epi32(even, odd);
#else
  // 8 products of at most 2 * 15 * 127 fit int16: one widening add a block instead of eight.
  __m256i pairs = _mm256_maddubs_epi16(v[0], _mm256_set1_epi32(q[0]));
  __m256i others = _mm256_maddubs_epi16(v[4], _mm256_set1_epi32(q[4]));
  for (int j = 1; j < 4; j++) {
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(v[j], _mm256_set1_epi32(q[j])));
    others = _mm256_add_epi16(others, _mm256_maddubs_epi16(v[j + 4], _mm256_set1_epi32(q[j + 4])));
  }
  return _mm256_madd_epi16(_mm256_add_epi16(pairs, others), _mm256_set1_epi16(1));
#endif
}

// The same for bytes of `prepare_signed`; the caller adds `kSignedOffset` times the sum of q.
inline __m256i dot_signed(const __m256i *v, const int32_t *q) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return dot_nibbles(v, q);
#else
  // |w| * x with w's sign on x: two products of at most 128 * 127 never saturate.
  __m256i total = _mm256_setzero_si256();
  for (int j = 0; j < 8; j++) {
    const __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(q[j]), v[j]);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(v[j], v[j]), x);
    total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  return total;
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

inline float sum_lanes(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

// Lane i of the result is the sum of x[i]'s lanes.
inline __m256 sum_lanes_of_8(const __m256 *x) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
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
