// Owns the primitives of `simd.h` on x86: AVX2 with FMA and F16C, and VNNI's dot product where there is one.
//
// VNNI comes in two encodings: AVX-512's, with 32 registers, and AVX's own, with 16.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace midstream {

using Floats = __m256;
using Bytes = __m256i;
typedef int32_t Ints __attribute__((vector_size(32)));  // not __m256i, whose + adds 64 bits

#if defined(__AVX512VL__)
constexpr int kNumRegisters = 32;
#else
constexpr int kNumRegisters = 16;
#endif

// --- floats ---

inline Floats load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats broadcast(float x) { return _mm256_set1_ps(x); }

inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats absolute(Floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline Floats round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats zero_below(Floats limit, Floats x, Floats y) { return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y); }

inline float sum_lanes(Floats x) {
  const __m256 s = _mm256_hadd_ps(x, x), t = _mm256_hadd_ps(s, s);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
}

inline void store_sums_of_4(float *p, const Floats *x, float factor) {
  const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  _mm_storeu_ps(p, _mm_mul_ps(_mm_set1_ps(factor), sums));
}

inline float max_lanes(Floats x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

// --- 16-bit floats ---

inline __m128i load_words(const uint16_t *p) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)); }

inline float half_to_float(uint16_t x) { return _cvtsh_ss(x); }
inline Floats load_halves(const uint16_t *p) { return _mm256_cvtph_ps(load_words(p)); }

inline void store_halves(uint16_t *p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// A bfloat16 is the upper half of a float.
inline Floats load_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(p)), 16));
}

// --- integers ---

inline Ints broadcast(int32_t x) { return Ints(_mm256_set1_epi32(x)); }
inline Ints to_ints(Floats x) { return Ints(_mm256_cvtps_epi32(x)); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(__m256i(x)); }
inline Floats power_of_2(Floats n) { return _mm256_castsi256_ps(_mm256_slli_epi32(__m256i(to_ints(n) + broadcast(127)), 23)); }

inline int32_t sum_lanes(Ints x) {
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(__m256i(x)), _mm256_extracti128_si256(__m256i(x), 1));
  t = _mm_hadd_epi32(t, t);
  t = _mm_hadd_epi32(t, t);
  return _mm_cvtsi128_si32(t);
}

inline void store_as_bytes(int8_t *p, const Ints *x) {
  const __m256i first = _mm256_packs_epi32(__m256i(x[0]), __m256i(x[1])), second = _mm256_packs_epi32(__m256i(x[2]), __m256i(x[3]));
  // The packs work on halves of 128 bits; the permutation puts the 32 bytes back in order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), bytes);
}

// --- bytes and their dot products ---

inline Bytes load_bytes(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Bytes low_nibbles(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define MIDSTREAM_VNNI
constexpr const char *kInstructionSet = "AVX-512 VNNI";
inline Ints multiply_add(Ints sum, Bytes v, Ints q) { return Ints(_mm256_dpbusd_epi32(__m256i(sum), v, __m256i(q))); }
#elif defined(__AVXVNNI__)
#define MIDSTREAM_VNNI
constexpr const char *kInstructionSet = "AVX-VNNI";
inline Ints multiply_add(Ints sum, Bytes v, Ints q) { return Ints(_mm256_dpbusd_avx_epi32(__m256i(sum), v, __m256i(q))); }
#else
constexpr const char *kInstructionSet = "AVX2";
#endif

#ifdef MIDSTREAM_VNNI

template <int H>
inline void dot_nibbles(Ints start, const Bytes *v, const int32_t *q, Ints *total) {
  Ints odd[H];
  for (int h = 0; h < H; h++) total[h] = start, odd[h] = broadcast(0);
  for (int j = 0; j < 8; j += 2) {
    const Ints first = broadcast(q[j]), second = broadcast(q[j + 1]);
    for (int h = 0; h < H; h++) {
      total[h] = multiply_add(total[h], v[j * H + h], first);
      odd[h] = multiply_add(odd[h], v[(j + 1) * H + h], second);
    }
  }
  for (int h = 0; h < H; h++) total[h] = total[h] + odd[h];
}

// VNNI multiplies unsigned by signed: weights are raised by 128, and 128 times the sum of q is taken off again.
inline Bytes prepare_signed(Bytes x) { return _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }

template <int H>
inline void dot_signed(Ints minus8, const Bytes *v, const int32_t *q, Ints *total) {
  dot_nibbles<H>(Ints(_mm256_slli_epi32(__m256i(minus8), 4)), v, q, total);
}

#else

// 8 products of at most 2 * 15 * 127 fit int16: one widening add a block instead of eight.
template <int H>
inline void dot_nibbles(Ints start, const Bytes *v, const int32_t *q, Ints *total) {
  for (int h = 0; h < H; h++) {
    __m256i pairs = _mm256_maddubs_epi16(v[h], _mm256_set1_epi32(q[0]));
    __m256i others = _mm256_maddubs_epi16(v[4 * H + h], _mm256_set1_epi32(q[4]));
    for (int j = 1; j < 4; j++) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(v[j * H + h], _mm256_set1_epi32(q[j])));
      others = _mm256_add_epi16(others, _mm256_maddubs_epi16(v[(j + 4) * H + h], _mm256_set1_epi32(q[j + 4])));
    }
    total[h] = start + Ints(_mm256_madd_epi16(_mm256_add_epi16(pairs, others), _mm256_set1_epi16(1)));
  }
}

inline Bytes prepare_signed(Bytes x) { return x; }

// |w| * x with w's sign on x: two products of at most 128 * 127 never saturate.
template <int H>
inline void dot_signed(Ints, const Bytes *v, const int32_t *q, Ints *total) {
  for (int h = 0; h < H; h++) {
    total[h] = broadcast(0);
    for (int j = 0; j < 8; j++) {
      const __m256i w = v[j * H + h], x = _mm256_sign_epi8(_mm256_set1_epi32(q[j]), w);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), x);
      total[h] = total[h] + Ints(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
}

#endif

// --- waiting ---

inline void spin_loop_hint() { _mm_pause(); }

}  // namespace midstream
