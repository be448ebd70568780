// As small_m_qmm_rows, with a matrix for each expert: weight [E, N, K], and so on; bias [E, N].
// x: [R, K]. indices: an expert for each of P pairs, or more; P is a multiple of R, and row r
// is that of pairs r * P / R to (r + 1) * P / R - 1. out: [P, N].
//
// The threadgroups of the first pair of an expert compute all of its pairs, Rows at a time, and those
// of its other pairs nothing. So its weights come from device memory once, however many rows chose it:
// of more than Rows, the same threadgroup reads them again from caches.
// Grid: x = 128 threads for 16 columns; y = P.
int R = x_shape[0];
int K = x_shape[1];
int N = weight_shape[1];
int P = threadgroups_per_grid.y;
int lane = thread_index_in_simdgroup;
int column = thread_position_in_grid.x / DFLASH_LANES * DFLASH_COLUMNS;
int pair = threadgroup_position_in_grid.y;
int expert = indices[pair];
if (dflash_next_pair(indices, expert, 0, pair, lane) < pair) {
  return;
}

int columns[DFLASH_COLUMNS];
DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
  columns[c] = expert * N + min(column + c, N - 1);
}
while (pair < P) {
  int pairs[Rows], rows[Rows];
  int count = 0;
  DFLASH_UNROLL for (int i = 0; i < Rows; ++i) {
    pairs[i] = pair;
    rows[i] = pair / (P / R);
    if (pair < P) {
      count += 1;
      pair = dflash_next_pair(indices, expert, pair + 1, P, lane);
    }
  }
  float sum[DFLASH_COLUMNS * Rows];
  DFLASH_UNROLL for (int i = 0; i < DFLASH_COLUMNS * Rows; ++i) {
    sum[i] = 0.0f;
  }
  dflash_multiply_rows<Bits, Group, Mxfp4, Rows>(
      sum, x, weight, scales, biases, rows, count, columns, K, lane);

  DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
    float more = Biased ? float(bias[columns[c]]) : 0.0f;
    DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
      if (row < count) {
        float total = dflash_lanes_sum<DFLASH_LANES>(sum[c * Rows + row]);
        if (lane == 0 && column + c < N) {
          out[size_t(pairs[row]) * N + column + c] = static_cast<OutT>(total + more);
        }
      }
    }
  }
}
