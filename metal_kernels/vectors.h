// Products of a few rows as vectors: the lanes of a simdgroup go along K, load each weight of COLUMNS
// columns once for all rows, and multiply in float32.

constant constexpr int DFLASH_COLUMNS = 4; // of a simdgroup
constant constexpr int DFLASH_QUADS = 4; // of weights of a column, for a lane

// Adds to sum[c * Rows + i] the lane's part of row `rows[i]` of x times row `columns[c]` of the
// weights. The order of a sum depends on nothing but K. Rows from `count` on are left out.
template <int Bits, int Group, bool Mxfp4, int Rows, typename X, typename W, typename S, typename B>
inline void dflash_multiply_rows(
    thread float *sum, X x, W weight, S scales, B biases, const thread int *rows, int count,
    const thread int *columns, int K, int lane) {
  constexpr int TILE = 4 * DFLASH_QUADS * DFLASH_LANES;
  constexpr int BITS = Bits > 0 ? Bits : 8;
  constexpr int WIDTH = BITS == 5 ? 16 : 32;
  constexpr int WORDS = 4 * DFLASH_QUADS * BITS / WIDTH;
  for (int begin = 0; begin < K; begin += TILE) {
    uint words[DFLASH_COLUMNS][WORDS];
    float scale[DFLASH_COLUMNS], shift[DFLASH_COLUMNS];
    if (Bits > 0) {
      DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
        // Past the end any weight will do: the row's numbers are zeros there.
        int k = min(begin + 4 * DFLASH_QUADS * lane, K - 4 * DFLASH_QUADS);
        size_t start = size_t(columns[c]) * K + k;
        DFLASH_UNROLL for (int i = 0; i < WORDS; ++i) {
          words[c][i] = uint(weight[start / (4 * DFLASH_QUADS) * WORDS + i]);
        }
        scale[c] = Mxfp4 ? dflash_e8m0(uint(scales[start / Group])) : float(scales[start / Group]);
        shift[c] = Mxfp4 ? 0.0f : float(biases[start / Group]);
      }
    }

    DFLASH_UNROLL for (int quad = 0; quad < DFLASH_QUADS; ++quad) {
      // A lane's packed weights are neighbours; others are interleaved, so that lanes read neighbours.
      int k = begin + 4 * (Bits > 0 ? DFLASH_QUADS * lane + quad : DFLASH_LANES * quad + lane);
      float4 w[DFLASH_COLUMNS];
      DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
        if (Bits > 0) {
          DFLASH_UNROLL for (int j = 0; j < 4; ++j) {
            w[c][j] = dflash_weight_at<BITS, WIDTH, Mxfp4>(words[c], 4 * quad + j, scale[c], shift[c]);
          }
        } else {
          w[c] = dflash_four(weight + size_t(columns[c]) * K + min(k, K - 4));
        }
      }
      DFLASH_UNROLL for (int row = 0; row < Rows; ++row) {
        if (row < count) {
          float4 part = k < K ? dflash_four(x + size_t(rows[row]) * K + k) : float4(0.0f);
          DFLASH_UNROLL for (int c = 0; c < DFLASH_COLUMNS; ++c) {
            DFLASH_UNROLL for (int j = 0; j < 4; ++j) {
              sum[c * Rows + row] = fma(part[j], w[c][j], sum[c * Rows + row]);
            }
          }
        }
      }
    }
  }
}
