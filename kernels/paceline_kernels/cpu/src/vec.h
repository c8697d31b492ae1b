// Vectors of float of the widest kind that the compiler was told of, and number formats.
//
// GCC vector extensions rather than intrinsics: the same text serves AVX2, AVX-512 and others.
// `VecN<8>` is always there, since KV blocks and heads are multiples of 8.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace paceline {

enum Format : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2, kFP8 = 3 };

inline int format_bytes(int format) { return format == kF32 ? 4 : format == kFP8 ? 1 : 2; }

template <int N>
struct VecN;

#define PACELINE_VEC(N)                                                              \
  template <>                                                                        \
  struct VecN<N> {                                                                   \
    typedef float f32 __attribute__((vector_size(4 * N)));                           \
    typedef float f32u __attribute__((vector_size(4 * N), aligned(4), may_alias));   \
    typedef int32_t i32 __attribute__((vector_size(4 * N)));                         \
    typedef uint32_t u32 __attribute__((vector_size(4 * N)));                        \
    typedef uint32_t u32u __attribute__((vector_size(4 * N), aligned(4), may_alias)); \
    typedef uint16_t u16u __attribute__((vector_size(2 * N), aligned(2), may_alias)); \
    typedef int16_t i16 __attribute__((vector_size(2 * N)));                         \
    typedef uint8_t u8 __attribute__((vector_size(N)));                              \
    typedef int8_t i8u __attribute__((vector_size(N), aligned(1), may_alias));       \
    static constexpr int width = N;                                                  \
  };
PACELINE_VEC(8)
PACELINE_VEC(16)
#undef PACELINE_VEC

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#else
constexpr int kWidth = 8;
#endif

template <int N>
using vf = typename VecN<N>::f32;

template <int N>
inline vf<N> load(const float* p) {
  return *reinterpret_cast<const typename VecN<N>::f32u*>(p);
}

template <int N>
inline void store(float* p, vf<N> v) {
  *reinterpret_cast<typename VecN<N>::f32u*>(p) = v;
}

template <int N>
inline vf<N> fill(float x) {
  return x - vf<N>{};
}

inline float bf16_to_float(uint16_t bits) {
  uint32_t wide = uint32_t(bits) << 16;
  float out;
  std::memcpy(&out, &wide, 4);
  return out;
}

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// The compiler's builtins, not <immintrin.h>: parsing that header is a third of the compile time.
#if defined(__F16C__) && !defined(__clang__)
#define PACELINE_F16C 1
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
#endif

inline float f16_to_float(uint16_t bits) {
#if defined(PACELINE_F16C)
  return __builtin_ia32_vcvtph2ps(i16x8{int16_t(bits)})[0];
#else
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return float(half);
#endif
}

inline uint16_t float_to_f16(float x) {
#if defined(PACELINE_F16C)
  return uint16_t(__builtin_ia32_vcvtps2ph(f32x4{x}, 0)[0]);
#else
  _Float16 half = _Float16(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
#endif
}

// N consecutive float16, widened.
template <int N>
inline vf<N> widen_f16(const uint16_t* p) {
#if defined(PACELINE_F16C)
  if constexpr (N == 8) {
    i16x8 half;
    std::memcpy(&half, p, sizeof half);
    return reinterpret_cast<vf<N>>(__builtin_ia32_vcvtph2ps256(half));
  }
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    i16x16 half;
    std::memcpy(&half, p, sizeof half);
    return reinterpret_cast<vf<N>>(__builtin_ia32_vcvtph2ps512_mask(half, vf<16>{}, -1, 4));
  }
#endif
#endif
  vf<N> out;
  for (int i = 0; i < N; i++) out[i] = f16_to_float(p[i]);
  return out;
}

// What load_as gives for kFP8 is the value divided by this; whoever reads has it in a scale anyway.
constexpr float kFP8Unit = 256.0f;

// N consecutive e4m3 values over kFP8Unit: sign, exponent and mantissa are moved to their places in
// a float16, whose exponents count from 15 instead of 7. Its small numbers are the e4m3's own, so no
// float32 denormal is ever made. The one bit pattern that is no number becomes the float16's.
template <int N>
inline vf<N> widen_fp8(const uint8_t* p) {
  using V = VecN<N>;
  auto bytes = *reinterpret_cast<const typename V::i8u*>(p);
  auto half = __builtin_convertvector(bytes, typename V::i16);  // the sign fills the upper byte
  half = (half << 7) & int16_t(0xbf80);
  half |= ((half & int16_t(0x3f80)) == int16_t(0x3f80)) & int16_t(0x7c00);
  uint16_t bits[N];
  std::memcpy(bits, &half, sizeof bits);
  return widen_f16<N>(bits);
}

// N consecutive values of a format, widened; kFP8: see kFP8Unit.
template <int N, int F>
inline vf<N> load_as(const uint8_t* base, ptrdiff_t index) {
  if constexpr (F == kF32) {
    return load<N>(reinterpret_cast<const float*>(base) + index);
  } else if constexpr (F == kFP8) {
    return widen_fp8<N>(base + index);
  } else {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(base) + index;
    if constexpr (F == kF16) return widen_f16<N>(p);
    auto half = *reinterpret_cast<const typename VecN<N>::u16u*>(p);
    auto wide = __builtin_convertvector(half, typename VecN<N>::u32) << 16;
    return reinterpret_cast<vf<N>>(wide);
  }
}

// 8 values as e4m3, saturated at +-448, to the nearest, ties to even; what is no number stays none.
inline void narrow_fp8(vf<8> x, uint8_t* to) {
  using V = VecN<8>;
  using u32 = V::u32;
  x = x > 448.0f ? fill<8>(448.0f) : x;
  x = x < -448.0f ? fill<8>(-448.0f) : x;
  u32 bits = reinterpret_cast<u32>(x), sign = (bits >> 24) & 0x80u, size = bits & 0x7fffffffu;
  // Below 2^-6 steps are 2^-9: the sum with 2^14, whose steps those are, rounds to them.
  vf<8> lifted = reinterpret_cast<vf<8>>(size) + 16384.0f;
  u32 small = reinterpret_cast<u32>(lifted) - 0x46800000u;
  u32 normal = (size - (120u << 23) + 0x7ffffu + ((size >> 20) & 1u)) >> 20;
  u32 is_small = reinterpret_cast<u32>(size < 0x3c800000u), is_nan = reinterpret_cast<u32>(size > 0x7f800000u);
  u32 out = sign | (is_nan & 0x7fu) | (~is_nan & ((is_small & small) | (~is_small & normal)));
  auto bytes = __builtin_convertvector(out, V::u8);
  std::memcpy(to, &bytes, 8);
}

inline void store_as(uint8_t* base, ptrdiff_t index, float x, int format) {
  if (format == kF32)
    reinterpret_cast<float*>(base)[index] = x;
  else
    reinterpret_cast<uint16_t*>(base)[index] =
        format == kBF16 ? float_to_bf16(x) : float_to_f16(x);
}

inline float load_one(const uint8_t* base, ptrdiff_t index, int format) {
  if (format == kF32) return reinterpret_cast<const float*>(base)[index];
  uint16_t bits = reinterpret_cast<const uint16_t*>(base)[index];
  return format == kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

template <int N>
inline float sum(vf<N> v) {
  float total = 0;
  for (int i = 0; i < N; i++) total += v[i];
  return total;
}

template <int N>
inline float largest(vf<N> v) {
  float top = v[0];
  for (int i = 1; i < N; i++) top = v[i] > top ? v[i] : top;
  return top;
}

template <int N>
inline vf<N> max(vf<N> a, vf<N> b) {
  return a > b ? a : b;
}

// e^x for x <= 88; below -87.3 the result is 0. Relative error < 2e-7 (Cephes' expf polynomial).
template <int N>
inline vf<N> exp(vf<N> x) {
  using i32 = typename VecN<N>::i32;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  vf<N> clamped = x < -87.3f ? fill<N>(-87.3f) : x;
  vf<N> shifted = clamped * 1.44269504088896341f + magic;
  vf<N> n = shifted - magic;
  vf<N> r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vf<N> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  i32 power = reinterpret_cast<i32>(shifted) << 23;
  vf<N> out = reinterpret_cast<vf<N>>(reinterpret_cast<i32>(p) + power);
  return x < -87.3f ? vf<N>{} : out;
}

template <int N>
inline vf<N> silu_mul(vf<N> gate, vf<N> up) {
  vf<N> lower = -gate > 88.0f ? fill<N>(88.0f) : -gate;
  return gate / (exp<N>(lower) + 1.0f) * up;
}

}  // namespace paceline
