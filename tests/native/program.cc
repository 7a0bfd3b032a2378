// SPDX-License-Identifier: MIT
//
// What native_test.py records: each subcommand does something whose profile is known.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

std::uint64_t ClockNs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

// Uses the CPU for `ms` of the thread's CPU time.
__attribute__((noinline)) void Spin(unsigned ms) {
  const std::uint64_t end = ClockNs(CLOCK_THREAD_CPUTIME_ID) + ms * std::uint64_t{1'000'000};
  volatile unsigned sink = 0;
  while (ClockNs(CLOCK_THREAD_CPUTIME_ID) < end) {
    for (unsigned i = 0; i < 20'000; ++i) sink = sink + i;
  }
}

// Not tail calls: something is left to do. And not the same code, which the compiler would keep once.
#define SPIN_AS(name)                               \
  __attribute__((noinline)) int name(unsigned ms) { \
    Spin(ms);                                       \
    asm volatile("# " #name);                       \
    return static_cast<int>(ms);                    \
  }
SPIN_AS(SpinThree)
SPIN_AS(SpinOne)
SPIN_AS(SpinInChild)
SPIN_AS(SpinBefore)
SPIN_AS(SpinAfter)

// Sixteen threads that each spend three parts of four in SpinThree.
int Split() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 5; ++round) {
        SpinThree(30);
        SpinOne(10);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// Threads that end in each way that there is.
int ThreadEnds() {
  const auto run = [](void* (*function)(void*)) {
    pthread_t thread;
    pthread_create(&thread, nullptr, function, nullptr);
    return thread;
  };
  const auto join = [](pthread_t thread, void* expected) {
    void* result = nullptr;
    pthread_join(thread, &result);
    if (result != expected) std::exit(3);
  };
  static char marks[2];
  join(run([](void*) -> void* {
         pthread_setname_np(pthread_self(), "returns");
         SpinOne(60);
         return &marks[0];
       }),
       &marks[0]);
  join(run([](void*) -> void* {
         pthread_setname_np(pthread_self(), "exits");
         SpinOne(60);
         pthread_exit(&marks[1]);
       }),
       &marks[1]);
  thrd_t c11;
  thrd_create(
      &c11,
      [](void*) {
        pthread_setname_np(pthread_self(), "c11");
        return SpinOne(60);
      },
      nullptr);
  int code = 0;
  if (thrd_join(c11, &code) != thrd_success || code != 60) std::exit(4);
  const pthread_t cancelled = run([](void*) -> void* {
    pthread_setname_np(pthread_self(), "cancelled");
    SpinOne(60);
    while (true) pause();
  });
  usleep(200'000);
  pthread_cancel(cancelled);
  join(cancelled, PTHREAD_CANCELED);
  return 0;
}

int ManyThreads(int count) {
  for (int i = 0; i < count; i += 10) {
    std::vector<std::thread> threads;
    for (int k = 0; k < 10; ++k) threads.emplace_back([] { usleep(100); });
    for (std::thread& thread : threads) thread.join();
  }
  return 0;
}

// Sleeps in ways that a signal would cut short. Exit code: how many of them were.
int Sleeps() {
  int cut = 0;
  for (int i = 0; i < 5; ++i) {
    SpinOne(20);
    timespec time{0, 50'000'000}, left{};
    cut += nanosleep(&time, &left) != 0;
    cut += usleep(50'000) != 0;
  }
  cut += sleep(1) != 0;
  return cut;
}

int WaitFor(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

// Children of all kinds; those that execute a program run `spin-in-child`.
int Children(const char* self) {
  char* const arguments[] = {const_cast<char*>(self), const_cast<char*>("spin-in-child"), nullptr};
  SpinBefore(100);
  pid_t child = fork();
  if (child == 0) {  // is not recorded
    SpinInChild(100);
    _exit(5);
  }
  if (WaitFor(child) != 5) return 1;
  child = fork();
  if (child == 0) execv(self, arguments);
  if (WaitFor(child) != 6) return 2;
  child = vfork();
  if (child == 0) {
    execl(self, self, "spin-in-child", static_cast<char*>(nullptr));
    _exit(9);
  }
  if (WaitFor(child) != 6) return 3;
  child = vfork();
  if (child == 0) {
    execv("/no/such/program", arguments);
    _exit(7);
  }
  if (WaitFor(child) != 7) return 4;
  if (posix_spawn(&child, self, nullptr, nullptr, arguments, environ) != 0 || WaitFor(child) != 6) return 5;
  SpinAfter(100);
  return 0;
}

int FailedExec() {
  SpinBefore(100);
  if (execl("/no/such/program", "x", static_cast<char*>(nullptr)) != -1 || errno != ENOENT) return 1;
  // A directory can be "executed" as far as access() knows.
  if (execl("/tmp", "x", static_cast<char*>(nullptr)) != -1 || errno != EACCES) return 2;
  SpinAfter(100);
  return 0;
}

// Runs `work` in `count` threads until each has used `ms` of CPU time.
template <typename Work>
void InThreads(int count, unsigned ms, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, ms] {
      const std::uint64_t end = ClockNs(CLOCK_THREAD_CPUTIME_ID) + ms * std::uint64_t{1'000'000};
      while (ClockNs(CLOCK_THREAD_CPUTIME_ID) < end) work();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Allocate() {
  void* blocks[64];
  for (std::size_t i = 0; i < 64; ++i) blocks[i] = std::malloc(i * i * 16);
  for (void* block : blocks) std::free(block);
}

__attribute__((noinline)) void ThrowAt(int depth) {
  if (depth == 0) throw depth;
  ThrowAt(depth - 1);
  asm volatile("");
}

void ThrowAndTrace() {
  for (int i = 0; i < 20; ++i) {
    try {
      ThrowAt(10);
    } catch (int) {
    }
    void* frames[32];
    backtrace(frames, 32);
  }
}

// Opens, calls and closes copies of the plugin, while other threads allocate.
int OpenAndClose(const std::string& directory) {
  std::thread allocating([] { InThreads(2, 600, Allocate); });
  bool right = true;
  InThreads(1, 600, [&] {
    for (int i = 0; i < 20; ++i) {
      void* library = dlopen((directory + "/plugin-" + std::to_string(i) + ".so").c_str(), RTLD_NOW);
      if (library == nullptr) std::exit(5);
      const auto work = reinterpret_cast<unsigned (*)(unsigned)>(dlsym(library, "PluginOne"));
      right = right && work != nullptr && work(20'000) == 199'990'000;
      dlclose(library);
    }
  });
  allocating.join();
  return right ? 0 : 1;
}

using PluginFunction = unsigned (*)(unsigned);
__attribute__((noinline)) unsigned CallOne(PluginFunction function) { return function(30'000'000) + 1; }
__attribute__((noinline)) unsigned CallTwo(PluginFunction function) { return function(10'000'000) + 2; }

// Two libraries in turn at one address; three parts of four of the time are PluginOne's. Prints the true
// share. Exit code 1: they were not at one address.
int SameAddress(const std::string& directory) {
  PluginFunction first = nullptr;
  std::uint64_t used[2] = {};
  int elsewhere = 0;
  for (int i = 0; i < 100; ++i) {
    for (const bool one : {true, false}) {
      void* library = dlopen((directory + (one ? "/libPluginOne.so" : "/libPluginTwo.so")).c_str(), RTLD_NOW);
      if (library == nullptr) return 5;
      const auto function = reinterpret_cast<PluginFunction>(dlsym(library, one ? "PluginOne" : "PluginTwo"));
      if (first == nullptr) first = function;
      elsewhere += function != first;
      const std::uint64_t begin = ClockNs(CLOCK_THREAD_CPUTIME_ID);
      one ? CallOne(function) : CallTwo(function);
      used[one ? 0 : 1] += ClockNs(CLOCK_THREAD_CPUTIME_ID) - begin;
      dlclose(library);
    }
  }
  std::printf("%f\n", static_cast<double>(used[0]) / static_cast<double>(used[0] + used[1]));
  return elsewhere > 100 ? 1 : 0;
}

// Closes all descriptors, as daemons do, and uses their numbers for files of its own. Exit code: how many of
// those do not hold what was written to them.
int CloseAll(const char* directory) {
  SpinBefore(300);
  for (int fd = 3; fd < 70'000; ++fd) close(fd);
  std::vector<int> files;
  for (int i = 0; i < 600; ++i) {
    const std::string path = std::string(directory) + "/own-" + std::to_string(i);
    files.push_back(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0666));
  }
  SpinAfter(2500);
  int wrong = 0;
  for (const int fd : files) wrong += lseek(fd, 0, SEEK_END) != 0 || close(fd) != 0;
  return wrong;
}

int End(const std::string& how) {
  SpinBefore(150);
  if (how == "_exit") _exit(11);
  if (how == "quick_exit") quick_exit(11);
  if (how == "exit") std::exit(11);
  if (how == "abort") std::abort();
  if (how == "thread") {
    std::thread([] { std::exit(11); }).join();
  }
  if (how == "handler") {  // _exit while the interrupted code may hold any lock
    signal(SIGALRM, [](int) { _exit(11); });
    alarm(1);
    while (true) std::free(std::malloc(10'000));
  }
  return 12;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "split") return Split();
  if (what == "thread-ends") return ThreadEnds();
  if (what == "many-threads") return ManyThreads(std::atoi(argv[2]));
  if (what == "sleeps") return Sleeps();
  if (what == "children") return Children(argv[0]);
  if (what == "spin-in-child") return SpinInChild(100) == 100 ? 6 : 1;
  if (what == "failed-exec") return FailedExec();
  if (what == "allocate") return InThreads(16, 100, Allocate), 0;
  if (what == "throw") return InThreads(4, 300, ThrowAndTrace), 0;
  if (what == "open-and-close") return OpenAndClose(argv[2]);
  if (what == "same-address") return SameAddress(argv[2]);
  if (what == "close-all") return CloseAll(argv[2]);
  if (what == "end") return End(argv[2]);
  return 2;
}
