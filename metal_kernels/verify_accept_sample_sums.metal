// Sums of (w p - q)+ and of w p over one chunk of a row; threadgroup (chunk, row).
// JOINT: a threadgroup row for every row of p. Else one, for the row of the bonus token.
// p: [R, V]. q: [R - 1, V], or with K > 0 [R - 1, K] of `candidates` [R - 1, K].
// drafts: [R - 1]. words: [R] uint. rests, wholes: [rows, C] int, in units of 1 / ONE.
const uint vocab = p_shape[1];
const uint drafted = p_shape[0] - 1;
const uint thread_id = thread_position_in_threadgroup.x;
threadgroup float at_p[MAX_ROWS];
threadgroup float at_q[MAX_ROWS];
if (thread_id < drafted) {
  const uint draft = uint(drafts[thread_id]);
  at_p[thread_id] = p[ulong(thread_id) * vocab + draft];
  at_q[thread_id] = chance_of<K>(q, candidates, thread_id, draft, vocab);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

const uint out = threadgroup_position_in_grid.y;
const uint row = JOINT ? out : keep_each(at_p, at_q, words, drafted);
const float weight = JOINT && row < drafted ? joint_weight(at_p, at_q, row) : 1.0f;
const uint chunk = threadgroup_position_in_grid.x;
const uint first = chunk * CHUNK;
const uint last = min(first + CHUNK, vocab);
int rest = 0;
int all = 0;
for (uint token = first + thread_id; token < last; token += THREADS) {
  const int share = whole(p[ulong(row) * vocab + token], weight);
  all += share;
  rest += share;
  if (K == 0 && row < drafted) {
    rest -= min(share, whole(q[ulong(row) * vocab + token], 1.0f));
  }
}
if (K > 0 && row < drafted) {
  for (uint i = row * K + thread_id; i < (row + 1) * K; i += THREADS) {
    const uint token = uint(candidates[i]);
    if (first <= token && token < last) {
      rest -= min(whole(p[ulong(row) * vocab + token], weight), whole(q[i], 1.0f));
    }
  }
}

threadgroup int rests_of[SIMDGROUPS];
threadgroup int wholes_of[SIMDGROUPS];
rest = simd_sum(rest);
all = simd_sum(all);
if (thread_index_in_simdgroup == 0) {
  rests_of[simdgroup_index_in_threadgroup] = rest;
  wholes_of[simdgroup_index_in_threadgroup] = all;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (thread_id == 0) {
  for (uint group = 1; group < SIMDGROUPS; group++) {
    rest += rests_of[group];
    all += wholes_of[group];
  }
  const uint chunks = threadgroups_per_grid.x;
  rests[out * chunks + chunk] = rest;
  wholes[out * chunks + chunk] = all;
}
