// What the accepting kernels share: the best of some logits, and probabilities as integers.

constant constexpr uint THREADS = 256;         // of a threadgroup
constant constexpr uint SIMDGROUPS = THREADS / LANES;
constant constexpr uint CHUNK = 4096;          // tokens of the vocabulary to a threadgroup
constant constexpr uint MAX_ROWS = 256;        // of a block, the anchor's row included
constant constexpr uint MAX_CHUNKS = 256;       // of the vocabulary: 1,048,576 tokens
constant constexpr float ONE = 1073741824.0f;  // a probability of 1 as an integer, 2^30
constant constexpr float TINY = 1.1754944e-38f;

// A logit and its token; `place` is NOWHERE before any was seen.
struct Best {
  float value;
  uint place;
};

constant constexpr uint NOWHERE = 0xffffffffu;

// Whether a is to be taken before b: the larger, of equals the first.
inline bool beats(Best a, Best b) {
  return a.value > b.value || (a.value == b.value && a.place < b.place);
}

// The best of a simdgroup, in every lane.
inline Best simd_best(Best mine) {
  for (ushort step = 1; step < LANES; step *= 2) {
    Best other;
    other.value = simd_shuffle_xor(mine.value, step);
    other.place = simd_shuffle_xor(mine.place, step);
    if (beats(other, mine)) {
      mine = other;
    }
  }
  return mine;
}

// weight p to the nearest 1 / ONE; 0 for no number.
inline int whole(float p, float weight) {
  float units = rint((weight * ONE) * p);
  return units > 0.0f ? int(units) : 0;
}

// A word as one of 2^24 floats in [0, 1).
inline float uniform_of(uint word) {
  return float(word >> 8) * (1.0f / 16777216.0f);
}

// q of a token in a slot: from rows of the whole vocabulary (K is 0), or from K candidates'.
template <int K, typename Chances, typename Tokens>
inline float chance_of(Chances q, Tokens candidates, uint slot, uint token, uint vocab) {
  if (K == 0) {
    return q[ulong(slot) * vocab + token];
  }
  for (uint i = slot * K; i < (slot + 1) * K; i++) {
    if (uint(candidates[i]) == token) {
      return q[i];
    }
  }
  return 0.0f;
}

// Token by token: how many drafts stay.
template <typename Words>
inline uint keep_each(
    const threadgroup float *at_p, const threadgroup float *at_q, Words words, uint drafted) {
  uint kept = 0;
  while (kept < drafted && uniform_of(words[kept]) * at_q[kept] < at_p[kept]) {
    kept++;
  }
  return kept;
}

// The block as a whole: w of a row, the running min(1, w p / q) over the drafts before it.
inline float joint_weight(const threadgroup float *at_p, const threadgroup float *at_q, uint row) {
  float weight = 1.0f;
  for (uint slot = 0; slot < row; slot++) {
    weight = min(weight * (at_p[slot] / max(at_q[slot], TINY)), 1.0f);
  }
  return weight;
}
