// Owns the primitives of `simd.h` on 64-bit ARM: NEON, two registers a vector, and its dot product where there is one.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace midstream {

struct Floats {
  float32x4_t low, high;
};

struct Ints {
  int32x4_t low, high;
};

struct Bytes {
  uint8x16_t low, high;
};

constexpr int kNumRegisters = 16;  // 32, and a vector takes two

// --- floats ---

inline Floats operator+(Floats a, Floats b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline Floats operator-(Floats a, Floats b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline Floats operator*(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Floats operator/(Floats a, Floats b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }

inline Floats load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, Floats x) { vst1q_f32(p, x.low), vst1q_f32(p + 4, x.high); }
inline Floats broadcast(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }

inline Floats fma(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
inline Floats fnma(Floats a, Floats b, Floats c) { return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
inline Floats max(Floats a, Floats b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
inline Floats absolute(Floats x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }
inline Floats round(Floats x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }

inline float32x4_t zero_below(float32x4_t limit, float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, limit)));
}

inline Floats zero_below(Floats limit, Floats x, Floats y) {
  return {zero_below(limit.low, x.low, y.low), zero_below(limit.high, x.high, y.high)};
}

// A pairwise add takes neighbours from two vectors, one after the other.
inline float sum_lanes(Floats x) {
  const float32x4_t pairs = vpaddq_f32(x.low, x.high), quarters = vpaddq_f32(pairs, pairs);
  return vpadds_f32(vget_low_f32(quarters));
}

inline void store_sums_of_4(float *p, const Floats *x, float factor) {
  const float32x4_t first = vpaddq_f32(vpaddq_f32(x[0].low, x[0].high), vpaddq_f32(x[1].low, x[1].high));
  const float32x4_t second = vpaddq_f32(vpaddq_f32(x[2].low, x[2].high), vpaddq_f32(x[3].low, x[3].high));
  vst1q_f32(p, vmulq_n_f32(vpaddq_f32(first, second), factor));
}

inline float max_lanes(Floats x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }

// --- 16-bit floats ---

inline float16x4_t load_4_halves(const uint16_t *p) { return vreinterpret_f16_u16(vld1_u16(p)); }
inline uint16x4_t to_4_halves(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
inline float32x4_t load_4_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

inline float half_to_float(uint16_t x) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0); }
inline Floats load_halves(const uint16_t *p) { return {vcvt_f32_f16(load_4_halves(p)), vcvt_f32_f16(load_4_halves(p + 4))}; }
inline void store_halves(uint16_t *p, Floats x) { vst1_u16(p, to_4_halves(x.low)), vst1_u16(p + 4, to_4_halves(x.high)); }

// A bfloat16 is the upper half of a float.
inline Floats load_bf16(const uint16_t *p) { return {load_4_bf16(p), load_4_bf16(p + 4)}; }

// --- integers ---

inline Ints operator+(Ints a, Ints b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline Ints broadcast(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
inline Ints to_ints(Floats x) { return {vcvtnq_s32_f32(x.low), vcvtnq_s32_f32(x.high)}; }
inline Floats to_floats(Ints x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }

inline Floats power_of_2(Floats n) {
  const Ints exponent = to_ints(n) + broadcast(127);
  return {vreinterpretq_f32_s32(vshlq_n_s32(exponent.low, 23)), vreinterpretq_f32_s32(vshlq_n_s32(exponent.high, 23))};
}

inline int32_t sum_lanes(Ints x) { return vaddvq_s32(vaddq_s32(x.low, x.high)); }

inline int16x8_t to_words(Ints x) { return vcombine_s16(vqmovn_s32(x.low), vqmovn_s32(x.high)); }

inline void store_as_bytes(int8_t *p, const Ints *x) {
  vst1q_s8(p, vcombine_s8(vqmovn_s16(to_words(x[0])), vqmovn_s16(to_words(x[1]))));
  vst1q_s8(p + 16, vcombine_s8(vqmovn_s16(to_words(x[2])), vqmovn_s16(to_words(x[3]))));
}

// --- bytes and their dot products ---

inline Bytes load_bytes(const uint8_t *p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
inline Bytes low_nibbles(Bytes x) { return {vandq_u8(x.low, vdupq_n_u8(15)), vandq_u8(x.high, vdupq_n_u8(15))}; }
inline Bytes high_nibbles(Bytes x) { return {vshrq_n_u8(x.low, 4), vshrq_n_u8(x.high, 4)}; }

// sum, and in each lane 4 bytes of v times the 4 of q[Lane].
#if defined(__ARM_FEATURE_DOTPROD)
constexpr const char *kInstructionSet = "NEON dot product";

template <int Lane>
inline int32x4_t multiply_add(int32x4_t sum, uint8x16_t v, int32x4_t q) {
  return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(v), vreinterpretq_s8_s32(q), Lane);
}
#else
constexpr const char *kInstructionSet = "NEON";

// Two products of at most 128 * 127 fit int16.
template <int Lane>
inline int32x4_t multiply_add(int32x4_t sum, uint8x16_t v, int32x4_t q) {
  const int8x16_t w = vreinterpretq_s8_u8(v), x = vreinterpretq_s8_s32(vdupq_laneq_s32(q, Lane));
  return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)));
}
#endif

template <int Lane>
inline Ints multiply_add(Ints sum, Bytes v, int32x4_t q) {
  return {multiply_add<Lane>(sum.low, v.low, q), multiply_add<Lane>(sum.high, v.high, q)};
}

template <int H>
inline void dot_nibbles(Ints start, const Bytes *v, const int32_t *q, Ints *total) {
  const int32x4_t first = vld1q_s32(q), second = vld1q_s32(q + 4);
  for (int h = 0; h < H; h++) {
    Ints sum = multiply_add<0>(start, v[h], first);
    sum = multiply_add<1>(sum, v[1 * H + h], first);
    sum = multiply_add<2>(sum, v[2 * H + h], first);
    sum = multiply_add<3>(sum, v[3 * H + h], first);
    sum = multiply_add<0>(sum, v[4 * H + h], second);
    sum = multiply_add<1>(sum, v[5 * H + h], second);
    sum = multiply_add<2>(sum, v[6 * H + h], second);
    total[h] = multiply_add<3>(sum, v[7 * H + h], second);
  }
}

// NEON multiplies signed by signed: nothing is to be prepared, and nibbles are numbers like others.
inline Bytes prepare_signed(Bytes x) { return x; }

template <int H>
inline void dot_signed(Ints, const Bytes *v, const int32_t *q, Ints *total) {
  dot_nibbles<H>(broadcast(0), v, q, total);
}

// --- waiting ---

// A `yield` takes one cycle on most cores; an `isb` about as long as x86's pause.
inline void spin_loop_hint() { asm volatile("isb" ::: "memory"); }

}  // namespace midstream
