// The position of entry i of a split's `total`: `old` rows of context from position `low` on, then
// the block's rows, each its depth behind `root`. Past them INT_MAX, which is in no split.
template <typename P>
inline int dflash_position_of(int i, int old, int total, int low, int root, P depths) {
  return i < old ? low + i : i < total ? root + depths[i - old] : INT_MAX;
}
