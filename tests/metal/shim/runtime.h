// What a compiled kernel and the runner that executes it share. No libc, no C++ library.
#pragma once

struct emu_ids {
  unsigned thread_position_in_grid[3];
  unsigned thread_position_in_threadgroup[3];
  unsigned threadgroup_position_in_grid[3];
  unsigned threadgroups_per_grid[3];
  unsigned threads_per_grid[3];
  unsigned threads_per_threadgroup[3];
  unsigned dispatch_threads_per_threadgroup[3];
  unsigned thread_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned dispatch_simdgroups_per_threadgroup;
};

enum { EMU_SLOT = 64, EMU_LANES = 32 };

// What every lane of a simdgroup handed in at one simd function.
struct emu_exchange {
  unsigned char value[EMU_LANES][EMU_SLOT];
  unsigned char result[EMU_LANES][EMU_SLOT];
  unsigned active; // bit per lane
  unsigned lane;   // of the caller
};

// Run once per exchange, by the last lane to arrive: fills `result` from `value`.
typedef void (*emu_combine)(emu_exchange *);

extern "C" {
// One allocation per threadgroup variable and threadgroup, poisoned anew for each threadgroup.
void *emu_shared(int id, unsigned long bytes, unsigned long align, const char *name);
void emu_barrier(unsigned flags, int line);
void emu_simd_barrier(unsigned flags, int line);
// Blocks until every live lane has handed in `size` bytes.
emu_exchange *emu_simd(const void *value, unsigned size, emu_combine combine, const char *name,
                       int line);
// The kernel did what Metal leaves undefined: ends the launch.
[[noreturn]] void emu_undefined(const char *what, int line);
unsigned emu_current_lane();
// Announces an atomic access (bit 0 reads, bit 1 writes) to the race check and the counters.
void emu_atomic(const volatile void *address, unsigned size, unsigned access);
}
