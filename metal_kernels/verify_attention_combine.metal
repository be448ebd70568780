// partial: float [S, Hkv, R, D]; norms: float [S, Hkv, R, 2]: outputs of verify_attention;
// sinks: [Hq], one more logit for each head if Sinks, else any buffer; out: [Hq * T, D]
// Splits without a visible key for the row are skipped. Grid: x = D; y = rows.
uint column = thread_position_in_grid.x;
uint row = thread_position_in_grid.y;
uint rows = Hkv * norms_shape[2];
int S = norms_shape[0];
float sink = Sinks ? float(sinks[row / (rows / sinks_shape[0])]) : -FLT_MAX;

float highest = sink;
for (int s = 0; s < S; ++s) {
  size_t place = size_t(s) * rows + row;
  if (norms[2 * place + 1] != 0.0f) {
    highest = max(highest, norms[2 * place]);
  }
}
float weights = exp(sink - highest);
float sum = 0.0f;
for (int s = 0; s < S; ++s) {
  size_t place = size_t(s) * rows + row;
  if (norms[2 * place + 1] != 0.0f) {
    float weight = exp(norms[2 * place] - highest);
    weights = fma(weight, norms[2 * place + 1], weights);
    sum = fma(weight, partial[place * D + column], sum);
  }
}
out[row * D + column] = static_cast<OutT>(sum / weights);
