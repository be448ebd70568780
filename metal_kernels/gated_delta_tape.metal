// q, k: [T, Hk, Dk]; v: [T, Hv, Dv]; g: [T, Hv] or [T, Hv, Dk]; beta: [T, Hv]; state: [Hv, Dv, Dk]
// y: [T, Hv, Dv]; delta: float [T, Hv, Dv]; after: float [Hv, Dv, Dk]
// Eight lanes hold one row of the state through all T steps. Grid: 8 * Hv * Dv threads.
constexpr int LANES = 8;
constexpr int N = Dk / (4 * LANES);
uint row = thread_position_in_grid.x / LANES;
uint lane = thread_position_in_grid.x % LANES;
uint hv = row / Dv;
uint hk = hv / (Hv / Hk);
int T = v_shape[0];

float4 s[N], key[N], gate[N], query[N];
dflash_load_part<LANES, N>(s, state + row * Dk, lane);
for (int t = 0; t < T; ++t) {
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
  }
}
for (int i = 0; i < N; ++i) {
  for (int j = 0; j < 4; ++j) {
    after[row * Dk + 4 * (LANES * i + lane) + j] = s[i][j];
  }
}
