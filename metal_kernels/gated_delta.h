// The two halves of a step of the gated delta rule, on one part of one row of the state.

template <int N>
inline void dflash_decay(thread float4 *state, const thread float4 *gate) {
  for (int i = 0; i < N; ++i) {
    state[i] *= gate[i];
  }
}

template <int N>
inline void dflash_learn(thread float4 *state, const thread float4 *key, float delta) {
  for (int i = 0; i < N; ++i) {
    state[i] = fma(key[i], float4(delta), state[i]);
  }
}

// One gate for each head [Hv], or one for each element of the key [Hv, Dk].
template <int LANES, int N, bool VECTOR, typename P>
inline void dflash_load_gate(thread float4 *gate, P g, uint head, uint lane) {
  if (VECTOR) {
    dflash_load_part<LANES, N>(gate, g + head * (4 * LANES * N), lane);
  } else {
    for (int i = 0; i < N; ++i) {
      gate[i] = float4(float(g[head]));
    }
  }
}
