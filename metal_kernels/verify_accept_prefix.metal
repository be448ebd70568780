// Combines the chunks of all rows and counts the accepted drafts; one threadgroup.
// values, places: [R, C]. drafts: [R - 1]. outcome: [R + 2] int, see kernels/outcome.py.
const uint rows = values_shape[0];
const uint chunks = values_shape[1];
const uint thread_id = thread_position_in_threadgroup.x;

// One simdgroup for each row.
threadgroup int chosen[DFLASH_MAX_ROWS];
threadgroup bool bad[DFLASH_MAX_ROWS];
for (uint row = simdgroup_index_in_threadgroup; row < rows; row += DFLASH_SIMDGROUPS) {
  dflash_best best = {-INFINITY, DFLASH_NOWHERE};
  bool broken = false;
  for (uint chunk = thread_index_in_simdgroup; chunk < chunks; chunk += DFLASH_LANES) {
    const dflash_best other = {values[row * chunks + chunk], places[row * chunks + chunk]};
    broken |= dflash_is_nan(other.value);
    if (dflash_beats(other, best)) {
      best = other;
    }
  }
  best = dflash_simd_best(best);
  broken = simd_any(broken);
  if (thread_index_in_simdgroup == 0) {
    chosen[row] = int(best.place);
    bad[row] = broken;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Thread j takes draft j; the first draft that differs ends the prefix.
threadgroup uint ends[DFLASH_SIMDGROUPS];
threadgroup bool breaks[DFLASH_SIMDGROUPS];
uint end = rows - 1;
bool broken = thread_id < rows && bad[thread_id];
if (thread_id < rows - 1) {
  const int draft = int(drafts[thread_id]);
  outcome[3 + thread_id] = draft;
  end = chosen[thread_id] == draft ? end : thread_id;
}
end = simd_min(end);
broken = simd_any(broken);
if (thread_index_in_simdgroup == 0) {
  ends[simdgroup_index_in_threadgroup] = end;
  breaks[simdgroup_index_in_threadgroup] = broken;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (thread_id == 0) {
  for (uint group = 1; group < DFLASH_SIMDGROUPS; group++) {
    end = min(end, ends[group]);
    broken |= breaks[group];
  }
  outcome[0] = int(broken);
  outcome[1] = int(end);
  outcome[2] = chosen[end];
}
