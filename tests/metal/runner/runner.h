// The runner: executes compiled kernels, one launch at a time, and watches what they do.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../shim/runtime.h"

typedef void (*kernel_entry)(char *const *buffers, const emu_ids *ids);

enum class schedule_kind { forward, reverse, random };
enum { WATCH_RACE = 1, WATCH_TRAFFIC = 2 };

struct buffer {
  std::string name;
  char *data = nullptr;   // element 0, as the kernel sees it
  char *start = nullptr;  // lowest byte, below `data` where strides are negative
  uint64_t bytes = 0;
  bool output = false, written = false;  // written: filled before the launch
};

struct launch {
  kernel_entry entry = nullptr;
  std::vector<buffer> buffers;
  unsigned grid[3], group[3];
  schedule_kind schedule = schedule_kind::forward;
  uint64_t seed = 0;
  unsigned watch = 0;
  unsigned zero = 0;  // what unset threadgroup memory holds: a pattern, or zeros
};

// One access that broke a rule; `where` are return addresses, turned into lines by the caller.
struct finding {
  std::string kind, text;
  std::vector<uintptr_t> where;
};

struct traffic {
  uint64_t loads = 0, stores = 0;              // bytes, each access of each thread
  uint64_t group_loads = 0, group_stores = 0;  // distinct bytes of each threadgroup, summed
  uint64_t simd_loads = 0, simd_stores = 0;    // distinct bytes of each simdgroup, summed
  uint64_t touched_loads = 0, touched_stores = 0;  // distinct bytes of the launch
};

struct work {
  uint64_t barriers = 0;                        // of all threadgroups, each once
  uint64_t simd_calls = 0, products = 0;        // of all simdgroups; products of matrices
  uint64_t shared_loads = 0, shared_stores = 0; // bytes of threadgroup memory, each access
};

struct outcome {
  std::vector<finding> findings;
  std::vector<traffic> counts;  // by buffer
  work done;
  uint64_t shared_bytes = 0;    // most threadgroup memory of any threadgroup
  bool died = false;            // stopped before the end: the process must not go on
};

// fibers.cpp: stacks and the switch between them.
void *new_fiber(unsigned index, void (*start)());  // a stack pointer to switch to
extern "C" void emu_switch(void **save, void *to);
bool in_a_stack_guard(const void *address);

// ids.cpp: what a thread knows of its place.
void place(emu_ids &ids, unsigned i, const unsigned group[3], const unsigned groups[3],
           const unsigned size[3]);
std::string thread_name();

// group.cpp: threads of one threadgroup as fibers.
struct thread_state {
  void *stack_pointer = nullptr;
  emu_ids ids;
  int waiting = 0;  // what at: 0 nothing, or one of `wait`
  int line = 0;
  const char *at = "";
  unsigned flags = 0;
  bool done = false;
  unsigned simd_phase[2] = {0, 0};   // barriers passed with [device, threadgroup] memory ordered
  unsigned group_phase[2] = {0, 0};
};
enum wait { RUNNING = 0, AT_SIMD = 1, AT_SIMD_BARRIER = 2, AT_BARRIER = 3 };

struct current_state {
  launch *run = nullptr;
  outcome *result = nullptr;
  thread_state *self = nullptr;  // null outside kernel code
  unsigned group_number = 0;
};
extern current_state current;

void run_launch(launch &run, outcome &result);
[[noreturn]] void stop_launch(const char *kind, const std::string &text);
std::string where_is(const void *address);  // "3 bytes past the end of x", or an empty text

// shared.cpp: threadgroup variables.
void begin_group_memory();
bool shared_slot(const void *address, std::string &name, uint64_t &offset);
uint64_t shared_bytes();
void forget_shared();  // before another kernel

// shadow.cpp: what each byte has seen.
void begin_shadow();
void end_shadow();
void shadow_shared(char *start, uint64_t bytes, const char *name);
