// For the lint only: what needs the runner to execute, declared. Pointers without an address
// space are OpenCL's generic ones here, which take device, threadgroup and thread memory.
#pragma once
#include "math.h"

namespace metal {
template <typename T> threadgroup T &emu_slot(int id, constant const char *name);
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define EMU_DECLARE(name) template <typename T> T name(T value);
EMU_DECLARE(simd_sum) EMU_DECLARE(simd_product) EMU_DECLARE(simd_max) EMU_DECLARE(simd_min)
EMU_DECLARE(simd_and) EMU_DECLARE(simd_or) EMU_DECLARE(simd_xor) EMU_DECLARE(simd_broadcast_first)
EMU_DECLARE(simd_prefix_inclusive_sum) EMU_DECLARE(simd_prefix_exclusive_sum)
EMU_DECLARE(simd_prefix_inclusive_product) EMU_DECLARE(simd_prefix_exclusive_product)
EMU_DECLARE(quad_sum) EMU_DECLARE(quad_max) EMU_DECLARE(quad_min)
#undef EMU_DECLARE
#define EMU_DECLARE(name) template <typename T> T name(T value, ushort by);
EMU_DECLARE(simd_shuffle) EMU_DECLARE(simd_broadcast) EMU_DECLARE(simd_shuffle_xor)
EMU_DECLARE(simd_shuffle_down) EMU_DECLARE(simd_shuffle_up) EMU_DECLARE(simd_shuffle_rotate_down)
EMU_DECLARE(simd_shuffle_rotate_up) EMU_DECLARE(quad_shuffle) EMU_DECLARE(quad_broadcast)
EMU_DECLARE(quad_shuffle_xor)
#undef EMU_DECLARE
template <typename T> T simd_shuffle_and_fill_up(T value, T fill, ushort by);
template <typename T> T simd_shuffle_and_fill_down(T value, T fill, ushort by);
struct simd_vote {
  typedef ulong vote_t;
  explicit constexpr simd_vote(ulong bits = 0);
  explicit constexpr operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool value);
simd_vote simd_active_threads_mask();
bool simd_all(bool value);
bool simd_any(bool value);
bool simd_is_first();

enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T value; };
template <typename T> using emu_same = typename enable_if<true, T>::type;
#define EMU_DECLARE(name) \
  template <typename T> T name(volatile atomic<T> *at, emu_same<T> x, memory_order);
EMU_DECLARE(atomic_fetch_add_explicit) EMU_DECLARE(atomic_fetch_sub_explicit)
EMU_DECLARE(atomic_fetch_max_explicit) EMU_DECLARE(atomic_fetch_min_explicit)
EMU_DECLARE(atomic_fetch_or_explicit) EMU_DECLARE(atomic_fetch_and_explicit)
EMU_DECLARE(atomic_fetch_xor_explicit) EMU_DECLARE(atomic_exchange_explicit)
#undef EMU_DECLARE
template <typename T> void atomic_store_explicit(volatile atomic<T> *at, emu_same<T> x, memory_order);
template <typename T> T atomic_load_explicit(const volatile atomic<T> *at, memory_order);
template <typename T>
bool atomic_compare_exchange_weak_explicit(volatile atomic<T> *at, thread T *expected, emu_same<T> x,
                                           memory_order, memory_order);

template <typename T, int R, int C> struct simdgroup_matrix {
  vec<T, 2> own;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
  thread vec<T, 2> &thread_elements();
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename T> simdgroup_matrix<T, 8, 8> make_filled_simdgroup_matrix(T value);
template <typename T, int R, int C>
simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value);
#define EMU_DECLARE(space) \
  template <typename T> \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &to, const space T *from, ulong stride = 8, \
                      ulong2 origin = ulong2(0, 0), bool transposed = false); \
  template <typename T> \
  void simdgroup_store(const thread simdgroup_matrix<T, 8, 8> &from, space T *to, \
                       ulong stride = 8, ulong2 origin = ulong2(0, 0), bool transposed = false);
EMU_DECLARE(device) EMU_DECLARE(threadgroup)
#undef EMU_DECLARE
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8> &d,
                                   const thread simdgroup_matrix<A, 8, 8> &a,
                                   const thread simdgroup_matrix<B, 8, 8> &b,
                                   const thread simdgroup_matrix<C, 8, 8> &c);
template <typename D, typename A, typename B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8> &d,
                        const thread simdgroup_matrix<A, 8, 8> &a,
                        const thread simdgroup_matrix<B, 8, 8> &b);
} // namespace metal
typedef metal::atomic<int> atomic_int;
typedef metal::atomic<uint> atomic_uint;
typedef metal::atomic<float> atomic_float;
