// Stacks and the switch between them.
#include "runner.h"

#include <sys/mman.h>

#if defined(__x86_64__)
asm(R"(
.globl emu_switch
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "the fibers are written for x86-64"
#endif


namespace {
enum : size_t { STACK = 256 << 10, GUARD = 4096, MOST_THREADS = 1024 };
char *stacks;

void map_stacks() {
  stacks = static_cast<char *>(mmap(nullptr, MOST_THREADS * (STACK + GUARD), PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (size_t i = 0; i < MOST_THREADS; i++) mprotect(stacks + i * (STACK + GUARD), GUARD, PROT_NONE);
}
} // namespace

void *new_fiber(unsigned index, void (*start)()) {
  if (!stacks) map_stacks();
  char *top = stacks + (index + 1) * (STACK + GUARD);
  void **frame = reinterpret_cast<void **>(top) - 8;
  for (int i = 0; i < 8; i++) frame[i] = nullptr;
  frame[6] = reinterpret_cast<void *>(start);  // where `ret` goes, the stack aligned as in a call
  return frame;
}

bool in_a_stack_guard(const void *address) {
  size_t at = static_cast<const char *>(address) - stacks;
  return stacks && at < MOST_THREADS * (STACK + GUARD) && at % (STACK + GUARD) < GUARD;
}
