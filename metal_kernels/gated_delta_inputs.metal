// mixed: [T, C], C = 2 Hk Dk + Hv Dv; a, b: [T, Hv]; window: [K - 1, C]; weight: [C, K];
// A_log, dt_bias: [Hv]; places: int [T or more, K], rows of [window, mixed]
// q, k: [T, Hk, Dk]; v: [T, Hv, Dv]; g: float [T, Hv]; beta: [T, Hv]; inputs: [K - 1 + T, C]
// A simdgroup makes one head of a row. Grid: x = 32 (2 Hk + Hv), y = T.
constexpr int W = K - 1;
constexpr uint C = 2 * Hk * Dk + Hv * Dv;
constexpr int N = ((Dk > Dv ? Dk : Dv) + 31) / 32; // elements of a lane
uint head = thread_position_in_grid.x / DFLASH_LANES;
uint lane = thread_position_in_grid.x % DFLASH_LANES;
uint t = thread_position_in_grid.y;
bool is_key = head < 2 * Hk; // or a query; else a value
uint hv = head - 2 * Hk;
uint size = is_key ? Dk : Dv;
uint first = is_key ? head * Dk : 2 * Hk * Dk + hv * Dv;

float x[N];
for (int i = 0; i < N; ++i) {
  x[i] = 0.0f;
}
for (int tap = 0; tap < K; ++tap) {
  int from = places[t * K + tap];
  for (int part = 0; part < N; ++part) {
    uint d = DFLASH_LANES * part + lane;
    uint c = first + d;
    if (d < size) {
      float input = from < W ? float(window[from * C + c]) : float(mixed[(from - W) * C + c]);
      x[part] += input * float(weight[c * K + tap]);
    }
  }
}
// SiLU. Numbers are rounded where MLX rounds them.
float squares = 0.0f;
for (int i = 0; i < N; ++i) {
  float y = float(InT(x[i]));
  x[i] = float(InT(y * float(InT(1.0f / (1.0f + precise::exp(-y))))));
  squares += x[i] * x[i];
}
if (is_key) {
  float unit = precise::rsqrt(dflash_lanes_sum<32>(squares) / Dk + 1e-6f / Dk);
  float scale = float(InT(head < Hk ? 1.0f / Dk : precise::rsqrt(float(Dk))));
  for (int i = 0; i < N; ++i) {
    x[i] = scale * float(InT(x[i] * unit));
  }
}
for (int part = 0; part < N; ++part) {
  uint d = DFLASH_LANES * part + lane;
  uint c = first + d;
  if (d < size) {
    InT out = InT(x[part]);
    if (head < Hk) {
      q[t * Hk * Dk + c] = out;
    } else if (is_key) {
      k[t * Hk * Dk + c - Hk * Dk] = out;
    } else {
      v[t * Hv * Dv + c - 2 * Hk * Dk] = out;
    }
    inputs[(W + t) * C + c] = mixed[t * C + c];
    if (t == 0) {
      for (int row = 0; row < W; ++row) {
        inputs[row * C + c] = window[row * C + c];
      }
    }
  }
}
if (!is_key && lane == 0) {
  float step = float(SumT(float(a[t * Hv + hv]) + float(dt_bias[hv])));
  step = max(step, 0.0f) + log1p(precise::exp(-abs(step)));
  g[t * Hv + hv] = precise::exp(-precise::exp(float(A_log[hv])) * step);
  beta[t * Hv + hv] = static_cast<BetaT>(1.0f / (1.0f + precise::exp(-float(b[t * Hv + hv]))));
}
