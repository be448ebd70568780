// The entries of one split of the positions, those from `low` to `high` - 1: `old` rows of context,
// from position `low` on, then all rows of the block if one of them may be in the split.
struct dflash_split {
  int low, high, old, total;
  int start, context, root, window; // positions of row 0 of the cache and of the block's root

  // The position of entry i; past the last INT_MAX, which is in no split.
  template <typename P>
  inline int position(int i, P depths) const {
    return i < old ? low + i : i < total ? root + depths[i - old] : INT_MAX;
  }

  // The row of the cache where entry i lies.
  inline int place(int i) const {
    return i < old ? low - start + i : context + i - old;
  }

  // Whether the row at position `here` sees entry i, at position `there`: both in the split, in the
  // row's window, and of its path if it is one of the block's rows.
  inline bool sees(int i, ulong seen, int there, int here) const {
    bool near = there >= low && there < high && here - there < window;
    return near && (i < old || ((seen >> (i - old)) & 1));
  }
};

// Split `number` of those that `edges` and `sizes` describe.
template <typename E, typename S>
inline dflash_split dflash_split_of(uint number, E edges, S sizes) {
  dflash_split split;
  split.context = sizes[0];
  split.start = sizes[1];
  split.window = sizes[2];
  split.root = split.start + split.context;
  split.low = edges[number];
  split.high = edges[number + 1];
  split.old = max(0, min(split.root, split.high) - split.low);
  split.total = split.old + (split.high > split.root ? sizes[3] : 0);
  return split;
}

// The block's rows that a row sees, as bits: one or two words for each row.
template <typename P>
inline ulong dflash_seen(P sees, int row, int words) {
  ulong seen = sees[row * words];
  if (words > 1) {
    seen |= ulong(sees[row * words + 1]) << 32;
  }
  return seen;
}
