// state: float [L, Hv, Dv, Dk]; delta: float [L, T, Hv, Dv]; k: [L, T, Hk, Dk];
// g: [L, T, Hv] or [L, T, Hv, Dk]; path: int [P], count: int [1]; inputs: [L, W + T, C]
// after: float [L, Hv, Dv, Dk]; window: [L, W, C]
// Grid: x = Hv * Dv * Dk / 4 float4s of the state, then W * C elements of the window; y = layer.
uint i = thread_position_in_grid.x;
uint layer = thread_position_in_grid.y;
uint fours = Hv * Dv * Dk / 4;
int T = delta_shape[1];
int n = count[0];

if (i < fours) {
  uint row = 4 * i / Dk;
  uint column = 4 * i % Dk;
  uint hv = row / Dv;
  uint hk = hv / (Hv / Hk);
  size_t place = (size_t(layer) * fours + i) * 4;
  float4 s = dflash_four(state + place);
  for (int a = 0; a < n; ++a) {
    uint t = layer * T + path[a];
    uint head = t * Hv + hv;
    float4 gate = Vector ? dflash_four(g + head * Dk + column) : float4(float(g[head]));
    float4 key = dflash_four(k + (t * Hk + hk) * Dk + column);
    dflash_decay<1>(&s, &gate);
    dflash_learn<1>(&s, &key, delta[t * Hv * Dv + row]);
  }
  for (int j = 0; j < 4; ++j) {
    after[place + j] = s[j];
  }
} else {
  uint W = inputs_shape[1] - T;
  uint C = inputs_shape[2];
  uint row = (i - fours) / C;
  uint column = (i - fours) % C;
  // The row `n` later in [old window, accepted inputs].
  uint from = row + n;
  if (from >= W) {
    from = W + path[from - W];
  }
  window[(layer * W + row) * C + column] = inputs[(layer * (W + T) + from) * C + column];
}
