// q: [Hq, T, D], R = Hq / Hkv * T rows for each KV head
// keys, values: [Hkv, capacity, D], rows by position
// sees: uint [.., words], bit j of row t: whether it sees the block's row j; depths: int [..]; both
// have at least T rows. edges: int [..], where the S splits begin, and the end of the last.
// sizes: int [4], rows of context, position of row 0 of keys, window, T
// factors: float [2], scale and cap
// partial: float [S, Hkv, R, D], not normalised; norms: float [S, Hkv, R, 2], maximum and sum
//
// A threadgroup computes one split of the positions for one KV head: it loads each key and value
// to threadgroup memory once; every LANES lanes hold one row of queries and go through the keys in
// order. Edges are at fixed positions and masked keys change nothing, so that the order of a row's
// sums does not depend on the other rows: exact mode. Others take verify_attention_matrix.
// Grid: x = rows of queries * LANES, whole threadgroups; y = Hkv; z = S, the last split first: it is
// the longest, and cores that end early take shorter ones.
constexpr int LANES = D > 128 ? 8 : 4;
constexpr int N = D / (4 * LANES);
constexpr int TILE = 8;
constexpr int FOURS = D / 4;
threadgroup float4 tile_k[TILE * FOURS];
threadgroup float4 tile_v[TILE * FOURS];

int T = sizes[3];
int R = q_shape[0] / Hkv * T;
int capacity = keys_shape[1];
float scale = factors[0];
float cap = factors[1];
int threads = threads_per_threadgroup.x;
int me = thread_position_in_threadgroup.x;
uint lane = me % LANES;
uint head = threadgroup_position_in_grid.y;
uint number = threadgroups_per_grid.z - 1 - threadgroup_position_in_grid.z;
dflash_split split = dflash_split_of(number, edges, sizes);
int mine = thread_position_in_grid.x / LANES;
int row = min(mine, R - 1);
int t = row % T;
int here = split.root + depths[t];
ulong seen = dflash_seen(sees, t, sees_shape[1]);

float4 query[N], key[N], sum[N];
dflash_load_part<LANES, N>(query, q + (size_t(head) * R + row) * D, lane);
for (int i = 0; i < N; ++i) {
  query[i] *= scale;
  sum[i] = float4(0.0f);
}
float highest = -FLT_MAX;
float weights = 0.0f;

for (int begin = 0; begin < split.total; begin += TILE) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int at = me; at < TILE * FOURS; at += threads) {
    int i = begin + at / FOURS;
    int there = split.position(i, depths);
    bool ours = there >= split.low;
    ours = ours && there < split.high;
    size_t from = size_t(head) * capacity + split.place(i);
    tile_k[at] = ours ? dflash_four(keys + from * D + at % FOURS * 4) : float4(0.0f);
    tile_v[at] = ours ? dflash_four(values + from * D + at % FOURS * 4) : float4(0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // The scores first: they do not wait for each other.
  float scores[TILE];
  for (int n = 0; n < TILE; ++n) {
    for (int c = 0; c < N; ++c) {
      key[c] = tile_k[n * FOURS + LANES * c + lane];
    }
    scores[n] = dflash_lanes_sum<LANES>(dflash_dot_part<N>(query, key));
  }
  for (int n = 0; n < TILE; ++n) {
    int i = begin + n;
    if (split.sees(i, seen, split.position(i, depths), here)) {
      float score = scores[n];
      if (Capped) {
        score = cap * precise::tanh(score / cap);
      }
      if (score > highest) {
        float smaller = exp(highest - score);
        highest = score;
        weights *= smaller;
        for (int c = 0; c < N; ++c) {
          sum[c] *= smaller;
        }
      }
      float weight = exp(score - highest);
      weights += weight;
      for (int c = 0; c < N; ++c) {
        sum[c] = fma(float4(weight), tile_v[n * FOURS + LANES * c + lane], sum[c]);
      }
    }
  }
}

if (mine < R) {
  size_t place = (size_t(number) * Hkv + head) * R + row;
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < 4; ++j) {
      partial[place * D + 4 * (LANES * i + lane) + j] = sum[i][j];
    }
  }
  if (lane == 0) {
    norms[2 * place] = highest;
    norms[2 * place + 1] = weights;
  }
}
