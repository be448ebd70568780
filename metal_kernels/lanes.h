// A row of numbers in LANES neighbouring lanes of a simdgroup: part[i][j] of a lane is element
// 4 * (LANES * i + lane) + j, so that the lanes together read neighbours. Sums have a fixed order.

template <typename P>
inline float4 dflash_four(P from) {
  return float4(float(from[0]), float(from[1]), float(from[2]), float(from[3]));
}

template <int LANES, int N, typename P>
inline void dflash_load_part(thread float4 *part, P row, uint lane) {
  for (int i = 0; i < N; ++i) {
    part[i] = dflash_four(row + 4 * (LANES * i + lane));
  }
}

// The sum over the lanes of a row; every lane gets it.
template <int LANES>
inline float dflash_lanes_sum(float x) {
  for (ushort step = 1; step < LANES; step *= 2) {
    x += simd_shuffle_xor(x, step);
  }
  return x;
}

template <int N>
inline float dflash_dot_part(const thread float4 *a, const thread float4 *b) {
  float4 sum = a[0] * b[0];
  for (int i = 1; i < N; ++i) {
    sum = fma(a[i], b[i], sum);
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}
