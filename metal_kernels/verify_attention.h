// The position of entry i of a split: `old` rows of context from position `low` on, then the
// block's rows, each its depth behind `root`.
template <typename P>
inline int position_of(int i, int old, int low, int root, P depths) {
  return i < old ? low + i : root + depths[i - old];
}
