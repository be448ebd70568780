// Weights as MLX packs them: a row is a stream of bits, lowest first, BITS for each weight. BITS 0:
// not packed.

// Weight i from words of WIDTH bits: its code is in the lowest BITS bits, others' are above.
template <int BITS, int WIDTH>
inline uint dflash_packed_at(const thread uint *words, int i) {
  int at = i * BITS / WIDTH;
  int shift = i * BITS % WIDTH;
  uint value = words[at] >> shift;
  if (shift + BITS > WIDTH) {
    value |= words[at + 1] << (WIDTH - shift);
  }
  return value;
}

// Weight i, as the integer it is packed as. Its bits stay where they are and become those of a
// mantissa: 2^(23 - shift) + integer, from which the power is taken away, is exact and needs
// neither a shift nor a conversion.
template <int BITS, int WIDTH>
inline float dflash_integer_at(const thread uint *words, int i) {
  int shift = i * BITS % WIDTH;
  uint word = words[i * BITS / WIDTH];
  bool parted = shift + BITS > WIDTH;
  if (parted) {
    word = dflash_packed_at<BITS, WIDTH>(words, i);
    shift = 0;
  } else if (shift > 15) { // a mantissa has 23 bits
    word >>= 16;
    shift -= 16;
  }
  uint power = uint(150 - shift) << 23;
  return as_type<float>((word & (((1u << BITS) - 1) << shift)) | power) - as_type<float>(power);
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

// Weight i of those in `words`.
template <int BITS, int WIDTH, bool MXFP4>
inline float dflash_weight_at(const thread uint *words, int i, float scale, float shift) {
  return MXFP4 ? dflash_e2m1(dflash_packed_at<BITS, WIDTH>(words, i)) * scale
               : fma(dflash_integer_at<BITS, WIDTH>(words, i), scale, shift);
}

// Where in a block the numbers 8 `eight` to 8 `eight` + 7 of chunk `chunk` (of 4) begin. Packed
// weights of a chunk are neighbours; those that are not packed alternate between the chunks, so
// that lanes read neighbours.
template <int BITS>
inline int dflash_eight(int eight, int chunk) {
  return 8 * (BITS > 0 ? 4 * chunk + eight : 4 * eight + chunk);
}
