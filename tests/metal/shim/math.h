// Metal's math: `metal::`, `metal::fast::` and `metal::precise::` give the same, correctly rounded
// as far as libm is. Apple's own last bits are not known here.
#pragma once
#include "vectors.h"

extern "C" {
float expf(float), exp2f(float), exp10f(float), logf(float), log2f(float), log10f(float);
float sinf(float), cosf(float), tanf(float), asinf(float), acosf(float), atanf(float);
float sinhf(float), coshf(float), tanhf(float), asinhf(float), acoshf(float), atanhf(float);
float sqrtf(float), floorf(float), ceilf(float), truncf(float), rintf(float), roundf(float);
float fabsf(float), powf(float, float), atan2f(float, float), fmodf(float, float);
float fmaf(float, float, float), ldexpf(float, int), frexpf(float, int *), copysignf(float, float);
float nextafterf(float, float);
}

namespace metal {
// Functions of one floating number. Those of half are computed in float and rounded once.
#define EMU_MATH1(name, expression) \
  inline float name(float x) { return expression; } \
  inline half name(half h) { float x = float(h); return half(expression); } \
  inline bfloat name(bfloat h) { float x = float(h); return bfloat(float(expression)); } \
  template <typename T, int N> inline vec<T, N> name(vec<T, N> v) { \
    for (int i = 0; i < N; i++) v[i] = name(v[i]); \
    return v; \
  }
#define EMU_MATH2(name, expression) \
  inline float name(float x, float y) { return expression; } \
  inline half name(half a, half b) { float x = float(a), y = float(b); return half(expression); } \
  inline bfloat name(bfloat a, bfloat b) { \
    float x = float(a), y = float(b); \
    return bfloat(float(expression)); \
  } \
  template <typename T, int N> inline vec<T, N> name(vec<T, N> v, vec<T, N> w) { \
    for (int i = 0; i < N; i++) v[i] = name(v[i], w[i]); \
    return v; \
  }
#define EMU_ALL_MATH \
  EMU_MATH1(exp, expf(x)) EMU_MATH1(exp2, exp2f(x)) EMU_MATH1(exp10, exp10f(x)) \
  EMU_MATH1(log, logf(x)) EMU_MATH1(log2, log2f(x)) EMU_MATH1(log10, log10f(x)) \
  EMU_MATH1(sin, sinf(x)) EMU_MATH1(cos, cosf(x)) EMU_MATH1(tan, tanf(x)) \
  EMU_MATH1(asin, asinf(x)) EMU_MATH1(acos, acosf(x)) EMU_MATH1(atan, atanf(x)) \
  EMU_MATH1(sinh, sinhf(x)) EMU_MATH1(cosh, coshf(x)) EMU_MATH1(tanh, tanhf(x)) \
  EMU_MATH1(asinh, asinhf(x)) EMU_MATH1(acosh, acoshf(x)) EMU_MATH1(atanh, atanhf(x)) \
  EMU_MATH1(sqrt, sqrtf(x)) EMU_MATH1(rsqrt, 1.0f / sqrtf(x)) \
  EMU_MATH1(floor, floorf(x)) EMU_MATH1(ceil, ceilf(x)) EMU_MATH1(trunc, truncf(x)) \
  EMU_MATH1(rint, rintf(x)) EMU_MATH1(round, roundf(x)) EMU_MATH1(fabs, fabsf(x)) \
  EMU_MATH1(fract, (x - floorf(x) < 0x1.fffffep-1f ? x - floorf(x) : 0x1.fffffep-1f)) \
  EMU_MATH1(saturate, (x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f)) \
  EMU_MATH1(sign, (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)) \
  EMU_MATH2(pow, powf(x, y)) EMU_MATH2(powr, powf(x, y)) EMU_MATH2(atan2, atan2f(x, y)) \
  EMU_MATH2(fmod, fmodf(x, y)) EMU_MATH2(copysign, copysignf(x, y)) \
  EMU_MATH2(fmax, __builtin_fmaxf(x, y)) EMU_MATH2(fmin, __builtin_fminf(x, y)) \
  EMU_MATH2(divide, x / y) EMU_MATH2(step, (y < x ? 0.0f : 1.0f)) \
  EMU_MATH2(fdim, (x > y ? x - y : 0.0f))

EMU_ALL_MATH
namespace fast { EMU_ALL_MATH }
namespace precise { EMU_ALL_MATH }

inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return half(double(a) * double(b) + double(c)); }
template <typename T, int N> inline vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  for (int i = 0; i < N; i++) a[i] = fma(a[i], b[i], c[i]);
  return a;
}
inline float ldexp(float x, int k) { return ldexpf(x, k); }
inline float frexp(float x, int &k) { return frexpf(x, &k); }
inline float nextafter(float x, float y) { return nextafterf(x, y); }
inline float mix(float a, float b, float t) { return a + (b - a) * t; }

#define EMU_TEST(name, expression) \
  inline bool name(float x) { return expression; } \
  inline bool name(half x) { return name(float(x)); } \
  inline bool name(bfloat x) { return name(float(x)); } \
  template <typename T, int N> inline vec<bool, N> name(vec<T, N> v) { \
    vec<bool, N> out; \
    for (int i = 0; i < N; i++) out[i] = name(v[i]); \
    return out; \
  }
EMU_TEST(isnan, __builtin_isnan(x)) EMU_TEST(isinf, __builtin_isinf(x))
EMU_TEST(isfinite, __builtin_isfinite(x)) EMU_TEST(signbit, __builtin_signbit(x))
#undef EMU_TEST

// One overload per type, none a template: `max(int, float)` stays ambiguous as it is on Macs.
#define EMU_MINMAX(T) \
  inline T max(T a, T b) { return a < b ? b : a; } \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  inline T max3(T a, T b, T c) { return max(a, max(b, c)); } \
  inline T min3(T a, T b, T c) { return min(a, min(b, c)); }
EMU_MINMAX(char) EMU_MINMAX(signed char) EMU_MINMAX(uchar) EMU_MINMAX(short) EMU_MINMAX(ushort)
EMU_MINMAX(int) EMU_MINMAX(uint) EMU_MINMAX(long) EMU_MINMAX(ulong)
#undef EMU_MINMAX
// With one NaN the other number comes back.
#define EMU_MINMAX(T) \
  inline T max(T a, T b) { return fmax(a, b); } \
  inline T min(T a, T b) { return fmin(a, b); } \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  inline T max3(T a, T b, T c) { return max(a, max(b, c)); } \
  inline T min3(T a, T b, T c) { return min(a, min(b, c)); }
EMU_MINMAX(float) EMU_MINMAX(half) EMU_MINMAX(bfloat)
#undef EMU_MINMAX
template <typename T, int N> inline vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; i++) a[i] = max(a[i], b[i]);
  return a;
}
template <typename T, int N> inline vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; i++) a[i] = min(a[i], b[i]);
  return a;
}
template <typename T, int N> inline vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
  return min(max(x, low), high);
}
namespace fast { using metal::max; using metal::min; using metal::clamp; using metal::fma; }
namespace precise { using metal::max; using metal::min; using metal::clamp; using metal::fma; }

inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline short abs(short x) { return short(x < 0 ? -x : x); }
inline float abs(float x) { return fabsf(x); }
inline half abs(half x) { return fabs(x); }
inline bfloat abs(bfloat x) { return fabs(x); }
template <typename T, int N> inline vec<T, N> abs(vec<T, N> v) {
  for (int i = 0; i < N; i++) v[i] = abs(v[i]);
  return v;
}

template <typename T> inline T select(T a, T b, bool c) { return c ? b : a; }
template <typename T, int N> inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  for (int i = 0; i < N; i++) a[i] = c[i] ? b[i] : a[i];
  return a;
}
template <typename T, int N> inline T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum = sum + a[i] * b[i];
  return sum;
}
template <typename V, typename T, int N, int... I, typename W>
inline T dot(const swizzle<V, T, N, I...> &a, const W &b) { return dot(a.get(), emu_vector(b)); }
template <typename V, typename T, int N, int... I>
inline T dot(const V &a, const swizzle<V, T, N, I...> &b) { return dot(a, b.get()); }
template <int N> inline bool any(vec<bool, N> v) {
  bool out = false;
  for (int i = 0; i < N; i++) out = out || v[i];
  return out;
}
template <int N> inline bool all(vec<bool, N> v) {
  bool out = true;
  for (int i = 0; i < N; i++) out = out && v[i];
  return out;
}

inline uint popcount(uint x) { return __builtin_popcount(x); }
inline int popcount(int x) { return __builtin_popcount(x); }
inline ulong popcount(ulong x) { return __builtin_popcountl(x); }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline int clz(int x) { return x ? __builtin_clz(x) : 32; }
inline ulong clz(ulong x) { return x ? __builtin_clzl(x) : 64; }
inline uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
inline int ctz(int x) { return x ? __builtin_ctz(x) : 32; }
inline ulong ctz(ulong x) { return x ? __builtin_ctzl(x) : 64; }
inline uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (bits >= 32 ? ~0u : (1u << bits) - 1);
}
inline uint insert_bits(uint base, uint insert, uint offset, uint bits) {
  uint mask = (bits >= 32 ? ~0u : (1u << bits) - 1) << offset;
  return (base & ~mask) | ((insert << offset) & mask);
}
inline uint reverse_bits(uint x) {
  uint out = 0;
  for (int i = 0; i < 32; i++) out |= ((x >> i) & 1) << (31 - i);
  return out;
}
inline uint rotate(uint x, uint n) { n &= 31; return n ? (x << n) | (x >> (32 - n)) : x; }
} // namespace metal
