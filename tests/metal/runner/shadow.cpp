// What each byte has seen: races, reads of what nothing wrote, and the traffic of each buffer.
// The compiler's thread sanitizer calls in before each load and store; its library is not used.
#include "runner.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace {
struct access {
  uint32_t group = 0, thread = 0, group_phase = 0, simd_phase = 0;  // group counts from 1
  uint32_t where = 0;  // return address, from the kernel's base
  bool atomic = false, several = false;  // several lanes of one simdgroup
};
struct cell {
  access write, read[2];  // of two simdgroups
  bool written = false;
};
struct count_cell {
  uint32_t group[2] = {0, 0}, simd[2] = {0, 0};  // last threadgroup, its simdgroups; load, store
};
struct region {
  char *start;
  uint64_t bytes;
  int buffer;  // -1: threadgroup memory
  std::string name;
  cell *cells;
  count_cell *counts;
};
std::vector<region> regions;
size_t last_hit;
char *window_start, *window_end;  // holds every buffer, with gaps between them

template <typename T> T *map_cells(uint64_t n) {
  return static_cast<T *>(mmap(nullptr, n * sizeof(T) + 1, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

region *region_of(char *at) {
  if (last_hit < regions.size()) {
    region &r = regions[last_hit];
    if (at >= r.start && at < r.start + r.bytes) return &r;
  }
  for (size_t i = 0; i < regions.size(); i++) {
    region &r = regions[i];
    if (at >= r.start && at < r.start + r.bytes) return last_hit = i, &r;
  }
  return nullptr;
}

bool report(const char *kind, const region *r, uint64_t offset, const std::string &what,
            uint32_t first, uint32_t second) {
  std::vector<finding> &all = current.result->findings;
  std::vector<uintptr_t> where;
  if (first) where.push_back(first);
  if (second) where.push_back(second);
  for (finding &f : all)
    if (f.kind == kind && f.where == where) return false;
  if (all.size() >= 20) return false;
  std::string place = r ? r->name + " at byte " + std::to_string(offset) + ": " : "";
  all.push_back({kind, place + what, where});
  return true;
}

uint32_t simd_of(uint32_t thread) { return thread / EMU_LANES; }
bool same_simdgroup(const access &a, const access &b) {
  return a.group == b.group && simd_of(a.thread) == simd_of(b.thread);
}
bool ordered(const access &old, const access &now) {
  if (old.group != now.group) return false;
  if (old.thread == now.thread && !old.several) return true;
  if (old.group_phase != now.group_phase) return true;
  return same_simdgroup(old, now) && old.simd_phase != now.simd_phase;
}
bool conflict(const access &old, const access &now) {
  return old.group && !(old.atomic && now.atomic) && !ordered(old, now);
}

std::string who(const access &a) {
  return "thread " + std::to_string(a.thread) + " of threadgroup " + std::to_string(a.group - 1);
}

void check_race(region &r, uint64_t offset, const access &now, bool write) {
  cell &c = r.cells[offset];
  if (write && r.buffer >= 0 && !current.run->buffers[r.buffer].output)
    report("write to an input", &r, offset, "written by " + who(now), now.where, 0);
  if (!write && !c.written)
    report("unset", &r, offset, "read by " + who(now) + " before anything was written", now.where,
           0);
  if (conflict(c.write, now))
    report("race", &r, offset, std::string(write ? "written" : "read") + " by " + who(now) +
           " and written by " + who(c.write) + " without a barrier between them", now.where,
           c.write.where);
  if (write) {
    for (const access &old : c.read)
      if (conflict(old, now))
        report("race", &r, offset, "written by " + who(now) + " and read by " + who(old) +
               " without a barrier between them", now.where, old.where);
    bool several = now.atomic && c.write.atomic && same_simdgroup(c.write, now) &&
                   (c.write.several || c.write.thread != now.thread) && !ordered(c.write, now);
    c.write = now;
    c.write.several = several;
    c.written = true;
    return;
  }
  for (access &old : c.read) {
    if (!old.group || ordered(old, now)) {
      old = now;
      return;
    }
    if (same_simdgroup(old, now)) {
      bool several = old.several || old.thread != now.thread;
      old = now;
      old.several = several;
      return;
    }
  }
  c.read[1] = now;
}

void count(region &r, uint64_t offset, bool write) {
  count_cell &c = r.counts[offset];
  traffic &t = current.result->counts[r.buffer];
  uint32_t group = current.group_number + 1;
  uint32_t simd = 1u << current.self->ids.simdgroup_index_in_threadgroup;
  ++(write ? t.stores : t.loads);
  if (!c.group[write]) ++(write ? t.touched_stores : t.touched_loads);
  if (c.group[write] != group) {
    c.group[write] = group, c.simd[write] = 0;
    ++(write ? t.group_stores : t.group_loads);
  }
  if (!(c.simd[write] & simd)) {
    c.simd[write] |= simd;
    ++(write ? t.simd_stores : t.simd_loads);
  }
}

uintptr_t kernel_base;

void touch(void *address, uint64_t size, bool write, bool atomic, void *from) {
  if (!current.self || !current.run->watch) return;
  char *at = static_cast<char *>(address);
  region *r = region_of(at);
  uint32_t where = uint32_t(uintptr_t(from) - 1 - kernel_base);
  if (!r || at + size > r->start + r->bytes) {
    if (r || (at + size > window_start && at < window_end))
      report("outside", nullptr, 0, std::string(write ? "write of " : "read of ") +
             std::to_string(size) + " bytes, " + where_is(at) + ", by " + thread_name(), where, 0);
    return;
  }
  thread_state &t = *current.self;
  int kind = r->buffer < 0;  // 0 device, 1 threadgroup
  access now;
  now.group = current.group_number + 1, now.thread = t.ids.thread_index_in_threadgroup;
  now.group_phase = t.group_phase[kind], now.simd_phase = t.simd_phase[kind];
  now.where = where, now.atomic = atomic;
  work &done = current.result->done;
  if (kind) (write ? done.shared_stores : done.shared_loads) += size;
  for (uint64_t i = at - r->start, end = i + size; i < end; i++) {
    if (r->cells) check_race(*r, i, now, write);
    if (r->counts) count(*r, i, write);
  }
}
} // namespace

void set_kernel_base(uintptr_t base) { kernel_base = base; }

void begin_shadow() {
  regions.clear();
  launch &run = *current.run;
  window_start = nullptr, window_end = nullptr;
  current.result->counts.assign(run.buffers.size(), traffic());
  if (!run.watch) return;
  for (size_t i = 0; i < run.buffers.size(); i++) {
    buffer &b = run.buffers[i];
    region r = {b.start, b.bytes, int(i), b.name, nullptr, nullptr};
    if (run.watch & WATCH_RACE) {
      r.cells = map_cells<cell>(b.bytes);
      if (b.written)
        for (uint64_t k = 0; k < b.bytes; k++) r.cells[k].written = true;
    }
    if (run.watch & WATCH_TRAFFIC) r.counts = map_cells<count_cell>(b.bytes);
    if (!window_start || b.start - 64 < window_start) window_start = b.start - 64;
    if (!window_end || b.start + b.bytes + 64 > window_end) window_end = b.start + b.bytes + 64;
    regions.push_back(r);
  }
}

void shadow_shared(char *start, uint64_t bytes, const char *name) {
  if (!current.run->watch) return;
  bool race = current.run->watch & WATCH_RACE;
  for (region &r : regions)
    if (r.buffer < 0 && r.start == start && r.bytes == bytes) {
      for (uint64_t i = 0; race && i < bytes; i++) r.cells[i] = cell();
      return;
    }
  regions.push_back({start, bytes, -1, name, race ? map_cells<cell>(bytes) : nullptr, nullptr});
}

void end_shadow() {
  for (region &r : regions) {
    uint64_t unset = 0, first = 0;
    if (r.cells && r.buffer >= 0 && current.run->buffers[r.buffer].output)
      for (uint64_t i = r.bytes; i-- > 0;)
        if (!r.cells[i].written) unset++, first = i;
    if (unset)
      report("unwritten", &r, first, std::to_string(unset) + " of " + std::to_string(r.bytes) +
             " bytes are never written, this is the first", 0, 0);
    if (r.cells) munmap(r.cells, r.bytes * sizeof(cell) + 1);
    if (r.counts) munmap(r.counts, r.bytes * sizeof(count_cell) + 1);
  }
  regions.clear();
}

void emu_atomic(const volatile void *address, unsigned size, unsigned what) {
  void *at = const_cast<void *>(address), *from = __builtin_return_address(0);
  if (what & 1) touch(at, size, false, true, from);
  if (what & 2) touch(at, size, true, true, from);
}

#define HOOK(name, size, write) \
  extern "C" void name(void *at) { touch(at, size, write, false, __builtin_return_address(0)); }
#define HOOKS(n) \
  HOOK(__tsan_read##n, n, false) HOOK(__tsan_write##n, n, true) \
  HOOK(__tsan_unaligned_read##n, n, false) HOOK(__tsan_unaligned_write##n, n, true)
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_read_range(void *at, unsigned long size) {
  touch(at, size, false, false, __builtin_return_address(0));
}
void __tsan_write_range(void *at, unsigned long size) {
  touch(at, size, true, false, __builtin_return_address(0));
}
void *__wrap_memcpy(void *to, const void *from, unsigned long n) {
  touch(const_cast<void *>(from), n, false, false, __builtin_return_address(0));
  touch(to, n, true, false, __builtin_return_address(0));
  return memcpy(to, from, n);
}
void *__wrap_memmove(void *to, const void *from, unsigned long n) {
  touch(const_cast<void *>(from), n, false, false, __builtin_return_address(0));
  touch(to, n, true, false, __builtin_return_address(0));
  return memmove(to, from, n);
}
void *__wrap_memset(void *to, int value, unsigned long n) {
  touch(to, n, true, false, __builtin_return_address(0));
  return memset(to, value, n);
}
}
