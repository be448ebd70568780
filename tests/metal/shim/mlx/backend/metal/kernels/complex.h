// MLX overloads complex constructors by address space, which plain C++ cannot: only what its
// prelude needs of complex numbers.
#pragma once
#include <metal_stdlib>
using namespace metal;
template <typename T> struct complex_t {
  T real, imag;
  complex_t() = default;
  constexpr complex_t(T real, T imag) : real(real), imag(imag) {}
};
typedef complex_t<half> complex32_t;
typedef complex_t<float> complex64_t;
