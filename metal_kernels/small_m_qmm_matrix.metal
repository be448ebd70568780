// Inputs and output as of small_m_qmm_rows, for up to Rows rows, a multiple of 8.
//
// A threadgroup computes 32 columns: its simdgroups take turns at the blocks of K, each multiplies
// its blocks by 8x8 matrices of float32, and the last step adds the simdgroups' sums in order. A
// lane unpacks a weight once for all rows, into the fragment that it multiplies; a fragment of rows
// serves 4 fragments of weights. The order of a row's sums does not depend on the row or on M, if
// the matrices' does not.
// A lane holds row `r` and columns 2 `q`, 2 `q` + 1 of a fragment (the layout that MLX relies on).
// Grid: x = 32 * SIMDGROUPS threads for 32 columns; y = M / Rows, rounded up.
constexpr int SIMDGROUPS = 8;
constexpr int FRAGMENTS = 4;
constexpr int COLUMNS = 8 * FRAGMENTS;
constexpr int PARTS = Rows / 8;
constexpr int CHUNK = 32; // of a row of weights, for a lane
constexpr int BLOCK = 4 * CHUNK;
constexpr int BITS = Bits > 0 ? Bits : 8;
constexpr int WIDTH = BITS == 5 ? 16 : 32;
constexpr int WORDS = CHUNK * BITS / WIDTH;
threadgroup float sums[SIMDGROUPS * Rows * COLUMNS];

int K = x_shape[x_ndim - 1];
int M = 1;
for (int axis = 0; axis < x_ndim - 1; ++axis) {
  M *= x_shape[axis];
}
int N = weight_shape[0];
int me = thread_position_in_threadgroup.x;
int simdgroup = me / DFLASH_LANES;
int lane = me % DFLASH_LANES;
int r = ((lane / 4) & 4) + (lane / 2) % 4;
int q = ((lane / 4) & 2) + lane % 2;
int column = threadgroup_position_in_grid.x * COLUMNS;
int first = threadgroup_position_in_grid.y * Rows;

simdgroup_matrix<float, 8, 8> sum[FRAGMENTS][PARTS];
DFLASH_UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
  DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
    sum[n][part] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
}

for (int begin = BLOCK * simdgroup; begin < K; begin += BLOCK * SIMDGROUPS) {
  uint words[FRAGMENTS][WORDS];
  float scale[FRAGMENTS], shift[FRAGMENTS];
  if (Bits > 0) {
    DFLASH_UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
      // Past the end any weight will do: the row's numbers are zeros there.
      int k = min(begin + CHUNK * q, K - CHUNK);
      size_t start = size_t(min(column + 8 * n + r, N - 1)) * K + k;
      DFLASH_UNROLL for (int i = 0; i < WORDS; ++i) {
        words[n][i] = uint(weight[start / CHUNK * WORDS + i]);
      }
      scale[n] = Mxfp4 ? dflash_e8m0(uint(scales[start / Group])) : float(scales[start / Group]);
      shift[n] = Mxfp4 ? 0.0f : float(biases[start / Group]);
    }
  }

  DFLASH_UNROLL for (int eight = 0; eight < 4; ++eight) {
    // Row 2 a + b of a fragment of rows is their numbers 8 eight + 4 b of chunk a, in four fragments.
    int k = begin + dflash_eight<Bits>(eight, r / 2) + 4 * (r % 2);
    float4 rows[PARTS][2];
    DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
      DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
        int m = min(first + 8 * part + 2 * q + j, M - 1);
        rows[part][j] = k < K ? dflash_four(x + size_t(m) * K + k) : float4(0.0f);
      }
    }
    float4 plain[FRAGMENTS][2];
    if (Bits == 0) {
      DFLASH_UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
          int from = min(begin + dflash_eight<Bits>(eight, q) + 4 * j, K - 4);
          plain[n][j] = dflash_four(weight + size_t(min(column + 8 * n + r, N - 1)) * K + from);
        }
      }
    }
    DFLASH_UNROLL for (int i = 0; i < 4; ++i) {
      simdgroup_matrix<float, 8, 8> some[PARTS];
      DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
        DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
          some[part].thread_elements()[j] = rows[part][j][i];
        }
      }
      DFLASH_UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        simdgroup_matrix<float, 8, 8> weights;
        DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
          weights.thread_elements()[j] =
              Bits == 0 ? plain[n][j][i]
                        : dflash_weight_at<BITS, WIDTH, Mxfp4>(
                              words[n], 8 * eight + 4 * j + i, scale[n], shift[n]);
        }
        DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
          simdgroup_multiply_accumulate(sum[n][part], weights, some[part], sum[n][part]);
        }
      }
    }
  }
}

// sums[simdgroup][row][column]
DFLASH_UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
  DFLASH_UNROLL for (int part = 0; part < PARTS; ++part) {
    DFLASH_UNROLL for (int j = 0; j < 2; ++j) {
      int row = 8 * part + 2 * q + j;
      sums[(simdgroup * Rows + row) * COLUMNS + 8 * n + r] = sum[n][part].thread_elements()[j];
    }
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int at = me; at < Rows * COLUMNS; at += DFLASH_LANES * SIMDGROUPS) {
  int row = first + at / COLUMNS;
  int n = column + at % COLUMNS;
  if (row < M && n < N) {
    float total = 0.0f;
    for (int other = 0; other < SIMDGROUPS; ++other) {
      total += sums[other * Rows * COLUMNS + at];
    }
    float more = Biased ? float(bias[n]) : 0.0f;
    out[size_t(row) * N + n] = static_cast<OutT>(total + more);
  }
}
