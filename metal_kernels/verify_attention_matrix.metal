// Inputs, outputs and splits as of verify_attention; Rows: the most packed rows of a threadgroup.
//
// Teams of SLICES simdgroups have up to 32 packed rows each and go through the same tiles of keys. A
// simdgroup multiplies its team's rows by 16 keys of a tile, then the weights of the whole tile by
// its slice of the values' columns, whose sums it keeps. Queries, keys and values go from device
// memory straight into fragments of 8x8 matrices: a team loads a key or value once, and the other
// teams of the threadgroup, at the same tile, find it in a cache. Only maxima and weights are in
// threadgroup memory, where a simdgroup finds those of all keys: two barriers for a tile.
//
// A lane holds row `r` and columns 2 `lane`, 2 `lane` + 1 of a fragment, as in small_m_qmm_matrix.
// Fragments share out columns of queries, keys and values so that a lane's are neighbours in memory.
//
// Registers of a thread where D is 256, for 16-bit keys: 64 sums, 16 scores, 8 maxima and sums of
// weights, 8 keys, 4 queries, 4 fragments to multiply, about 14 addresses: 118 of 128. So a
// threadgroup has at most 384 threads, which with 128 registers each have 192 KB.
// Grid: x = threadgroups with all packed rows, about as many for each team; y = Hkv; z = S, the last
// split first.
constexpr int SLICES = D > 128 ? 4 : 2;
constexpr int PARTS = D / (8 * SLICES);
constexpr int BLOCKS = 4; // of 8 packed rows, for a team
constexpr int EIGHTS = 2; // of a tile's keys, for a simdgroup
constexpr int KEYS = 8 * EIGHTS * SLICES;
constexpr int STEP = KEYS + 8; // rows begin in different banks
constexpr int CHUNK = D % 32 == 0 ? 4 : 2; // columns of a key that a lane loads at once
threadgroup float tile[Rows * STEP];
threadgroup float maxima[SLICES * Rows];

int T = sizes[3];
int R = q_shape[0] / Hkv * T;
float scale = factors[0];
float cap = factors[1];
int simdgroup = thread_position_in_threadgroup.x / DFLASH_LANES;
int simd_lane = thread_position_in_threadgroup.x % DFLASH_LANES;
int r = ((simd_lane / 4) & 4) + (simd_lane / 2) % 4;
int lane = ((simd_lane / 4) & 2) + simd_lane % 2;
int slice = simdgroup % SLICES;
int team = simdgroup / SLICES;
uint head = threadgroup_position_in_grid.y;
uint number = threadgroups_per_grid.z - 1 - threadgroup_position_in_grid.z;
dflash_split split = dflash_split_of(number, edges, sizes);
int last = split.total - 1;
auto head_queries = q + size_t(head) * R * D;
auto head_keys = keys + size_t(head) * keys_shape[1] * D;
auto head_values = values + size_t(head) * keys_shape[1] * D;

// The team's blocks of rows, and where its rows begin in `tile` and `maxima`.
int teams = threads_per_threadgroup.x / (DFLASH_LANES * SLICES);
int all = (R + 7) / 8;
int each = (all - 1) / int(threadgroups_per_grid.x * teams) + 1;
int first = int(threadgroup_position_in_grid.x * teams + team) * each;
int blocks = min(each, all - first);
int base = 8 * BLOCKS * team;

simdgroup_matrix<float, 8, 8> sums[BLOCKS][PARTS];
float highest[BLOCKS], weights[BLOCKS];
DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
  highest[b] = -FLT_MAX;
  weights[b] = 0.0f;
  DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
    sums[b][part] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

for (int begin = 0; begin < split.total; begin += KEYS) {
  int mine = begin + 8 * EIGHTS * slice;
  simdgroup_matrix<float, 8, 8> scores[BLOCKS][EIGHTS];
  int from[EIGHTS][2];
  DFLASH_UNROLL for (int n = 0; n < EIGHTS; ++n) {
    DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
      scores[b][n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
      // Past the end any key will do: no row sees it.
      from[n][j] = split.place(min(mine + 8 * n + 2 * lane + j, last)) * D + CHUNK * r;
    }
  }
  for (int column = 0; column < D; column += 8 * CHUNK) {
    KeyT key[EIGHTS][2][CHUNK];
    DFLASH_UNROLL for (int n = 0; n < EIGHTS; ++n) {
      DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
        DFLASH_UNROLL for (int i = 0; i < CHUNK; ++i) {
          key[n][j][i] = head_keys[from[n][j] + column + i];
        }
      }
    }
    DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
      if (b < blocks) {
        int row = min(8 * (first + b) + r, R - 1);
        QueryT query[2 * CHUNK];
        DFLASH_UNROLL for (int i = 0; i < 2 * CHUNK; ++i) {
          query[i] = head_queries[row * D + column + 2 * CHUNK * lane + i];
        }
        DFLASH_UNROLL for (int i = 0; i < CHUNK; ++i) {
          simdgroup_matrix<float, 8, 8> some, other;
          DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
            some.thread_elements()[j] = float(query[CHUNK * j + i]);
          }
          DFLASH_UNROLL for (int n = 0; n < EIGHTS; ++n) {
            DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
              other.thread_elements()[j] = float(key[n][j][i]);
            }
            simdgroup_multiply_accumulate(scores[b][n], some, other, scores[b][n]);
          }
        }
      }
    }
  }

  // The score of a key that a row does not see is -FLT_MAX: its weight is 0 as soon as the row has
  // seen a key, which every row has in some split. Most tiles are seen by all rows.
  bool open = begin + KEYS <= split.old;
  open = open && split.root + T - 1 - split.low - begin < split.window;
  DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
    if (b < blocks) {
      int here = 0;
      ulong seen = 0;
      if (!open) {
        int t = min(8 * (first + b) + r, R - 1) % T;
        here = split.root + depths[t];
        seen = dflash_seen(sees, t, sees_shape[1]);
      }
      float best = -FLT_MAX;
      DFLASH_UNROLL for (int n = 0; n < EIGHTS; ++n) {
        DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
          float score = scale * scores[b][n].thread_elements()[j];
          if (Capped) {
            score = cap * precise::tanh(score / cap);
          }
          int i = mine + 8 * n + 2 * lane + j;
          bool shown = open || split.sees(i, seen, split.position(i, depths), here);
          score = shown ? score : -FLT_MAX;
          best = max(best, score);
          scores[b][n].thread_elements()[j] = score;
        }
      }
      best = max(best, simd_shuffle_xor(best, 1));
      best = max(best, simd_shuffle_xor(best, 8));
      if (lane == 0) {
        maxima[slice * Rows + base + 8 * b + r] = best;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
    if (b < blocks) {
      int at = base + 8 * b + r;
      float best = highest[b];
      DFLASH_UNROLL for (int other = 0; other < SLICES; ++other) {
        best = max(best, maxima[other * Rows + at]);
      }
      float smaller = exp(highest[b] - best);
      highest[b] = best;
      weights[b] *= smaller;
      DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
        DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
          sums[b][part].thread_elements()[j] *= smaller;
        }
        DFLASH_UNROLL for (int n = 0; n < EIGHTS; ++n) {
          float weight = exp(scores[b][n].thread_elements()[j] - best);
          tile[at * STEP + mine - begin + 8 * n + 2 * lane + j] = weight;
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  int used = min(KEYS, split.total - begin);
  for (int eight = 0; eight < used; eight += 8) {
    int entry = split.place(min(begin + eight + r, last));
    KeyT value[2 * PARTS];
    DFLASH_UNROLL for (int i = 0; i < 2 * PARTS; ++i) {
      value[i] = head_values[entry * D + 2 * PARTS * (4 * slice + lane) + i];
    }
    DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
      if (b < blocks) {
        simdgroup_matrix<float, 8, 8> some, other;
        simdgroup_load(some, tile + (base + 8 * b) * STEP + eight, STEP);
        weights[b] += some.thread_elements()[0] + some.thread_elements()[1];
        DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
          DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
            other.thread_elements()[j] = float(value[PARTS * j + part]);
          }
          simdgroup_multiply_accumulate(sums[b][part], some, other, sums[b][part]);
        }
      }
    }
  }
}

DFLASH_UNROLL for (int b = 0; b < BLOCKS; ++b) {
  if (b < blocks) {
    weights[b] += simd_shuffle_xor(weights[b], 1);
    weights[b] += simd_shuffle_xor(weights[b], 8);
    int row = 8 * (first + b) + r;
    if (row < R) {
      size_t place = (size_t(number) * Hkv + head) * R + row;
      DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
        DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
          size_t to = place * D + 2 * PARTS * (4 * slice + lane) + PARTS * j + part;
          partial[to] = sums[b][part].thread_elements()[j];
        }
      }
      if (slice == 0 && lane == 0) {
        norms[2 * place] = highest[b];
        norms[2 * place + 1] = weights[b];
      }
    }
  }
}
