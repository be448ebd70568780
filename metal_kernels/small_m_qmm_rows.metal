// x: [.., K], M rows in all; weight: [N, K], or packed uint [N, K * Bits / 32] (5 bits: ushort, twice as many);
// scales, biases: [N, K / Group]; bias: [N], added if Biased; out: [M, N]. An input that the mode
// does not have is any other buffer.
//
// For up to Rows rows. A simdgroup computes COLUMNS columns: its lanes go along K, load each weight
// once for all rows, and multiply in float32. There is no threadgroup memory and no barrier.
// Grid: x = 128 threads for 16 columns; y = M / Rows, rounded up.
constexpr int COLUMNS = 4;
constexpr int QUADS = 4;
constexpr int TILE = 4 * QUADS * DFLASH_LANES;
constexpr int BITS = Bits > 0 ? Bits : 8;
constexpr int WIDTH = BITS == 5 ? 16 : 32;
constexpr int WORDS = 4 * QUADS * BITS / WIDTH;

int K = x_shape[x_ndim - 1];
int M = 1;
for (int axis = 0; axis < x_ndim - 1; ++axis) {
  M *= x_shape[axis];
}
int N = weight_shape[0];
int lane = thread_index_in_simdgroup;
int column = thread_position_in_grid.x / DFLASH_LANES * COLUMNS;
int first = threadgroup_position_in_grid.y * Rows;

float sum[COLUMNS][Rows];
DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
  DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
    sum[c][row] = 0.0f;
  }
}

for (int begin = 0; begin < K; begin += TILE) {
  uint words[COLUMNS][WORDS];
  float scale[COLUMNS], shift[COLUMNS];
  if (Bits > 0) {
    DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
      // Past the end any weight will do: the row's numbers are zeros there.
      int k = min(begin + 4 * QUADS * lane, K - 4 * QUADS);
      size_t start = size_t(min(column + c, N - 1)) * K + k;
      DFLASH_UNROLL for (int i = 0; i < WORDS; ++i) {
        words[c][i] = uint(weight[start / (4 * QUADS) * WORDS + i]);
      }
      scale[c] = Mxfp4 ? dflash_e8m0(uint(scales[start / Group])) : float(scales[start / Group]);
      shift[c] = Mxfp4 ? 0.0f : float(biases[start / Group]);
    }
  }

  DFLASH_UNROLL for (int quad = 0; quad < QUADS; ++quad) {
    // A lane's packed weights are neighbours; others are interleaved, so that lanes read neighbours.
    int k = begin + 4 * (Bits > 0 ? QUADS * lane + quad : DFLASH_LANES * quad + lane);
    float4 w[COLUMNS];
    DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
      if (Bits > 0) {
        DFLASH_UNROLL for (int j = 0; j < 4; ++j) {
          w[c][j] = dflash_weight_at<BITS, WIDTH, Mxfp4>(words[c], 4 * quad + j, scale[c], shift[c]);
        }
      } else {
        w[c] = dflash_four(weight + size_t(min(column + c, N - 1)) * K + min(k, K - 4));
      }
    }
    DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
      int m = min(first + row, M - 1);
      float4 part = k < K ? dflash_four(x + size_t(m) * K + k) : float4(0.0f);
      DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
        DFLASH_UNROLL for (int j = 0; j < 4; ++j) {
          sum[c][row] = fma(part[j], w[c][j], sum[c][row]);
        }
      }
    }
  }
}

DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
  bool ours = column + c < N;
  float more = Biased && ours ? float(bias[column + c]) : 0.0f;
  DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
    float total = dflash_lanes_sum<DFLASH_LANES>(sum[c][row]);
    if (lane == 0 && first + row < M && ours) {
      out[size_t(first + row) * N + column + c] = static_cast<OutT>(total + more);
    }
  }
}
