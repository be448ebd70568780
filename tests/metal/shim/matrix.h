// 8x8 simdgroup matrices in the lane layout that MLX's own kernels rely on. Loads and stores are
// no synchronisation points; products are summed in float, k = 0 to 7 on top of the addend.
#pragma once
#include "simd.h"

namespace metal {
template <typename T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8");
  static_assert(is_floating_point_v<T>, "only float, half and bfloat");
  vec<T, 2> own;
  simdgroup_matrix() : own(T(NAN), T(NAN)) {} // what nobody filled shows in every result
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 2; i++) own[i] = row() == column() + i ? diagonal : T(0);
  }
  vec<T, 2> &thread_elements() { return own; }
  const vec<T, 2> &thread_elements() const { return own; }
  static int row(int lane = emu_lane()) { return ((lane / 4) & 4) + (lane / 2) % 4; }
  static int column(int lane = emu_lane()) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T>
inline simdgroup_matrix<T, 8, 8> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, 8, 8> out;
  out.own = vec<T, 2>(value, value);
  return out;
}
template <typename T, int R, int C>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  return make_filled_simdgroup_matrix<T>(value);
}

inline ulong emu_place(ulong stride, ulong2 origin, bool transposed, int i) {
  ulong row = simdgroup_float8x8::row(), column = simdgroup_float8x8::column() + i;
  if (transposed) return (origin.y + column) * stride + origin.x + row;
  return (origin.y + row) * stride + origin.x + column;
}
template <typename T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8> &to, const T *from, ulong stride = 8,
                           ulong2 origin = ulong2(0, 0), bool transposed = false, EMU_LINE) {
  emu_give(true, nullptr, "simdgroup_load", line);
  for (int i = 0; i < 2; i++) to.own[i] = from[emu_place(stride, origin, transposed, i)];
}
template <typename T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8> &from, T *to, ulong stride = 8,
                            ulong2 origin = ulong2(0, 0), bool transposed = false, EMU_LINE) {
  emu_give(true, nullptr, "simdgroup_store", line);
  for (int i = 0; i < 2; i++) to[emu_place(stride, origin, transposed, i)] = from.own[i];
}

template <typename D, typename A, typename B, typename C> struct emu_terms {
  vec<A, 2> a;
  vec<B, 2> b;
  vec<C, 2> c;
};
template <typename D, typename A, typename B, typename C> void emu_multiply(emu_exchange *all) {
  typedef emu_terms<D, A, B, C> terms;
  float a[8][8], b[8][8], c[8][8];
  for (int lane = 0; lane < EMU_LANES; lane++) {
    terms own = emu_value<terms>(all, lane);
    int row = simdgroup_float8x8::row(lane), column = simdgroup_float8x8::column(lane);
    for (int i = 0; i < 2; i++) {
      a[row][column + i] = float(own.a[i]);
      b[row][column + i] = float(own.b[i]);
      c[row][column + i] = float(own.c[i]);
    }
  }
  for (int lane = 0; lane < EMU_LANES; lane++) {
    int row = simdgroup_float8x8::row(lane), column = simdgroup_float8x8::column(lane);
    vec<D, 2> out;
    for (int i = 0; i < 2; i++) {
      float sum = c[row][column + i];
      for (int k = 0; k < 8; k++) sum += a[row][k] * b[k][column + i];
      out[i] = D(sum);
    }
    __builtin_memcpy(all->result[lane], &out, sizeof(out));
  }
}
template <typename D, typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d,
                                          const simdgroup_matrix<A, 8, 8> &a,
                                          const simdgroup_matrix<B, 8, 8> &b,
                                          const simdgroup_matrix<C, 8, 8> &c, EMU_LINE) {
  emu_terms<D, A, B, C> own = {a.own, b.own, c.own};
  emu_exchange *all =
      emu_give(own, emu_multiply<D, A, B, C>, "simdgroup_multiply_accumulate", line);
  if (all->active != 0xffffffffu) emu_undefined("a simdgroup matrix without all 32 lanes", line);
  d.own = emu_result<vec<D, 2>>(all);
}
template <typename D, typename A, typename B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                               const simdgroup_matrix<B, 8, 8> &b, EMU_LINE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float>(0.0f), line);
}
} // namespace metal
