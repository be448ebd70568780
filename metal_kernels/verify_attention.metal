// q: [Hq, T, D], R = Hq / Hkv * T rows for each KV head
// keys, values: [Hkv, capacity, D], rows by position
// sees: uint [.., words], bit j of row t: whether it sees the block's row j; depths: int [..]; both
// have at least T rows. edges: int [..], where the S splits begin, and the end of the last.
// sizes: int [4], rows of context, position of row 0 of keys, window, T
// factors: float [2], scale and cap
// partial: float [S, Hkv, R, D], not normalised; norms: float [S, Hkv, R, 2], maximum and sum
//
// A threadgroup computes one split of the positions for one KV head: it loads each key and value
// to threadgroup memory once; every LANES lanes hold one row of queries. With Matrices a simdgroup
// multiplies its 8 rows with 8 keys at a time, by 8x8 matrices in the layout of small_m_qmm_matrix.
// Without, lanes go through the keys in order: edges are at fixed positions and masked keys change
// nothing, so that the order of a row's sums does not depend on the other rows.
// Grid: x = rows of queries * LANES, whole threadgroups; y = Hkv; z = S, the last split first: it is
// the longest, and cores that end early take shorter ones.
constexpr int LANES = D > 128 ? 8 : 4;
constexpr int N = D / (4 * LANES);
constexpr int TILE = 8;
constexpr int FOURS = D / 4;
constexpr int STEP = FOURS + (Matrices ? 1 : 0); // the rows of a matrix begin in different banks
constexpr int PARTS = Matrices ? D / 8 : 1;
threadgroup float4 tile_k[TILE * STEP];
threadgroup float4 tile_v[TILE * STEP];

int T = sizes[3];
int R = q_shape[0] / Hkv * T;
int capacity = keys_shape[1];
int context = sizes[0];
int start = sizes[1];
int window = sizes[2];
float scale = factors[0];
float cap = factors[1];
int threads = threads_per_threadgroup.x;
int me = thread_position_in_threadgroup.x;
int simd_lane = me % DFLASH_LANES;
int r = ((simd_lane / 4) & 4) + (simd_lane / 2) % 4;
uint lane = Matrices ? ((simd_lane / 4) & 2) + simd_lane % 2 : me % LANES;
uint head = threadgroup_position_in_grid.y;
uint split = threadgroups_per_grid.z - 1 - threadgroup_position_in_grid.z;
int mine = thread_position_in_grid.x / LANES;
if (Matrices) {
  mine = mine / 8 * 8 + r;
}
int row = min(mine, R - 1);
int t = row % T;

int root = start + context;
int here = root + depths[t];
int words = sees_shape[1];
ulong seen = sees[t * words];
if (words > 1) {
  seen |= ulong(sees[t * words + 1]) << 32;
}

// This split: `old` rows of context from position `low` on, then those of the block's rows whose
// position falls into it.
int low = edges[split];
int high = edges[split + 1];
int old = max(0, min(root, high) - low);
int total = old + (high > root ? T : 0);

float4 query[N], key[N], sum[N];
simdgroup_matrix<float, 8, 8> queries[PARTS], sums[PARTS];
if (Matrices) {
  DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
    sums[part] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
      float own = q[(size_t(head) * R + row) * D + 8 * part + 2 * lane + j];
      queries[part].thread_elements()[j] = scale * own;
    }
  }
} else {
  dflash_load_part<LANES, N>(query, q + (size_t(head) * R + row) * D, lane);
  for (int i = 0; i < N; ++i) {
    query[i] *= scale;
    sum[i] = float4(0.0f);
  }
}
float highest = -FLT_MAX;
float weights = 0.0f;

for (int begin = 0; begin < total; begin += TILE) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int at = me; at < TILE * FOURS; at += threads) {
    int i = begin + at / FOURS;
    int there = dflash_position_of(i, old, total, low, root, depths);
    bool ours = there >= low;
    ours = ours && there < high;
    size_t from = size_t(head) * capacity + (i < old ? low - start + i : context + i - old);
    int to = at / FOURS * STEP + at % FOURS;
    tile_k[to] = ours ? dflash_four(keys + from * D + at % FOURS * 4) : float4(0.0f);
    tile_v[to] = ours ? dflash_four(values + from * D + at % FOURS * 4) : float4(0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (Matrices) {
    simdgroup_matrix<float, 8, 8> scores = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
      simdgroup_matrix<float, 8, 8> some;
      simdgroup_load(some, (threadgroup float *)tile_k + 8 * part, 4 * STEP, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(scores, queries[part], some, scores);
    }
    float best = highest;
    bool shown[2];
    DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
      int i = begin + 2 * lane + j;
      int there = dflash_position_of(i, old, total, low, root, depths);
      shown[j] = dflash_sees(i, old, seen, there, low, high, here, window);
      if (Capped) {
        scores.thread_elements()[j] = cap * precise::tanh(scores.thread_elements()[j] / cap);
      }
      best = shown[j] ? max(best, scores.thread_elements()[j]) : best;
    }
    best = max(best, simd_shuffle_xor(best, 1));
    best = max(best, simd_shuffle_xor(best, 8));
    float smaller = exp(highest - best);
    highest = best;
    weights *= smaller;
    DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
      float weight = shown[j] ? exp(scores.thread_elements()[j] - best) : 0.0f;
      weights += weight;
      scores.thread_elements()[j] = weight;
    }
    bool changed = simd_any(smaller != 1.0f);
    DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
      if (changed) {
        DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
          sums[part].thread_elements()[j] *= smaller;
        }
      }
      simdgroup_matrix<float, 8, 8> some;
      simdgroup_load(some, (threadgroup float *)tile_v + 8 * part, 4 * STEP);
      simdgroup_multiply_accumulate(sums[part], scores, some, sums[part]);
    }
    continue;
  }

  // The scores first: they do not wait for each other.
  float scores[TILE];
  for (int n = 0; n < TILE; ++n) {
    for (int c = 0; c < N; ++c) {
      key[c] = tile_k[n * STEP + LANES * c + lane];
    }
    scores[n] = dflash_lanes_sum<LANES>(dflash_dot_part<N>(query, key));
  }
  for (int n = 0; n < TILE; ++n) {
    int i = begin + n;
    int there = dflash_position_of(i, old, total, low, root, depths);
    if (dflash_sees(i, old, seen, there, low, high, here, window)) {
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
        sum[c] = fma(float4(weight), tile_v[n * STEP + LANES * c + lane], sum[c]);
      }
    }
  }
}

if (Matrices) {
  weights += simd_shuffle_xor(weights, 1);
  weights += simd_shuffle_xor(weights, 8);
}
if (mine < R) {
  size_t place = (size_t(split) * Hkv + head) * R + row;
  if (Matrices) {
    DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
      DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
        partial[place * D + 8 * part + 2 * lane + j] = sums[part].thread_elements()[j];
      }
    }
  } else {
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < 4; ++j) {
        partial[place * D + 4 * (LANES * i + lane) + j] = sum[i][j];
      }
    }
  }
  if (lane == 0) {
    norms[2 * place] = highest;
    norms[2 * place + 1] = weights;
  }
}
