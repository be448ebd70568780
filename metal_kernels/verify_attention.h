// The position of entry i of a split's `total`: `old` rows of context from position `low` on, then
// the block's rows, each its depth behind `root`. Past them INT_MAX, which is in no split.
template <typename P>
inline int dflash_position_of(int i, int old, int total, int low, int root, P depths) {
  return i < old ? low + i : i < total ? root + depths[i - old] : INT_MAX;
}

// Whether the row at position `here` sees entry i, at position `there`: both in the split from `low`
// to `high`, in the row's window, and of its path if it is one of the block's rows.
inline bool dflash_sees(
    int i, int old, ulong seen, int there, int low, int high, int here, int window) {
  bool near = there >= low && there < high && here - there < window;
  return near && (i < old || ((seen >> (i - old)) & 1));
}
