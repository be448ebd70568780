// Weights as MLX packs them: a row is a stream of bits, lowest first, BITS for each weight. BITS 0:
// not packed.

// An array stays in registers only if every index is a constant: unroll the loops over it.
#define DFLASH_UNROLL _Pragma("clang loop unroll(full)")

// The start in the tile of a lane's quad (4 weights) `quad` of QUADS. A lane's packed weights are
// neighbours; weights that are not packed are interleaved, so that the lanes read neighbours.
template <int BITS, int LANES, int QUADS>
inline int dflash_place(int quad, int lane) {
  return 4 * (BITS > 0 ? QUADS * lane + quad : LANES * quad + lane);
}

// Weight i, as the integer it is packed as, from words of WIDTH bits.
template <int BITS, int WIDTH>
inline uint dflash_packed_at(const thread uint *words, int i) {
  int at = i * BITS / WIDTH;
  int shift = i * BITS % WIDTH;
  uint value = words[at] >> shift;
  if (shift + BITS > WIDTH) {
    value |= words[at + 1] << (WIDTH - shift);
  }
  return value & ((1u << BITS) - 1);
}

// FP4 (E2M1): 0 0.5 1 1.5 2 3 4 6, and negative.
inline float dflash_e2m1(uint code) {
  float size = 0.5f * float((0xC8643210u >> (4 * (code & 7))) & 15);
  return code & 8 ? -size : size;
}

// A scale (E8M0): a power of two, stored as its exponent.
inline float dflash_e8m0(uint code) {
  return as_type<float>(code == 0 ? 0x00400000u : code << 23);
}

// Four weights, `quad` of a lane's.
template <int BITS, int WIDTH, bool MXFP4>
inline float4 dflash_unpacked(const thread uint *words, int quad, float scale, float shift) {
  float4 out;
  DFLASH_UNROLL for (int j = 0; j < 4; ++j) {
    uint value = dflash_packed_at<BITS, WIDTH>(words, 4 * quad + j);
    out[j] = MXFP4 ? dflash_e2m1(value) * scale : fma(float(value), scale, shift);
  }
  return out;
}
