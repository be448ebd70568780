// The largest logit of one chunk of one row; threadgroup (chunk, row) of DFLASH_THREADS threads.
// logits: [R, V]. values: [R, C] float, NaN where the chunk has one. places: [R, C] uint.
const uint vocab = logits_shape[1];
const uint row = threadgroup_position_in_grid.y;
const uint chunk = threadgroup_position_in_grid.x;
const uint thread_id = thread_position_in_threadgroup.x;
const uint first = chunk * DFLASH_CHUNK;
const uint last = min(first + DFLASH_CHUNK, vocab);

// Each thread reads four neighbouring tokens; a simdgroup reads without gaps.
dflash_best best = {-INFINITY, DFLASH_NOWHERE};
bool broken = false;
for (uint four = first + 4 * thread_id; four < last; four += 4 * DFLASH_THREADS) {
  for (uint token = four; token < min(four + 4, last); token++) {
    const dflash_best seen = {float(logits[ulong(row) * vocab + token]), token};
    broken |= dflash_is_nan(seen.value);
    if (dflash_beats(seen, best)) {
      best = seen;
    }
  }
}

threadgroup float values_of[DFLASH_SIMDGROUPS];
threadgroup uint places_of[DFLASH_SIMDGROUPS];
best = dflash_simd_best(best);
broken = simd_any(broken);
if (thread_index_in_simdgroup == 0) {
  values_of[simdgroup_index_in_threadgroup] = broken ? dflash_no_number() : best.value;
  places_of[simdgroup_index_in_threadgroup] = best.place;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (thread_id == 0) {
  best = {values_of[0], places_of[0]};
  broken = dflash_is_nan(best.value);
  for (uint group = 1; group < DFLASH_SIMDGROUPS; group++) {
    const dflash_best other = {values_of[group], places_of[group]};
    broken |= dflash_is_nan(other.value);
    if (dflash_beats(other, best)) {
      best = other;
    }
  }
  const uint chunks = threadgroups_per_grid.x;
  values[row * chunks + chunk] = broken ? dflash_no_number() : best.value;
  places[row * chunks + chunk] = best.place;
}
