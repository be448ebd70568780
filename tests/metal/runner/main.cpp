// The child process: reads launches from stdin, one line each, and answers one JSON line each.
// Buffers lie in memory shared with the parent (file descriptor argv[1]).
#include "runner.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

void set_kernel_base(uintptr_t base);

namespace {
outcome result;
char *memory;
size_t memory_bytes;

void text_to(std::string &out, const std::string &text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' && c >= 0 ? ' ' : c;
  }
  out += '"';
}

void answer() {
  std::string out = "{\"died\": " + std::string(result.died ? "true" : "false") +
                    ", \"shared\": " + std::to_string(result.shared_bytes) + ", \"work\": [" +
                    std::to_string(result.done.barriers) + ", " +
                    std::to_string(result.done.simd_calls) + ", " +
                    std::to_string(result.done.products) + ", " +
                    std::to_string(result.done.shared_loads) + ", " +
                    std::to_string(result.done.shared_stores) + "], \"findings\": [";
  for (size_t i = 0; i < result.findings.size(); i++) {
    finding &f = result.findings[i];
    out += i ? ", [" : "[";
    text_to(out, f.kind), out += ", ", text_to(out, f.text), out += ", [";
    for (size_t k = 0; k < f.where.size(); k++)
      out += (k ? ", " : "") + std::to_string(f.where[k]);
    out += "]]";
  }
  out += "], \"counts\": [";
  for (size_t i = 0; i < result.counts.size(); i++) {
    traffic &t = result.counts[i];
    uint64_t all[] = {t.loads, t.stores, t.simd_loads, t.simd_stores, t.group_loads, t.group_stores,
                      t.touched_loads, t.touched_stores};
    out += i ? ", [" : "[";
    for (int k = 0; k < 8; k++) out += (k ? ", " : "") + std::to_string(all[k]);
    out += "]";
  }
  out += "]}\n";
  for (size_t done = 0; done < out.size();) {
    ssize_t n = write(1, out.data() + done, out.size() - done);
    if (n <= 0) _exit(3);
    done += n;
  }
}

// The process is not to be trusted any more: say why, and end.
[[noreturn]] void die(const char *kind, const std::string &text) {
  result.died = true;
  result.findings.push_back({kind, text, {}});
  answer();
  _exit(2);
}

void on_signal(int number, siginfo_t *info, void *) {
  if (number == SIGVTALRM)
    die("endless", "still running at its time limit, in " + thread_name() +
                       (current.self && current.self->line
                            ? ", last seen waiting at line " + std::to_string(current.self->line)
                            : ""));
  if (number == SIGFPE) die("undefined", "an integer division by zero, in " + thread_name());
  if (in_a_stack_guard(info->si_addr)) die("stack overflow", "in " + thread_name());
  std::string where = where_is(info->si_addr);
  die("outside", "access to memory that is no buffer" + (where.empty() ? "" : ", " + where) +
                     ", in " + thread_name());
}

void watch_signals() {
  static char alternative[64 << 10];
  stack_t stack = {};
  stack.ss_sp = alternative, stack.ss_size = sizeof alternative;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGVTALRM}) sigaction(number, &action, nullptr);
}

void limit_time(long milliseconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = milliseconds / 1000;
  timer.it_value.tv_usec = milliseconds % 1000 * 1000;
  setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

kernel_entry load(const std::string &path) {
  static std::string last;
  if (path != last) forget_shared(), last = path;
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // once; then the one already open
  if (!library) die("refused", dlerror());
  kernel_entry entry = reinterpret_cast<kernel_entry>(dlsym(library, "emu_entry"));
  Dl_info info;
  dladdr(reinterpret_cast<void *>(entry), &info);
  set_kernel_base(uintptr_t(info.dli_fbase));
  return entry;
}

// The words of a line, separated by single spaces.
struct words {
  char *next;
  std::string text() {
    char *word = strsep(&next, " ");
    if (!word || !*word) die("refused", "the runner did not understand its parent");
    return word;
  }
  uint64_t number() { return strtoull(text().c_str(), nullptr, 10); }
};

void run_one(words in) {
  launch run;
  std::string path = in.text();
  size_t buffers = in.number();
  std::vector<uint64_t> places, shifts;
  for (size_t i = 0; i < buffers; i++) {
    buffer b;
    b.name = in.text();
    uint64_t start = in.number(), data = in.number();
    b.bytes = in.number(), b.output = in.number(), b.written = in.number();
    uint64_t shift = in.number();
    b.start = memory + start, b.data = b.start + data;
#ifdef EMU_ASAN
    b.start = static_cast<char *>(malloc(b.bytes + shift)) + shift;
    memcpy(b.start, memory + start, b.bytes);
    b.data = b.start + data;
#endif
    places.push_back(start), shifts.push_back(shift);
    run.buffers.push_back(b);
  }
  for (unsigned &n : run.grid) n = in.number();
  for (unsigned &n : run.group) n = in.number();
  std::string schedule = in.text();
  run.seed = in.number(), run.watch = in.number(), run.zero = in.number();
  long limit = in.number();
  run.schedule = schedule == "forward"   ? schedule_kind::forward
                 : schedule == "reverse" ? schedule_kind::reverse
                                         : schedule_kind::random;
  result = outcome();
  run.entry = load(path);
  current = current_state();
  current.run = &run, current.result = &result;
  begin_shadow();
  limit_time(limit);
  run_launch(run, result);
  current.self = nullptr;
  limit_time(0);
  end_shadow();
#ifdef EMU_ASAN
  for (size_t i = 0; i < buffers; i++) {
    buffer &b = run.buffers[i];
    if (b.output) memcpy(memory + places[i], b.start, b.bytes);
    free(b.start - shifts[i]);
  }
#endif
  answer();
}
} // namespace

void stop_launch(const char *kind, const std::string &text) { die(kind, text); }

std::string where_is(const void *address) {
  const char *at = static_cast<const char *>(address);
  if (!current.run) return "";
  for (buffer &b : current.run->buffers) {
    long offset = at - b.start, over = offset - long(b.bytes);
    if (offset >= 0 && over < 0)
      return "byte " + std::to_string(offset) + " of " + b.name + " (" + std::to_string(b.bytes) +
             " bytes)";
    if (over >= 0 && over < 64) return std::to_string(over) + " bytes past the end of " + b.name;
    if (offset < 0 && offset >= -64) return std::to_string(-offset) + " bytes before " + b.name;
  }
  std::string name;
  uint64_t offset;
  if (shared_slot(address, name, offset))
    return "byte " + std::to_string(offset) + " of threadgroup variable " + name;
  return "";
}

#ifdef EMU_ASAN
extern "C" void *__asan_get_report_address();
extern "C" void __asan_on_error() {
  fprintf(stderr, "emulator: %s, in %s\n", where_is(__asan_get_report_address()).c_str(),
          thread_name().c_str());
}
#endif

int main(int, char **argv) {
  int shared = atoi(argv[1]);
  watch_signals();
  char *line = nullptr;
  size_t room = 0;
  for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
    line[n - 1] = 0;
    words in = {line};
    if (in.text() == "run") {
      run_one(in);
      continue;
    }
    if (memory) munmap(memory, memory_bytes);
    memory_bytes = in.number();
    memory = static_cast<char *>(
        mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0));
    if (memory == MAP_FAILED) return 4;
  }
  return 0;
}
