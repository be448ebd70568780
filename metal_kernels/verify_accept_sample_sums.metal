// Sums of (w p - q)+ and of w p over one chunk of a row; threadgroup (chunk, row).
// BLOCK (block verification): all rows of p. Else (token rejection): the row of the bonus token.
// p: [R, V]. q: [R - 1, V], or with K > 0 [R - 1, K] of `candidates` [R - 1, K].
// drafts: [R - 1]. random_bits: [R] uint.
// residual_sums, p_sums: [rows, C] int, in units of 1 / DFLASH_ONE.
const uint vocab = p_shape[1];
const uint drafted = p_shape[0] - 1;
const uint thread_id = thread_position_in_threadgroup.x;
threadgroup float at_p[DFLASH_MAX_ROWS];
threadgroup float at_q[DFLASH_MAX_ROWS];
if (thread_id < drafted) {
  const uint draft = uint(drafts[thread_id]);
  at_p[thread_id] = p[ulong(thread_id) * vocab + draft];
  at_q[thread_id] = dflash_draft_probability<K>(q, candidates, thread_id, draft, vocab);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

const uint out = threadgroup_position_in_grid.y;
const uint row = BLOCK ? out : dflash_accept_tokens(at_p, at_q, random_bits, drafted);
const float weight = BLOCK && row < drafted ? dflash_block_weight(at_p, at_q, row) : 1.0f;
const uint chunk = threadgroup_position_in_grid.x;
const uint first = chunk * DFLASH_CHUNK;
const uint last = min(first + DFLASH_CHUNK, vocab);
int residual_sum = 0;
int p_sum = 0;
for (uint token = first + thread_id; token < last; token += DFLASH_THREADS) {
  const int share = dflash_to_fixed_point(p[ulong(row) * vocab + token], weight);
  p_sum += share;
  residual_sum += share;
  if (K == 0 && row < drafted) {
    residual_sum -= min(share, dflash_to_fixed_point(q[ulong(row) * vocab + token], 1.0f));
  }
}
if (row < drafted) {
  for (uint i = row * K + thread_id; i < (row + 1) * K; i += DFLASH_THREADS) {
    const uint token = uint(candidates[i]);
    if (first <= token && token < last) {
      const int share = dflash_to_fixed_point(p[ulong(row) * vocab + token], weight);
      residual_sum -= min(share, dflash_to_fixed_point(q[i], 1.0f));
    }
  }
}

threadgroup int residuals_of[DFLASH_SIMDGROUPS];
threadgroup int sums_of[DFLASH_SIMDGROUPS];
residual_sum = simd_sum(residual_sum);
p_sum = simd_sum(p_sum);
if (thread_index_in_simdgroup == 0) {
  residuals_of[simdgroup_index_in_threadgroup] = residual_sum;
  sums_of[simdgroup_index_in_threadgroup] = p_sum;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (thread_id == 0) {
  for (uint group = 1; group < DFLASH_SIMDGROUPS; group++) {
    residual_sum += residuals_of[group];
    p_sum += sums_of[group];
  }
  const uint chunks = threadgroups_per_grid.x;
  residual_sums[out * chunks + chunk] = residual_sum;
  p_sums[out * chunks + chunk] = p_sum;
}
