// Threadgroup variables: one exact-size allocation each, poisoned anew for each threadgroup.
#include "runner.h"

#include <cstdlib>
#include <cstring>

namespace {
enum : uint64_t { MOST = 32768 };
struct slot {
  char *data = nullptr;
  uint64_t bytes = 0;
  std::string name;
  bool live = false;  // used by the present threadgroup
};
std::vector<slot> slots;
uint64_t used;
} // namespace

void begin_group_memory() {
  used = 0;
  for (slot &s : slots) s.live = false;
}

void forget_shared() {
  for (slot &s : slots) free(s.data);
  slots.clear();
}

bool shared_slot(const void *address, std::string &name, uint64_t &offset) {
  const char *at = static_cast<const char *>(address);
  for (slot &s : slots) {
    if (!s.data || at < s.data || at >= s.data + s.bytes) continue;
    name = s.name, offset = at - s.data;
    return true;
  }
  return false;
}

uint64_t shared_bytes() { return used; }

void *emu_shared(int id, unsigned long bytes, unsigned long align, const char *name) {
  if (slots.size() <= size_t(id)) slots.resize(id + 1);
  slot &s = slots[id];
  if (s.live && s.bytes == bytes) return s.data;
  if (s.live) stop_launch("refused", std::string("threadgroup variable ") + name +
                                         " has two sizes in one launch");
  if (s.bytes != bytes || !s.data) {
    free(s.data);
    void *data = nullptr;
    if (posix_memalign(&data, align < 16 ? 16 : align, bytes)) abort();
    s.data = static_cast<char *>(data), s.bytes = bytes, s.name = name;
  }
  s.live = true;
  used = (used + align - 1) / align * align + bytes;
  if (used > MOST)
    stop_launch("threadgroup memory", "more than 32768 bytes of threadgroup memory: " +
                                          std::to_string(used));
  // NaN as float, half and bfloat; not the pattern that unset outputs hold.
  for (uint64_t i = 0; i < bytes; i++)
    s.data[i] = current.run->zero ? 0 : char(i % 2 ? 0x7f : 0xe3);
  shadow_shared(s.data, bytes, name);
  return s.data;
}
