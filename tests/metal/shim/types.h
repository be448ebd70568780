// Scalar types: half rounds after each operation, bfloat widens to float and narrows by hand only.
#pragma once
#ifdef EMU_LINT  // read by clang as C++ for OpenCL, whose address spaces are Metal's
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define constant __constant
#define thread __private
#define threadgroup __local
#define atomic_int metal_atomic_int  // words of OpenCL that mean nothing in Metal
#define atomic_uint metal_atomic_uint
#define atomic_float metal_atomic_float
#define global metal_global
#define local metal_local
#define generic metal_generic
#define uniform metal_uniform
#define EMU_IF_LINT(...) __VA_ARGS__
#else
#include "runtime.h"
#define device
#define constant
#define thread
#define threadgroup
#define EMU_IF_LINT(...)
typedef _Float16 half;
#endif
#define threadgroup_imageblock emu_not_emulated_imageblock
#define METAL_FUNC inline
#define METAL_CONST

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;

namespace metal {
template <bool C, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { typedef T type; };
template <bool C, typename T = void> using enable_if_t = typename enable_if<C, T>::type;
} // namespace metal

struct bfloat {
  uint16_t bits;
  bfloat() = default;
  static constexpr uint16_t round(float value) {
    uint32_t b = __builtin_bit_cast(uint32_t, value);
    if ((b & 0x7fffffffu) > 0x7f800000u) return uint16_t((b >> 16) | 0x40);
    return uint16_t((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
  }
  constexpr bfloat(uint16_t bits, bool) : bits(bits) {}
  EMU_IF_LINT(bfloat(const bfloat &) = default; bfloat(const constant bfloat &);
              bfloat &operator=(const bfloat &) = default;
              bfloat &operator=(const constant bfloat &);)
  explicit constexpr bfloat(float value) : bits(round(value)) {}
  explicit constexpr bfloat(double value) : bits(round(float(value))) {}
  explicit constexpr bfloat(half value) : bits(round(float(value))) {}
  explicit constexpr bfloat(bool value) : bits(round(float(value))) {}
#define EMU_FROM(T) \
  constexpr bfloat(T value) : bits(round(float(value))) {}
  EMU_FROM(char) EMU_FROM(signed char) EMU_FROM(uchar) EMU_FROM(short) EMU_FROM(ushort)
  EMU_FROM(int) EMU_FROM(uint) EMU_FROM(long) EMU_FROM(ulong)
#undef EMU_FROM
  constexpr float wide() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
  // By itself it widens to float and to nothing else; everything else takes a cast.
  template <typename U, typename = metal::enable_if_t<__is_same(U, float)>>
  constexpr operator U() const { return wide(); }
  EMU_IF_LINT(template <typename U, typename = metal::enable_if_t<__is_same(U, float)>>
              constexpr operator U() const constant;)
  template <typename U, int = 0, typename = metal::enable_if_t<!__is_same(U, float)>>
  explicit constexpr operator U() const { return U(wide()); }
#define EMU_ASSIGN(op) \
  template <typename U> \
  constexpr bfloat &operator op##=(U other) { \
    return *this = bfloat(wide() op float(other)); \
  }
  EMU_ASSIGN(+) EMU_ASSIGN(-) EMU_ASSIGN(*) EMU_ASSIGN(/)
#undef EMU_ASSIGN
};

namespace metal {
template <bool C, typename A, typename B> struct conditional { typedef A type; };
template <typename A, typename B> struct conditional<false, A, B> { typedef B type; };
template <bool C, typename A, typename B> using conditional_t = typename conditional<C, A, B>::type;
template <typename T, T V> struct integral_constant {
  static constexpr T value = V;
  constexpr operator T() const { return V; }
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <typename A, typename B> struct is_same : false_type {};
template <typename A> struct is_same<A, A> : true_type {};
template <typename A, typename B> constexpr bool is_same_v = is_same<A, B>::value;
template <typename T> struct remove_cv { typedef T type; };
template <typename T> struct remove_cv<const T> { typedef T type; };
template <typename T> struct remove_cv<volatile T> { typedef T type; };
template <typename T> struct remove_reference { typedef T type; };
template <typename T> struct remove_reference<T &> { typedef T type; };
template <typename T> using remove_cv_t = typename remove_cv<T>::type;
template <typename T> using remove_reference_t = typename remove_reference<T>::type;

template <typename T> struct is_floating_point : false_type {};
template <> struct is_floating_point<float> : true_type {};
template <> struct is_floating_point<half> : true_type {};
template <> struct is_floating_point<bfloat> : true_type {};
template <typename T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> struct is_integral : false_type {};
#define EMU_INTEGRAL(T) \
  template <> struct is_integral<T> : true_type {};
EMU_INTEGRAL(bool) EMU_INTEGRAL(char) EMU_INTEGRAL(signed char) EMU_INTEGRAL(uchar)
EMU_INTEGRAL(short) EMU_INTEGRAL(ushort) EMU_INTEGRAL(int) EMU_INTEGRAL(uint) EMU_INTEGRAL(long)
EMU_INTEGRAL(ulong)
#undef EMU_INTEGRAL
template <typename T> constexpr bool is_integral_v = is_integral<T>::value;
template <typename T>
struct is_arithmetic : integral_constant<bool, is_integral_v<T> || is_floating_point_v<T>> {};
template <typename T> constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <typename T> constexpr bool is_signed_v = is_arithmetic_v<T> && T(-1) < T(0);
template <typename T> constexpr bool is_unsigned_v = is_integral_v<T> && !(T(-1) < T(0));
template <typename A, typename B> constexpr bool is_convertible_v = __is_constructible(B, A);

} // namespace metal

// bfloat with bfloat stays bfloat and rounds; with an integer too; with float it becomes float.
#define EMU_ARITHMETIC(op) \
  constexpr bfloat operator op(bfloat a, bfloat b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(bfloat a, int b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(int a, bfloat b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(bfloat a, uint b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(uint a, bfloat b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(bfloat a, long b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(long a, bfloat b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(bfloat a, ulong b) { return bfloat(float(a) op float(b)); } \
  constexpr bfloat operator op(ulong a, bfloat b) { return bfloat(float(a) op float(b)); } \
  constexpr float operator op(bfloat a, float b) { return float(a) op b; } \
  constexpr float operator op(float a, bfloat b) { return a op float(b); } \
  bfloat operator op(bfloat, half) = delete; \
  bfloat operator op(half, bfloat) = delete;
EMU_ARITHMETIC(+) EMU_ARITHMETIC(-) EMU_ARITHMETIC(*) EMU_ARITHMETIC(/)
#undef EMU_ARITHMETIC
#ifndef EMU_LINT  // clang finds these by itself
#define EMU_ASSIGN(op) \
  constexpr float &operator op##=(float &a, bfloat b) { return a = a op b.wide(); }
EMU_ASSIGN(+) EMU_ASSIGN(-) EMU_ASSIGN(*) EMU_ASSIGN(/)
#undef EMU_ASSIGN
#endif
template <typename T> constexpr bool emu_number = metal::is_arithmetic_v<T> && !__is_same(T, half);
#define EMU_COMPARE(op) \
  constexpr bool operator op(bfloat a, bfloat b) { return a.wide() op b.wide(); } \
  template <typename U, typename = metal::enable_if_t<emu_number<U> && !__is_same(U, bfloat)>> \
  constexpr bool operator op(bfloat a, U b) { return a.wide() op float(b); } \
  template <typename U, typename = metal::enable_if_t<emu_number<U> && !__is_same(U, bfloat)>> \
  constexpr bool operator op(U a, bfloat b) { return float(a) op b.wide(); }
EMU_COMPARE(<) EMU_COMPARE(>) EMU_COMPARE(<=) EMU_COMPARE(>=) EMU_COMPARE(==) EMU_COMPARE(!=)
#undef EMU_COMPARE
constexpr bfloat operator-(bfloat a) { return bfloat(-float(a)); }

constexpr half operator""h(long double value) { return half(value); }
constexpr half operator""h(unsigned long long value) { return half(value); }
constexpr bfloat operator""bf(long double value) { return bfloat(float(value)); }

namespace metal {
template <typename T> struct numeric_limits {
  static constexpr bool top = T(-1) < T(0);
  static constexpr T max() {
    return top ? T((ulong(1) << (8 * sizeof(T) - 1)) - 1) : T(~T(0));
  }
  static constexpr T min() { return top ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
  static constexpr int digits = 8 * sizeof(T) - (top ? 1 : 0);
};
template <typename T, typename B> constexpr T emu_of(B bits) { return __builtin_bit_cast(T, bits); }
template <> constexpr bfloat emu_of<bfloat>(uint16_t bits) { return bfloat(bits, true); }
#define EMU_LIMITS(T, MAX, MIN, EPS, INF, NAN_) \
  template <> struct numeric_limits<T> { \
    static constexpr T max() { return emu_of<T>(MAX); } \
    static constexpr T min() { return emu_of<T>(MIN); } \
    static constexpr T lowest() { return -max(); } \
    static constexpr T epsilon() { return emu_of<T>(EPS); } \
    static constexpr T infinity() { return emu_of<T>(INF); } \
    static constexpr T quiet_NaN() { return emu_of<T>(NAN_); } \
  };
EMU_LIMITS(float, 0x7f7fffffu, 0x00800000u, 0x34000000u, 0x7f800000u, 0x7fc00000u)
EMU_LIMITS(half, uint16_t(0x7bff), uint16_t(0x0400), uint16_t(0x1400), uint16_t(0x7c00),
           uint16_t(0x7e00))
EMU_LIMITS(bfloat, uint16_t(0x7f7f), uint16_t(0x0080), uint16_t(0x3c00), uint16_t(0x7f80),
           uint16_t(0x7fc0))
#undef EMU_LIMITS
} // namespace metal

template <typename To, typename From>
inline To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  To out;
  __builtin_memcpy(&out, &value, sizeof(To));
  return out;
}

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.40282346638528859812e+38f
#define FLT_MAX MAXFLOAT
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.1920929e-7f
#define HALF_MAX half(65504.0f)
#define HUGE_VALF __builtin_inff()
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LN2_F 0.69314718055994530942f
#define M_LOG2E_F 1.44269504088896340736f
#define M_SQRT2_F 1.41421356237309504880f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT1_2_F 0.70710678118654752440f
