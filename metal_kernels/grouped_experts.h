// The first of the pairs `from` to `end` - 1 that has this expert, `end` if none has; for the whole
// simdgroup.
template <typename I>
inline int dflash_next_pair(I indices, int expert, int from, int end, int lane) {
  int found = end;
  for (int at = from + lane; at < end; at += DFLASH_LANES) {
    found = min(found, int(indices[at]) == expert ? at : end);
  }
  return simd_min(found);
}
