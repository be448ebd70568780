// One threadgroup at a time; each of its threads is a fiber that runs until it has to wait.
#include "runner.h"

#include <cstdio>
#include <cstring>

current_state current;

namespace {
struct simdgroup {
  int first = 0, count = 0;  // threads
  int arrived = 0, live = 0;
  unsigned turn = 0;  // two exchanges alternate: nobody is two ahead
  emu_exchange exchange[2];
  emu_combine combine = nullptr;
};

void *main_stack_pointer;
std::vector<thread_state> threads;
std::vector<simdgroup> simdgroups;
std::vector<int> ready;  // random schedule: who can run
uint64_t random_state;

uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

void to_scheduler() {
  thread_state *self = current.self;
  current.self = nullptr;
  emu_switch(&self->stack_pointer, main_stack_pointer);
}

simdgroup &group_of(thread_state &t) { return simdgroups[t.ids.simdgroup_index_in_threadgroup]; }

void wake(thread_state &t) {
  t.waiting = RUNNING;
  if (current.run->schedule == schedule_kind::random) ready.push_back(int(&t - &threads[0]));
}

std::string lanes_text(simdgroup &g) {
  std::string text;
  for (int i = 0; i < g.count; i++) {
    thread_state &t = threads[g.first + i];
    char part[160];
    const char *at = t.done ? "ended" : t.at;
    if (i && !strcmp(at, threads[g.first + i - 1].done ? "ended" : threads[g.first + i - 1].at) &&
        t.line == threads[g.first + i - 1].line)
      continue;
    snprintf(part, sizeof part, "%sfrom lane %d on %s", text.empty() ? "" : ", ", i, at);
    text += part;
    if (!t.done) text += " (line " + std::to_string(t.line) + ")";
  }
  return text;
}

// All live lanes of a simdgroup have arrived: they must be at the same place.
void release_simdgroup(simdgroup &g) {
  thread_state *first = nullptr;
  unsigned active = 0;
  for (int i = 0; i < g.count; i++) {
    thread_state &t = threads[g.first + i];
    if (t.done) continue;
    active |= 1u << i;
    if (!first) first = &t;
    if (t.line != first->line || strcmp(t.at, first->at) || t.flags != first->flags)
      stop_launch("divergence", "lanes of one simdgroup wait at different places: " + lanes_text(g));
  }
  if (!first) return;
  bool barrier = first->waiting == AT_SIMD_BARRIER;
  if (barrier && g.live != g.count)
    stop_launch("divergence", "a simdgroup_barrier is not reached by all lanes: " + lanes_text(g));
  if (!barrier) {
    emu_exchange &now = g.exchange[g.turn & 1];
    now.active = active;
    if (g.combine) g.combine(&now);
    g.turn++;
    current.result->done.simd_calls++;
    if (!strcmp(first->at, "simdgroup_multiply_accumulate")) current.result->done.products++;
  }
  g.arrived = 0;
  for (int i = 0; i < g.count; i++) {
    thread_state &t = threads[g.first + i];
    if (t.done) continue;
    if (barrier)
      for (int kind = 0; kind < 2; kind++)
        if (t.flags & (1u << kind)) t.simd_phase[kind]++;
    wake(t);
  }
}

void arrive(int waiting, const char *at, int line, unsigned flags) {
  thread_state &t = *current.self;
  simdgroup &g = group_of(t);
  t.waiting = waiting, t.at = at, t.line = line, t.flags = flags;
  if (++g.arrived == g.live) release_simdgroup(g);
  to_scheduler();
}

std::vector<char *> pointers;

[[noreturn]] void fiber_start() {
  current.run->entry(pointers.data(), &current.self->ids);
  thread_state &t = *current.self;
  simdgroup &g = group_of(t);
  t.done = true;
  g.live--;
  if (g.live && g.arrived == g.live) release_simdgroup(g);
  to_scheduler();
  __builtin_unreachable();
}

void run_thread(int i) {
  current.self = &threads[i];
  emu_switch(&main_stack_pointer, threads[i].stack_pointer);
}

bool runnable(const thread_state &t) { return !t.done && t.waiting == RUNNING; }

void run_until_all_wait() {
  if (current.run->schedule == schedule_kind::random) {
    while (!ready.empty()) {
      size_t pick = next_random() % ready.size();
      int i = ready[pick];
      ready[pick] = ready.back();
      ready.pop_back();
      run_thread(i);
    }
    return;
  }
  bool back = current.run->schedule == schedule_kind::reverse;
  for (size_t s = 0; s < simdgroups.size(); s++) {
    simdgroup &g = simdgroups[back ? simdgroups.size() - 1 - s : s];
    for (bool moved = true; moved;) {
      moved = false;
      for (int k = 0; k < g.count; k++) {
        int i = g.first + (back ? g.count - 1 - k : k);
        if (runnable(threads[i])) moved = true, run_thread(i);
      }
    }
  }
}

// Everybody waits or has ended. False once all have ended.
bool release_group() {
  size_t done = 0, at_barrier = 0;
  for (simdgroup &g : simdgroups)
    for (int i = 0; i < g.count; i++)
      if (!threads[g.first + i].done && threads[g.first + i].waiting != AT_BARRIER)
        stop_launch("divergence", "a simd function is not reached by all live lanes: " +
                                      lanes_text(g));
  thread_state *first = nullptr;
  for (thread_state &t : threads) {
    if (t.done) {
      done++;
      continue;
    }
    at_barrier++;
    if (!first) first = &t;
    if (t.line != first->line || t.flags != first->flags)
      stop_launch("divergence", "threads of one threadgroup wait at different barriers: lines " +
                                    std::to_string(first->line) + " and " +
                                    std::to_string(t.line));
  }
  if (done == threads.size()) return false;
  if (done)
    stop_launch("divergence", "the threadgroup_barrier of line " + std::to_string(first->line) +
                                  " is not reached by all: " + std::to_string(done) + " of " +
                                  std::to_string(threads.size()) + " threads have ended");
  current.result->done.barriers++;
  for (thread_state &t : threads) {
    for (int kind = 0; kind < 2; kind++)
      if (t.flags & (1u << kind)) t.group_phase[kind]++, t.simd_phase[kind]++;
    wake(t);
  }
  return true;
}

void run_group(const unsigned group[3], const unsigned groups[3]) {
  launch &run = *current.run;
  unsigned size[3], total = 1;
  for (int d = 0; d < 3; d++) {
    unsigned left = run.grid[d] - group[d] * run.group[d];
    size[d] = left < run.group[d] ? left : run.group[d];
    total *= size[d];
  }
  threads.assign(total, thread_state());
  unsigned wide = (total + EMU_LANES - 1) / EMU_LANES;
  simdgroups.resize(wide);
  for (unsigned s = 0; s < wide; s++) {
    simdgroups[s].first = s * EMU_LANES;
    simdgroups[s].count = simdgroups[s].live =
        total - s * EMU_LANES < EMU_LANES ? total - s * EMU_LANES : EMU_LANES;
    simdgroups[s].arrived = 0;
  }
  ready.clear();
  for (unsigned i = 0; i < total; i++) {
    place(threads[i].ids, i, group, groups, size);
    threads[i].stack_pointer = new_fiber(i, fiber_start);
    wake(threads[i]);
  }
  begin_group_memory();
  do run_until_all_wait();
  while (release_group());
  if (shared_bytes() > current.result->shared_bytes) current.result->shared_bytes = shared_bytes();
}
} // namespace

void run_launch(launch &run, outcome &result) {
  current = current_state();
  current.run = &run, current.result = &result;
  random_state = run.seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  pointers.clear();
  for (buffer &b : run.buffers) pointers.push_back(b.data);
  unsigned groups[3];
  for (int d = 0; d < 3; d++) groups[d] = (run.grid[d] + run.group[d] - 1) / run.group[d];
  uint64_t total = uint64_t(groups[0]) * groups[1] * groups[2];
  std::vector<uint32_t> order(total);
  for (uint64_t i = 0; i < total; i++)
    order[i] = uint32_t(run.schedule == schedule_kind::reverse ? total - 1 - i : i);
  if (run.schedule == schedule_kind::random)
    for (uint64_t i = total; i > 1; i--) std::swap(order[i - 1], order[next_random() % i]);
  for (uint32_t number : order) {
    unsigned at[3] = {number % groups[0], number / groups[0] % groups[1],
                      number / groups[0] / groups[1]};
    current.group_number = number;
    run_group(at, groups);
  }
}

void emu_barrier(unsigned flags, int line) {
  thread_state &t = *current.self;
  t.waiting = AT_BARRIER, t.at = "threadgroup_barrier", t.line = line, t.flags = flags;
  to_scheduler();
}
void emu_simd_barrier(unsigned flags, int line) {
  arrive(AT_SIMD_BARRIER, "simdgroup_barrier", line, flags);
}
emu_exchange *emu_simd(const void *value, unsigned size, emu_combine combine, const char *name,
                       int line) {
  thread_state &t = *current.self;
  simdgroup &g = group_of(t);
  emu_exchange &mine = g.exchange[g.turn & 1];
  memcpy(mine.value[t.ids.thread_index_in_simdgroup], value, size);
  g.combine = combine;
  arrive(AT_SIMD, name, line, 0);
  mine.lane = t.ids.thread_index_in_simdgroup;
  return &mine;
}
unsigned emu_current_lane() { return current.self->ids.thread_index_in_simdgroup; }
void emu_undefined(const char *what, int line) {
  stop_launch("undefined", std::string(what) + " (line " + std::to_string(line) + ", " +
                               thread_name() + ")");
}
