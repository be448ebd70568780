// The number of accepted drafts, and the bonus token: its chunk by the sums, then the token.
// One threadgroup. Inputs: those of verify_accept_sample_sums, and its outputs.
// outcome: [R + 2] int, see kernels/outcome.py.
const uint vocab = p_shape[1];
const uint drafted = p_shape[0] - 1;
const uint chunks = residual_sums_shape[1];
const uint thread_id = thread_position_in_threadgroup.x;
const uint group_id = simdgroup_index_in_threadgroup;
threadgroup float at_p[DFLASH_MAX_ROWS];
threadgroup float at_q[DFLASH_MAX_ROWS];
if (thread_id < drafted) {
  const uint draft = uint(drafts[thread_id]);
  outcome[3 + thread_id] = int(draft);
  at_p[thread_id] = p[ulong(thread_id) * vocab + draft];
  at_q[thread_id] = dflash_draft_probability<K>(q, candidates, thread_id, draft, vocab);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

uint accepted = 0;
float weight = 1.0f;
threadgroup bool passed[DFLASH_MAX_ROWS];
if (BLOCK) {
  for (uint row = 1 + group_id; row < drafted; row += DFLASH_SIMDGROUPS) {
    int sum = 0;
    for (uint chunk = thread_index_in_simdgroup; chunk < chunks; chunk += DFLASH_LANES) {
      sum += residual_sums[row * chunks + chunk];
    }
    const float surplus = float(simd_sum(sum)) / DFLASH_ONE;
    const float spread = surplus + (1.0f - dflash_block_weight(at_p, at_q, row));
    if (thread_index_in_simdgroup == 0) {
      const float share = dflash_uniform_of(random_bits[row - 1]);
      passed[row - 1] = spread == 0.0f || share * spread < surplus;
    }
  }
  if (thread_id == 0) {
    passed[drafted - 1] =
        dflash_uniform_of(random_bits[drafted - 1]) < dflash_block_weight(at_p, at_q, drafted);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  accepted = drafted;
  while (accepted > 0 && !passed[accepted - 1]) {
    accepted--;
  }
  weight = accepted < drafted ? dflash_block_weight(at_p, at_q, accepted) : 1.0f;
} else {
  accepted = dflash_accept_tokens(at_p, at_q, random_bits, drafted);
}

// Find the chunk of the bonus token.
threadgroup int residuals_of[DFLASH_MAX_CHUNKS];
threadgroup int sums_of[DFLASH_MAX_CHUNKS];
if (thread_id < chunks) {
  residuals_of[thread_id] = residual_sums[(BLOCK ? accepted : 0) * chunks + thread_id];
  sums_of[thread_id] = p_sums[(BLOCK ? accepted : 0) * chunks + thread_id];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
int total = 0;
for (uint chunk = 0; chunk < chunks; chunk++) {
  total += residuals_of[chunk];
}
const bool plain = total == 0; // the residual is 0: p and q are equal, the weight is 1
if (plain) {
  for (uint chunk = 0; chunk < chunks; chunk++) {
    total += sums_of[chunk];
  }
}
const int place = int(mulhi(random_bits[drafted], uint(total)));
uint chunk = 0;
int before = 0;
while (chunk < chunks - 1) {
  const int sum = plain ? sums_of[chunk] : residuals_of[chunk];
  if (place < before + sum) {
    break;
  }
  before += sum;
  chunk++;
}

// Each thread takes DFLASH_CHUNK / DFLASH_THREADS neighbouring tokens.
int parts[DFLASH_CHUNK / DFLASH_THREADS];
int own = 0;
const uint first = chunk * DFLASH_CHUNK + thread_id * (DFLASH_CHUNK / DFLASH_THREADS);
for (uint i = 0; i < DFLASH_CHUNK / DFLASH_THREADS; i++) {
  const uint token = first + i;
  parts[i] = 0;
  if (token < vocab) {
    parts[i] = dflash_to_fixed_point(p[ulong(accepted) * vocab + token], weight);
    if (!plain && accepted < drafted) {
      const float chance = dflash_draft_probability<K>(q, candidates, accepted, token, vocab);
      parts[i] = max(parts[i] - dflash_to_fixed_point(chance, 1.0f), 0);
    }
  }
  own += parts[i];
}
threadgroup int groups[DFLASH_SIMDGROUPS];
const int group_sum = simd_sum(own);
if (thread_index_in_simdgroup == 0) {
  groups[group_id] = group_sum;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint group = 0; group < group_id; group++) {
  before += groups[group];
}
before += simd_prefix_exclusive_sum(own);
if (before <= place && place < before + own) {
  uint i = 0;
  while (place >= before + parts[i]) {
    before += parts[i];
    i++;
  }
  outcome[2] = int(first + i);
}

// One NaN makes the whole row NaN: softmax spreads it.
threadgroup bool broken[DFLASH_SIMDGROUPS];
bool bad = thread_id <= drafted && dflash_is_nan(p[ulong(thread_id) * vocab]);
bad = simd_any(bad);
if (thread_index_in_simdgroup == 0) {
  broken[group_id] = bad;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (thread_id == 0) {
  for (uint group = 1; group < DFLASH_SIMDGROUPS; group++) {
    bad |= broken[group];
  }
  outcome[0] = int(bad);
  outcome[1] = int(accepted);
  if (total == 0) {
    outcome[2] = 0;
  }
}
