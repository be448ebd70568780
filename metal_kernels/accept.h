// Shared by the accept kernels: argmax of logits, and probabilities as fixed-point integers.

constant constexpr uint DFLASH_THREADS = 256;  // of a threadgroup
constant constexpr uint DFLASH_SIMDGROUPS = DFLASH_THREADS / DFLASH_LANES;
constant constexpr uint DFLASH_CHUNK = 4096;  // tokens of the vocabulary for one threadgroup
constant constexpr uint DFLASH_MAX_ROWS = 256;  // of a block, the anchor's row included
constant constexpr uint DFLASH_MAX_CHUNKS = 256;  // of the vocabulary: 1,048,576 tokens
constant constexpr float DFLASH_ONE = 1073741824.0f;  // a probability of 1 as an integer, 2^30
constant constexpr float DFLASH_TINY = 1.1754944e-38f;

// A logit and its token; `place` is DFLASH_NOWHERE if there is no logit yet.
struct dflash_best {
  float value;
  uint place;
};

constant constexpr uint DFLASH_NOWHERE = 0xffffffffu;

// Whether a wins over b: the larger logit; of equal logits the first token.
inline bool dflash_beats(dflash_best a, dflash_best b) {
  bool larger = a.value > b.value;
  return larger || (a.value == b.value && a.place < b.place);
}

// The best of a simdgroup; every lane gets it.
inline dflash_best dflash_simd_best(dflash_best mine) {
  for (ushort step = 1; step < DFLASH_LANES; step *= 2) {
    dflash_best other;
    other.value = simd_shuffle_xor(mine.value, step);
    other.place = simd_shuffle_xor(mine.place, step);
    if (dflash_beats(other, mine)) {
      mine = other;
    }
  }
  return mine;
}

// weight p in units of 1 / DFLASH_ONE, rounded to the nearest; 0 for NaN.
inline int dflash_to_fixed_point(float p, float weight) {
  float units = rint((weight * DFLASH_ONE) * p);
  return units > 0.0f ? int(units) : 0;
}

// Random bits as one of 2^24 floats in [0, 1).
inline float dflash_uniform_of(uint bits) {
  return float(bits >> 8) * (1.0f / 16777216.0f);
}

// q of a token in a slot: from a row of the vocabulary (K = 0), or from K candidates.
template <int K, typename Chances, typename Tokens>
inline float dflash_draft_probability(
    Chances q, Tokens candidates, uint slot, uint token, uint vocab) {
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

// Token rejection: the number of accepted drafts.
template <typename RandomBits>
inline uint dflash_accept_tokens(
    const threadgroup float *at_p, const threadgroup float *at_q, RandomBits random_bits,
    uint drafted) {
  uint accepted = 0;
  while (accepted < drafted &&
         dflash_uniform_of(random_bits[accepted]) * at_q[accepted] < at_p[accepted]) {
    accepted++;
  }
  return accepted;
}

// Block verification: w of a row, the running min(1, w p / q) over the drafts before it.
inline float dflash_block_weight(
    const threadgroup float *at_p, const threadgroup float *at_q, uint row) {
  float weight = 1.0f;
  for (uint slot = 0; slot < row; slot++) {
    weight = min(weight * (at_p[slot] / max(at_q[slot], DFLASH_TINY)), 1.0f);
  }
  return weight;
}
