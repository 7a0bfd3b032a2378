// SPDX-License-Identifier: MIT
//
// stackpipe doctor: what this machine allows, and what to do about the rest.
#include <fmt/format.h>
#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "platform/port.h"
#include "stackpipe/commands.h"
#include "stackpipe/recording.h"

namespace stackpipe {

namespace {

struct Check {
  enum class Grade { kOk, kNote, kBad };
  Grade grade;
  std::string what;
  std::string found;
  std::string advice;  // empty: nothing to do
};

Check Machine() {
  utsname name{};
  uname(&name);
  const bool supported = std::string_view(name.machine) == "x86_64";
  return {supported ? Check::Grade::kOk : Check::Grade::kBad, "machine",
          fmt::format("{} {} on {}", name.sysname, name.release, name.machine),
          supported ? "" : "only x86-64 is supported yet"};
}

Check Timer(const char* what, clockid_t clock) {
  port::ThreadTimer timer;
  const Status status = timer.Create(clock, port::CurrentTid(), SIGPROF, nullptr);
  timer.Delete();
  if (status.ok()) return {Check::Grade::kOk, what, "available", ""};
  return {Check::Grade::kBad, what, std::strerror(status.os_error()),
          "sampling needs it: is a sandbox forbidding timer_create?"};
}

Check Perf() {
  port::PerfClock clock;
  const Status status = clock.Open(port::CurrentTid(), SIGURG, 1'000'000'000);
  clock.Close();
  if (status.ok()) return {Check::Grade::kOk, "perf clock", "available", ""};
  return {Check::Grade::kNote, "perf clock", std::strerror(status.os_error()),
          "native programs get a sample at the kernel's timer ticks only, mostly 250 a second; "
          "sysctl kernel.perf_event_paranoid=1 would mend it, unless a sandbox forbids perf_event_open"};
}

// The first line that `command` prints, or empty.
std::string FirstLine(const char* command) {
  std::array<char, 256> line{};
  FILE* pipe = popen(command, "re");
  if (pipe == nullptr) return {};
  if (std::fgets(line.data(), line.size(), pipe) == nullptr) line[0] = '\0';
  pclose(pipe);
  std::string text = line.data();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Check Mono() {
  const std::string version = FirstLine("mono --version 2>/dev/null");
  if (version.empty())
    return {Check::Grade::kNote, "mono", "not found",
            "to profile Mono programs: apt-get install mono-runtime"};
  if (version.find("version 6.8.") == std::string::npos) {
    return {Check::Grade::kNote, "mono", version, "tried with 6.8 only; others may work"};
  }
  return {Check::Grade::kOk, "mono", version.substr(0, version.find(" (")), ""};
}

Check Adapters() {
  const std::string directory = AdapterDirectory();
  if (directory.empty()) {
    return {Check::Grade::kBad, "adapters", fmt::format("{} or {} not found", kAgent, kMonoAdapter),
            "install both in lib/stackpipe beside the directory of this tool"};
  }
  return {Check::Grade::kOk, "adapters", fmt::format("{}: {}, {}", directory, kAgent, kMonoAdapter), ""};
}

Check Temporary() {
  const ProgressDirectory directory;
  if (directory.path().empty()) {
    return {Check::Grade::kBad, "temporary files", "no directory can be made",
            "set TMPDIR to a writable place"};
  }
  return {Check::Grade::kOk, "temporary files",
          std::filesystem::path(directory.path()).parent_path().string(), ""};
}

int Doctor() {
  const Check checks[] = {Machine(),
                          Timer("tick timer", CLOCK_MONOTONIC),
                          Timer("wake timer", CLOCK_THREAD_CPUTIME_ID),
                          Perf(),
                          Mono(),
                          Adapters(),
                          Temporary()};
  bool bad = false;
  for (const Check& check : checks) {
    const char* mark = check.grade == Check::Grade::kOk     ? "ok  "
                       : check.grade == Check::Grade::kNote ? "note"
                                                            : "BAD ";
    fmt::print("{}  {:<16} {}{}{}\n", mark, check.what, check.found, check.advice.empty() ? "" : ": ",
               check.advice);
    bad |= check.grade == Check::Grade::kBad;
  }
  fmt::print("\n{}\n", bad ? "Recording does not work here until what is marked BAD is mended."
                           : "Recording works here:  stackpipe record -- PROGRAM");
  return bad ? kExitFailure : 0;
}

}  // namespace

void AddDoctor(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Say what this machine allows, and what to do about the rest");
  command->callback([exit_code] { *exit_code = Doctor(); });
}

}  // namespace stackpipe
