// Simdgroup and quadgroup functions, and the barriers.
#pragma once
#include "math.h"

namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }

// A threadgroup variable: the same memory for every thread of a threadgroup.
template <typename T> inline T &emu_slot(int id, const char *name) {
  return *static_cast<T *>(emu_shared(id, sizeof(T), alignof(T), name));
}

#define EMU_LINE int line = __builtin_LINE()
inline void threadgroup_barrier(mem_flags flags, EMU_LINE) { emu_barrier(uint(flags), line); }
inline void simdgroup_barrier(mem_flags flags, EMU_LINE) { emu_simd_barrier(uint(flags), line); }

template <typename T> inline T emu_value(emu_exchange *all, uint lane) {
  T out;
  __builtin_memcpy(&out, all->value[lane], sizeof(T));
  return out;
}
template <typename T> inline T emu_result(emu_exchange *all) {
  T out;
  __builtin_memcpy(&out, all->result[all->lane], sizeof(T));
  return out;
}
template <typename T>
inline emu_exchange *emu_give(const T &value, emu_combine combine, const char *name, int line) {
  static_assert(sizeof(T) <= EMU_SLOT, "too large for a simd function");
  return emu_simd(&value, sizeof(T), combine, name, line);
}

// Reductions: the butterfly 1, 2, 4, 8, 16, where lanes that have left do not take part.
template <typename T, T (*OP)(T, T)> void emu_butterfly(emu_exchange *all) {
  T now[EMU_LANES], next[EMU_LANES];
  bool has[EMU_LANES], had[EMU_LANES];
  for (uint i = 0; i < EMU_LANES; i++) {
    has[i] = (all->active >> i) & 1;
    if (has[i]) now[i] = emu_value<T>(all, i);
  }
  for (uint step = 1; step < EMU_LANES; step *= 2) {
    for (uint i = 0; i < EMU_LANES; i++) {
      uint j = i ^ step;
      had[i] = has[i] || has[j];
      if (has[i] && has[j]) next[i] = OP(now[i], now[j]);
      else if (had[i]) next[i] = has[i] ? now[i] : now[j];
    }
    for (uint i = 0; i < EMU_LANES; i++) {
      has[i] = had[i];
      if (has[i]) now[i] = next[i];
    }
  }
  for (uint i = 0; i < EMU_LANES; i++) __builtin_memcpy(all->result[i], &now[i], sizeof(T));
}
template <typename T, T (*OP)(T, T), bool INCLUSIVE, int START>
void emu_prefix(emu_exchange *all) {
  T sum = T(START);
  for (uint i = 0; i < EMU_LANES; i++) {
    if (!((all->active >> i) & 1)) continue;
    T before = sum;
    sum = OP(sum, emu_value<T>(all, i));
    __builtin_memcpy(all->result[i], INCLUSIVE ? &sum : &before, sizeof(T));
  }
}
#define EMU_REDUCE(name, expression) \
  template <typename T> inline T emu_op_##name(T a, T b) { return T(expression); } \
  template <typename T> inline T simd_##name(T value, EMU_LINE) { \
    return emu_result<T>(emu_give(value, emu_butterfly<T, emu_op_##name<T>>, "simd_" #name, line)); \
  }
EMU_REDUCE(sum, a + b) EMU_REDUCE(product, a *b) EMU_REDUCE(max, max(a, b))
EMU_REDUCE(min, min(a, b)) EMU_REDUCE(and, a &b) EMU_REDUCE(or, a | b) EMU_REDUCE(xor, a ^ b)
#undef EMU_REDUCE
#define EMU_PREFIX(name, op, inclusive, start) \
  template <typename T> inline T name(T value, EMU_LINE) { \
    return emu_result<T>( \
        emu_give(value, emu_prefix<T, emu_op_##op<T>, inclusive, start>, #name, line)); \
  }
EMU_PREFIX(simd_prefix_inclusive_sum, sum, true, 0)
EMU_PREFIX(simd_prefix_exclusive_sum, sum, false, 0)
EMU_PREFIX(simd_prefix_inclusive_product, product, true, 1)
EMU_PREFIX(simd_prefix_exclusive_product, product, false, 1)
#undef EMU_PREFIX

// Reading a lane that has left, or one that never was, is undefined.
template <typename T>
inline T emu_from(const T &value, int lane, const char *name, int line) {
  emu_exchange *all = emu_give(value, nullptr, name, line);
  if (lane < 0 || lane >= EMU_LANES || !((all->active >> lane) & 1)) emu_undefined(name, line);
  return emu_value<T>(all, lane);
}
inline int emu_lane() { return int(emu_current_lane()); }
template <typename T> inline T simd_shuffle(T value, ushort lane, EMU_LINE) {
  return emu_from(value, lane, "simd_shuffle of a lane that is not there", line);
}
template <typename T> inline T simd_broadcast(T value, ushort lane, EMU_LINE) {
  return emu_from(value, lane, "simd_broadcast of a lane that is not there", line);
}
template <typename T> inline T simd_shuffle_xor(T value, ushort mask, EMU_LINE) {
  return emu_from(value, emu_lane() ^ mask, "simd_shuffle_xor of a lane that is not there", line);
}
// Past the end a lane keeps its own value.
template <typename T> inline T simd_shuffle_down(T value, ushort delta, EMU_LINE) {
  int lane = emu_lane() + delta;
  return emu_from(value, lane < EMU_LANES ? lane : emu_lane(),
                  "simd_shuffle_down of a lane that has left", line);
}
template <typename T> inline T simd_shuffle_up(T value, ushort delta, EMU_LINE) {
  int lane = emu_lane() - delta;
  return emu_from(value, lane >= 0 ? lane : emu_lane(), "simd_shuffle_up of a lane that has left",
                  line);
}
template <typename T> inline T simd_shuffle_rotate_down(T value, ushort delta, EMU_LINE) {
  return emu_from(value, (emu_lane() + delta) % EMU_LANES, "a rotation over a lane that has left",
                  line);
}
template <typename T> inline T simd_shuffle_rotate_up(T value, ushort delta, EMU_LINE) {
  return emu_from(value, (emu_lane() + EMU_LANES - delta % EMU_LANES) % EMU_LANES,
                  "a rotation over a lane that has left", line);
}
template <typename T>
inline T simd_shuffle_and_fill_up(T value, T fill, ushort delta, EMU_LINE) {
  int lane = emu_lane() - delta;
  T out = emu_from(value, lane >= 0 ? lane : emu_lane(), "simd_shuffle_and_fill_up", line);
  T edge = emu_from(fill, (emu_lane() + EMU_LANES - delta) % EMU_LANES, "simd_shuffle_and_fill_up",
                    line);
  return lane >= 0 ? out : edge;
}
template <typename T>
inline T simd_shuffle_and_fill_down(T value, T fill, ushort delta, EMU_LINE) {
  int lane = emu_lane() + delta;
  T out = emu_from(value, lane < EMU_LANES ? lane : emu_lane(), "simd_shuffle_and_fill_down", line);
  T edge = emu_from(fill, lane % EMU_LANES, "simd_shuffle_and_fill_down", line);
  return lane < EMU_LANES ? out : edge;
}
template <typename T> inline T simd_broadcast_first(T value, EMU_LINE) {
  emu_exchange *all = emu_give(value, nullptr, "simd_broadcast_first", line);
  return emu_value<T>(all, __builtin_ctz(all->active));
}

struct simd_vote {
  typedef ulong vote_t;
  ulong bits;
  ulong active;
  explicit constexpr simd_vote(ulong bits = 0, ulong active = ~0ul) : bits(bits), active(active) {}
  explicit constexpr operator vote_t() const { return bits; }
  bool all() const { return bits == active; }
  bool any() const { return bits != 0; }
};
inline simd_vote emu_vote(bool value, const char *name, int line) {
  emu_exchange *all = emu_give(value, nullptr, name, line);
  ulong bits = 0;
  for (uint i = 0; i < EMU_LANES; i++)
    if (((all->active >> i) & 1) && all->value[i][0]) bits |= 1ul << i;
  return simd_vote(bits, all->active);
}
inline simd_vote simd_ballot(bool value, EMU_LINE) { return emu_vote(value, "simd_ballot", line); }
inline simd_vote simd_active_threads_mask(EMU_LINE) {
  return emu_vote(true, "simd_active_threads_mask", line);
}
inline bool simd_all(bool value, EMU_LINE) { return emu_vote(value, "simd_all", line).all(); }
inline bool simd_any(bool value, EMU_LINE) { return emu_vote(value, "simd_any", line).any(); }
inline bool simd_is_first(EMU_LINE) {
  emu_exchange *all = emu_give(true, nullptr, "simd_is_first", line);
  return emu_lane() == __builtin_ctz(all->active);
}

template <typename T> inline T quad_shuffle(T value, ushort lane, EMU_LINE) {
  return emu_from(value, (emu_lane() & ~3) + lane, "quad_shuffle", line);
}
template <typename T> inline T quad_broadcast(T value, ushort lane, EMU_LINE) {
  return emu_from(value, (emu_lane() & ~3) + lane, "quad_broadcast", line);
}
template <typename T> inline T quad_shuffle_xor(T value, ushort mask, EMU_LINE) {
  return emu_from(value, emu_lane() ^ (mask & 3), "quad_shuffle_xor", line);
}
#define EMU_QUAD(name) \
  template <typename T> inline T quad_##name(T value, EMU_LINE) { \
    value = emu_op_##name(value, quad_shuffle_xor(value, 1, line)); \
    return emu_op_##name(value, quad_shuffle_xor(value, 2, line)); \
  }
EMU_QUAD(sum) EMU_QUAD(max) EMU_QUAD(min)
#undef EMU_QUAD
} // namespace metal
