// As gated_delta_tape, but row t starts from the state after row parents[t], or from `state` if
// parents[t] is -1. A row whose parent is not the row before it replays its path, by the deltas of
// its ancestors in threadgroup memory. At most 64 rows. Writes no state.
constexpr int LANES = 8;
constexpr int N = Dk / (4 * LANES);
threadgroup float deltas[Rows][64];
uint row = thread_position_in_grid.x / LANES;
uint lane = thread_position_in_grid.x % LANES;
uint hv = row / Dv;
uint hk = hv / (Hv / Hk);
uint mine = thread_position_in_threadgroup.x / LANES;
int T = v_shape[0];

float4 root[N], s[N], key[N], gate[N], query[N];
dflash_load_part<LANES, N>(root, state + row * Dk, lane);
for (int i = 0; i < N; ++i) {
  s[i] = root[i];
}
for (int t = 0; t < T; ++t) {
  if (parents[t] != t - 1) {
    ulong path = 0;
    int next = parents[t];
    for (int a = t - 1; a >= 0; --a) {
      if (a == next) {
        path |= ulong(1) << a;
        next = parents[a];
      }
    }
    for (int i = 0; i < N; ++i) {
      s[i] = root[i];
    }
    for (int a = 0; a < t; ++a) {
      if ((path >> a) & 1) {
        dflash_load_part<LANES, N>(key, k + (a * Hk + hk) * Dk, lane);
        dflash_load_gate<LANES, N, Vector>(gate, g, a * Hv + hv, lane);
        dflash_decay<N>(s, gate);
        dflash_learn<N>(s, key, deltas[mine][a]);
      }
    }
  }
  uint head = t * Hv + hv;
  uint place = t * Hv * Dv + row;
  dflash_load_part<LANES, N>(key, k + (t * Hk + hk) * Dk, lane);
  dflash_load_part<LANES, N>(query, q + (t * Hk + hk) * Dk, lane);
  dflash_load_gate<LANES, N, Vector>(gate, g, head, lane);
  dflash_decay<N>(s, gate);
  float known = dflash_lanes_sum<LANES>(dflash_dot_part<N>(s, key));
  float d = (float(v[place]) - known) * float(beta[head]);
  dflash_learn<N>(s, key, d);
  float out = dflash_lanes_sum<LANES>(dflash_dot_part<N>(s, query));
  if (lane == 0) {
    y[place] = static_cast<InT>(out);
    delta[place] = d;
    deltas[mine][t] = d;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
