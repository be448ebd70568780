// Helpers that all kernels share. MLX puts its own prelude and `using namespace metal` before.

constant constexpr uint DFLASH_LANES = 32; // threads of a simdgroup

// An array stays in registers only if every index is a constant: unroll the loops over it.
#define DFLASH_UNROLL _Pragma("clang loop unroll(full)")

// By the bits: fast-math options cannot remove the test.
inline bool dflash_is_nan(float x) {
  return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u;
}

inline float dflash_no_number() {
  return as_type<float>(0x7fc00000u);
}
