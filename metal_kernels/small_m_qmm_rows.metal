// x: [.., K], M rows in all; weight: [N, K], or packed uint [N, K * Bits / 32] (5 bits: ushort, twice as many);
// scales, biases: [N, K / Group]; bias: [N], added if Biased; out: [M, N]. An input that the mode
// does not have is any other buffer.
//
// For up to Rows rows. A simdgroup computes DFLASH_COLUMNS columns. There is no threadgroup memory and
// no barrier.
// Grid: x = 128 threads for 16 columns; y = M / Rows, rounded up.
int K = x_shape[x_ndim - 1];
int M = 1;
for (int axis = 0; axis < x_ndim - 1; ++axis) {
  M *= x_shape[axis];
}
int N = weight_shape[0];
int lane = thread_index_in_simdgroup;
int column = thread_position_in_grid.x / DFLASH_LANES * DFLASH_COLUMNS;
int first = threadgroup_position_in_grid.y * Rows;

float sum[DFLASH_COLUMNS * Rows];
int columns[DFLASH_COLUMNS], rows[Rows];
DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
  columns[c] = min(column + c, N - 1);
  DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
    rows[row] = min(first + row, M - 1);
    sum[c * Rows + row] = 0.0f;
  }
}
dflash_multiply_rows<Bits, Group, Mxfp4, Rows>(
    sum, x, weight, scales, biases, rows, Rows, columns, K, lane);

DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
  bool ours = column + c < N;
  float more = Biased && ours ? float(bias[column + c]) : 0.0f;
  DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
    float total = dflash_lanes_sum<DFLASH_LANES>(sum[c * Rows + row]);
    if (lane == 0 && first + row < M && ours) {
      out[size_t(first + row) * N + column + c] = static_cast<OutT>(total + more);
    }
  }
}
