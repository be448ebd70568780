// DFlash 2's greedy walk: in each slot the best of K candidates after the one before; one
// threadgroup. score = unary + sum over r of (predecessor[before] hidden) successor[candidate],
// with the product in brackets rounded to P as in MLX.
// unary, candidates: [S, K]. anchor: [] token id. hidden: [S, r]. predecessors, successors: [V, r].
// drafts: [S] int.
const uint slots = candidates_shape[0];
const uint rank = hidden_shape[1];
threadgroup float scores[2][K];
uint before = uint(anchor);
for (uint slot = 0; slot < slots; slot++) {
  // Double buffer: a slow simdgroup may still read the scores of the last slot.
  threadgroup float *score = scores[slot % 2];
  for (uint i = simdgroup_index_in_threadgroup; i < K; i += simdgroups_per_threadgroup) {
    const ulong after = uint(candidates[slot * K + i]);
    float sum = 0.0f;
    for (uint r = thread_index_in_simdgroup; r < rank; r += DFLASH_LANES) {
      const float left = float(predecessors[ulong(before) * rank + r]);
      const P product = P(left * float(hidden[slot * rank + r]));
      sum += float(product) * float(successors[after * rank + r]);
    }
    sum = simd_sum(sum);
    if (thread_index_in_simdgroup == 0) {
      score[i] = unary[slot * K + i] + sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Every thread finds the same candidate; of equal scores the first wins.
  uint best = 0;
  for (uint i = 1; i < K; i++) {
    if (score[i] > score[best]) {
      best = i;
    }
  }
  before = uint(candidates[slot * K + best]);
  if (thread_position_in_threadgroup.x == 0) {
    drafts[slot] = int(before);
  }
}
