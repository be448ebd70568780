// x: [.., K], M rows in all; weight: [N, K], or packed uint [N, K * Bits / 32] (5 bits: ushort, twice as many);
// scales, biases: [N, K / Group]; bias: [N], added if Biased; out: [M, N]. An input that the mode
// does not have is any other buffer.
//
// A threadgroup computes up to Rows rows and 32 columns, 8 columns for each simdgroup: every LANES
// lanes go along K for COLUMNS columns, and load each weight from device memory once for all rows.
// The rows pass through threadgroup memory as floats, one tile of K at a time. A lane's part of K
// and the order of its sums do not depend on the row or on M.
// Grid: x = 128 threads for 32 columns; y = M / Rows, rounded up.
constexpr int LANES = 8;
constexpr int COLUMNS = 2;
constexpr int QUADS = 4;
constexpr int TILE = 4 * QUADS * LANES;
constexpr int FOURS = QUADS * LANES;
constexpr int BITS = Bits > 0 ? Bits : 8;
constexpr int WIDTH = BITS == 5 ? 16 : 32;
constexpr int WORDS = 4 * QUADS * BITS / WIDTH;
threadgroup float4 tile[Rows * FOURS];

int K = x_shape[x_ndim - 1];
int M = 1;
for (int axis = 0; axis < x_ndim - 1; ++axis) {
  M *= x_shape[axis];
}
int N = weight_shape[0];
int threads = threads_per_threadgroup.x;
int me = thread_position_in_threadgroup.x;
int lane = me % LANES;
int column = thread_position_in_grid.x / LANES * COLUMNS;
int first = threadgroup_position_in_grid.y * Rows;

float sum[COLUMNS][Rows];
DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
  DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
    sum[c][row] = 0.0f;
  }
}

for (int begin = 0; begin < K; begin += TILE) {
  // Load the weights first, to hide their latency behind the staging of the rows.
  uint words[COLUMNS][WORDS];
  float scale[COLUMNS], shift[COLUMNS];
  float4 plain[COLUMNS][QUADS];
  DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
    size_t start = size_t(column + c) * K;
    if (Bits > 0) {
      int k = begin + dflash_place<Bits, LANES, QUADS>(0, lane);
      bool ours = k < K && column + c < N;
      size_t from = (start + k) / (4 * QUADS) * WORDS;
      DFLASH_UNROLL for (int i = 0; i < WORDS; ++i) {
        words[c][i] = ours ? uint(weight[from + i]) : 0;
      }
      size_t group = (start + k) / Group;
      scale[c] = !ours ? 0.0f : Mxfp4 ? dflash_e8m0(uint(scales[group])) : float(scales[group]);
      shift[c] = ours && !Mxfp4 ? float(biases[group]) : 0.0f;
    } else {
      DFLASH_UNROLL for (int quad = 0; quad < QUADS; ++quad) {
        int k = begin + dflash_place<Bits, LANES, QUADS>(quad, lane);
        bool ours = k < K && column + c < N;
        plain[c][quad] = ours ? dflash_four(weight + start + k) : float4(0.0f);
      }
    }
  }

  // tile[row][quad][lane], so that neighbouring lanes read neighbours.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int at = me; at < Rows * FOURS; at += threads) {
    int row = first + at / FOURS;
    int k = begin + dflash_place<Bits, LANES, QUADS>(at % FOURS / LANES, at % LANES);
    tile[at] = row < M && k < K ? dflash_four(x + size_t(row) * K + k) : float4(0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  DFLASH_UNROLL for (int quad = 0; quad < QUADS; ++quad) {
    float4 w[COLUMNS];
    DFLASH_UNROLL for (int c = 0; c < COLUMNS; ++c) {
      w[c] = Bits > 0 ? dflash_unpacked<BITS, WIDTH, Mxfp4>(words[c], quad, scale[c], shift[c])
                      : plain[c][quad];
    }
    DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
      float4 part = tile[row * FOURS + quad * LANES + lane];
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
    float total = dflash_lanes_sum<LANES>(sum[c][row]);
    if (row % LANES == lane && first + row < M && ours) {
      out[size_t(first + row) * N + column + c] = static_cast<OutT>(total + more);
    }
  }
}
