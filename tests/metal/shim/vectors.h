// Vectors of 2, 3 and 4 with swizzles, and the packed ones.
#pragma once
#include "types.h"

namespace metal {
template <typename T, int N> struct vec;
template <typename T> struct components { static constexpr int n = 1; };
template <typename T, int N> struct components<vec<T, N>> { static constexpr int n = N; };

// `v.yx`: reads as a vector, writes component by component. V comes first so that the
// operators of V are found for a swizzle too.
template <typename V, typename T, int N, int... I>
struct swizzle {
  T all[N];
  constexpr operator V() const { return V(all[I]...); }
  EMU_IF_LINT(constexpr operator V() const constant;)
  constexpr V get() const { return V(all[I]...); }
  constexpr swizzle &operator=(V other) {
    int from = 0;
    ((all[I] = other[from++]), ...);
    return *this;
  }
  constexpr swizzle &operator=(const swizzle &other) { return *this = other.get(); }
#define EMU_ASSIGN(op) \
  constexpr swizzle &operator op##=(V other) { return *this = get() op other; }
  EMU_ASSIGN(+) EMU_ASSIGN(-) EMU_ASSIGN(*) EMU_ASSIGN(/)
#undef EMU_ASSIGN
};
template <typename V, typename T, int N, int... I>
struct components<swizzle<V, T, N, I...>> { static constexpr int n = sizeof...(I); };

#define EMU_2(a, i, b, j) swizzle<vec<T, 2>, T, N, i, j> a##b;
#define EMU_3(a, i, b, j, c, k) swizzle<vec<T, 3>, T, N, i, j, k> a##b##c;
#define EMU_4(a, i, b, j, c, k, d, l) swizzle<vec<T, 4>, T, N, i, j, k, l> a##b##c##d;
#define EMU_PAIRS2(x, y) EMU_2(x, 0, x, 0) EMU_2(x, 0, y, 1) EMU_2(y, 1, x, 0) EMU_2(y, 1, y, 1)
#define EMU_PAIRS3(x, y, z) \
  EMU_PAIRS2(x, y) EMU_2(x, 0, z, 2) EMU_2(y, 1, z, 2) EMU_2(z, 2, x, 0) EMU_2(z, 2, y, 1) \
  EMU_2(z, 2, z, 2) EMU_3(x, 0, y, 1, z, 2) EMU_3(z, 2, y, 1, x, 0) EMU_3(y, 1, z, 2, x, 0) \
  EMU_3(x, 0, x, 0, x, 0)
#define EMU_PAIRS4(x, y, z, w) \
  EMU_PAIRS3(x, y, z) EMU_2(x, 0, w, 3) EMU_2(y, 1, w, 3) EMU_2(z, 2, w, 3) EMU_2(w, 3, x, 0) \
  EMU_2(w, 3, y, 1) EMU_2(w, 3, z, 2) EMU_2(w, 3, w, 3) EMU_3(y, 1, z, 2, w, 3) \
  EMU_4(x, 0, y, 1, z, 2, w, 3) EMU_4(w, 3, z, 2, y, 1, x, 0) EMU_4(z, 2, w, 3, x, 0, y, 1) \
  EMU_4(y, 1, x, 0, w, 3, z, 2) EMU_4(x, 0, z, 2, y, 1, w, 3) EMU_4(x, 0, x, 0, x, 0, x, 0)

template <typename T, int N> struct fields;
template <typename T> struct alignas(2 * sizeof(T)) fields<T, 2> {
  static constexpr int N = 2;
  union {
    T all[2];
    struct { T x, y; };
    struct { T r, g; };
    EMU_PAIRS2(x, y)
  };
};
template <typename T> struct alignas(4 * sizeof(T)) fields<T, 3> {
  static constexpr int N = 3;
  union {
    T all[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
    EMU_PAIRS3(x, y, z)
  };
};
template <typename T> struct alignas(4 * sizeof(T)) fields<T, 4> {
  static constexpr int N = 4;
  union {
    T all[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    EMU_PAIRS4(x, y, z, w)
  };
};

template <typename T, int N>
struct vec : fields<T, N> {
  using fields<T, N>::all;
  vec() = default;
  // A scalar fills every component; other vectors convert by hand only.
  template <typename U, typename = enable_if_t<is_arithmetic_v<U>>>
  constexpr vec(U value) { for (int i = 0; i < N; i++) all[i] = T(value); }
  template <typename U, typename = enable_if_t<!is_same_v<U, T>>>
  explicit constexpr vec(const vec<U, N> &o) { for (int i = 0; i < N; i++) all[i] = T(o.all[i]); }
  template <typename V, typename U, int M, int... I, typename = enable_if_t<!is_same_v<V, vec>>>
  explicit constexpr vec(const swizzle<V, U, M, I...> &o) : vec(o.get()) {}
  constexpr vec(const vec &) = default;
  EMU_IF_LINT(template <typename U, typename = void, typename = enable_if_t<is_arithmetic_v<U>>>
              vec &operator=(U value);
              vec(const constant vec &); template <typename U, typename = enable_if_t<is_same_v<U, vec>>>
              vec &operator=(const constant U &);
              constexpr const constant T &operator[](int i) const constant;)
  constexpr vec &operator=(const vec &o) {
    for (int i = 0; i < N; i++) all[i] = o.all[i];
    return *this;
  }
  template <typename A, typename B, typename... R>
  constexpr vec(A a, B b, R... rest) {
    static_assert(components<A>::n + components<B>::n + (components<R>::n + ... + 0) == N,
                  "a vector is made of exactly its components");
    int at = 0;
    put(at, a), put(at, b), (put(at, rest), ...);
  }
  constexpr T &operator[](int i) { return all[i]; }
  constexpr const T &operator[](int i) const { return all[i]; }

#define EMU_OPERATOR(op) \
  friend constexpr vec operator op(vec a, vec b) { \
    vec c; \
    for (int i = 0; i < N; i++) c.all[i] = T(a.all[i] op b.all[i]); \
    return c; \
  } \
  constexpr vec &operator op##=(vec b) { return *this = *this op b; }
  EMU_OPERATOR(+) EMU_OPERATOR(-) EMU_OPERATOR(*) EMU_OPERATOR(/) EMU_OPERATOR(%)
  EMU_OPERATOR(&) EMU_OPERATOR(|) EMU_OPERATOR(^) EMU_OPERATOR(<<) EMU_OPERATOR(>>)
#undef EMU_OPERATOR
#define EMU_COMPARE(op) \
  friend constexpr vec<bool, N> operator op(vec a, vec b) { \
    vec<bool, N> c; \
    for (int i = 0; i < N; i++) c.all[i] = a.all[i] op b.all[i]; \
    return c; \
  }
  EMU_COMPARE(<) EMU_COMPARE(>) EMU_COMPARE(<=) EMU_COMPARE(>=) EMU_COMPARE(==) EMU_COMPARE(!=)
  EMU_COMPARE(&&) EMU_COMPARE(||)
#undef EMU_COMPARE
  friend constexpr vec operator-(vec a) {
    vec c;
    for (int i = 0; i < N; i++) c.all[i] = T(-a.all[i]);
    return c;
  }
  friend constexpr vec operator~(vec a) {
    vec c;
    for (int i = 0; i < N; i++) c.all[i] = T(~a.all[i]);
    return c;
  }
  friend constexpr vec<bool, N> operator!(vec a) {
    vec<bool, N> c;
    for (int i = 0; i < N; i++) c.all[i] = !a.all[i];
    return c;
  }

 private:
  template <typename U> constexpr void put(int &at, const U &value) { all[at++] = T(value); }
  template <typename U, int M> constexpr void put(int &at, const vec<U, M> &value) {
    for (int i = 0; i < M; i++) all[at++] = T(value.all[i]);
  }
  template <typename V, typename U, int M, int... I>
  constexpr void put(int &at, const swizzle<V, U, M, I...> &value) {
    ((all[at++] = T(value.all[I])), ...);
  }
};

template <typename V, typename T, int N, int... I>
constexpr V emu_vector(const swizzle<V, T, N, I...> &s) { return s.get(); }
template <typename T, int N> constexpr vec<T, N> emu_vector(const vec<T, N> &v) { return v; }

// A vector in memory without the padding and alignment of the real one.
template <typename T, int N>
struct packed_vec {
  T all[N];
  packed_vec() = default;
  EMU_IF_LINT(packed_vec(const packed_vec &) = default; packed_vec(const constant packed_vec &);)
  constexpr packed_vec(const vec<T, N> &o) { for (int i = 0; i < N; i++) all[i] = o.all[i]; }
  constexpr operator vec<T, N>() const {
    vec<T, N> v;
    for (int i = 0; i < N; i++) v.all[i] = all[i];
    return v;
  }
  constexpr T &operator[](int i) { return all[i]; }
  constexpr const T &operator[](int i) const { return all[i]; }
};
} // namespace metal

template <typename To, typename V, typename T, int N, int... I>
inline To as_type(const metal::swizzle<V, T, N, I...> &value) { return as_type<To>(value.get()); }

#define EMU_VECTORS(T) \
  typedef metal::vec<T, 2> T##2; \
  typedef metal::vec<T, 3> T##3; \
  typedef metal::vec<T, 4> T##4; \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
EMU_VECTORS(float) EMU_VECTORS(half) EMU_VECTORS(bfloat) EMU_VECTORS(bool) EMU_VECTORS(char)
EMU_VECTORS(uchar) EMU_VECTORS(short) EMU_VECTORS(ushort) EMU_VECTORS(int) EMU_VECTORS(uint)
EMU_VECTORS(long) EMU_VECTORS(ulong)
#undef EMU_VECTORS
