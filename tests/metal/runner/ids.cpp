// What a thread knows of its place.
#include "runner.h"

#include <cstdio>

void place(emu_ids &ids, unsigned i, const unsigned group[3], const unsigned groups[3],
           const unsigned size[3]) {
  const launch &run = *current.run;
  unsigned at[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
  unsigned total = size[0] * size[1] * size[2];
  unsigned full = run.group[0] * run.group[1] * run.group[2];
  for (int d = 0; d < 3; d++) {
    ids.thread_position_in_threadgroup[d] = at[d];
    ids.thread_position_in_grid[d] = group[d] * run.group[d] + at[d];
    ids.threadgroup_position_in_grid[d] = group[d];
    ids.threadgroups_per_grid[d] = groups[d];
    ids.threads_per_grid[d] = run.grid[d];
    ids.threads_per_threadgroup[d] = size[d];
    ids.dispatch_threads_per_threadgroup[d] = run.group[d];
  }
  ids.thread_index_in_threadgroup = i;
  ids.thread_index_in_simdgroup = i % EMU_LANES;
  ids.simdgroup_index_in_threadgroup = i / EMU_LANES;
  ids.simdgroups_per_threadgroup = (total + EMU_LANES - 1) / EMU_LANES;
  ids.dispatch_simdgroups_per_threadgroup = (full + EMU_LANES - 1) / EMU_LANES;
}

std::string thread_name() {
  if (!current.self) return "no thread";
  const emu_ids &ids = current.self->ids;
  const unsigned *g = ids.threadgroup_position_in_grid, *t = ids.thread_position_in_threadgroup;
  char text[128];
  snprintf(text, sizeof text, "thread (%u, %u, %u) of threadgroup (%u, %u, %u)", t[0], t[1], t[2],
           g[0], g[1], g[2]);
  return text;
}
