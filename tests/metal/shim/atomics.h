// Atomics. Threads never run at the same time here: only the race check sees a difference.
#pragma once
#include "simd.h"

namespace metal {
enum memory_order { memory_order_relaxed };
enum class thread_scope { thread_scope_threadgroup = 1, thread_scope_device = 2 };

template <typename T> struct atomic {
  static_assert(sizeof(T) == 4 || is_same_v<T, ulong>, "Metal has no such atomic");
  T value;
};
template <typename T> using emu_same = typename enable_if<true, T>::type;

#define EMU_UNSEEN __attribute__((no_sanitize("thread")))
#define EMU_ATOMIC(name, expression) \
  template <typename T> EMU_UNSEEN inline T name(volatile atomic<T> *at, emu_same<T> x, memory_order) { \
    emu_atomic(at, sizeof(T), 3); \
    T old = at->value; \
    at->value = expression; \
    return old; \
  }
EMU_ATOMIC(atomic_fetch_add_explicit, old + x)
EMU_ATOMIC(atomic_fetch_sub_explicit, old - x)
EMU_ATOMIC(atomic_fetch_max_explicit, max(old, x))
EMU_ATOMIC(atomic_fetch_min_explicit, min(old, x))
EMU_ATOMIC(atomic_fetch_or_explicit, old | x)
EMU_ATOMIC(atomic_fetch_and_explicit, old & x)
EMU_ATOMIC(atomic_fetch_xor_explicit, old ^ x)
EMU_ATOMIC(atomic_exchange_explicit, x)
#undef EMU_ATOMIC
template <typename T>
EMU_UNSEEN inline void atomic_store_explicit(volatile atomic<T> *at, emu_same<T> x, memory_order) {
  emu_atomic(at, sizeof(T), 2);
  at->value = x;
}
template <typename T>
EMU_UNSEEN inline T atomic_load_explicit(const volatile atomic<T> *at, memory_order) {
  emu_atomic(at, sizeof(T), 1);
  return at->value;
}
// Never fails by chance, unlike Apple's weak exchange.
template <typename T>
EMU_UNSEEN inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T> *at, T *expected,
                                                             emu_same<T> x, memory_order,
                                                             memory_order) {
  emu_atomic(at, sizeof(T), 3);
  T old = at->value;
  if (__builtin_memcmp(&old, expected, sizeof(T)) != 0) {
    *expected = old;
    return false;
  }
  at->value = x;
  return true;
}
} // namespace metal
typedef metal::atomic<int> atomic_int;
typedef metal::atomic<uint> atomic_uint;
typedef metal::atomic<float> atomic_float;
