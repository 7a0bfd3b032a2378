// SPDX-License-Identifier: MIT
//
// stackpipe record: runs a command under the profiler.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "profile/load.h"
#include "stackpipe/commands.h"
#include "stackpipe/message.h"
#include "stackpipe/recording.h"

namespace stackpipe {

namespace {

constexpr double kRateMin = 1, kRateMax = 100'000;
constexpr std::size_t kOthersShown = 8;

std::string Bytes(std::uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  if (bytes < 10'000'000) return fmt::format("{} kB", bytes / 1000);
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

double Percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// Makes room for the trace: the file must not exist when the program starts. Only a trace is ever replaced.
bool PrepareOutput(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    char magic[8] = {};
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool is_trace =
        S_ISREG(info.st_mode) && fd >= 0 &&
        (info.st_size == 0 || (read(fd, magic, 8) == 8 && std::memcmp(magic, "Nettrace", 8) == 0));
    if (fd >= 0) close(fd);
    if (!is_trace) {
      PrintError(
          fmt::format("{} exists and is not a trace: it is not replaced. Give another name with -o.", path));
      return false;
    }
  }
  // Creating the file is the only sure test of whether it can be created.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) {
    PrintError(fmt::format("cannot write {}: {}. Give another place with -o.", path, std::strerror(errno)));
    return false;
  }
  close(fd);
  unlink(path.c_str());
  return true;
}

struct Ticker {
  const ProgressDirectory* directory;
  bool on_terminal;
  int ticks = 0;
};

void ShowProgress(void* context) {
  auto* ticker = static_cast<Ticker*>(context);
  if (!ticker->on_terminal) return;
  std::uint64_t samples = 0, dropped = 0, bytes = 0;
  for (const ProcessProgress& process : ticker->directory->Read()) {
    samples += process.samples;
    dropped += process.dropped;
    bytes += process.bytes;
  }
  fmt::print(stderr, "\r\033[Krecording  {:.1f} s  {} samples  {} dropped  {}", ++ticker->ticks * 0.2,
             samples, dropped, Bytes(bytes));
  std::fflush(stderr);
}

void Summarize(const ProcessProgress& process) {
  const LoadedProfile loaded = LoadProfile(process.output);
  if (!loaded.ok) {
    fmt::print(stderr, "  {}\n", loaded.problem);
    return;
  }
  const Profile& p = loaded.profile;
  std::map<std::string, std::uint64_t> by_kind;
  for (const ProfileNode& node : p.nodes) {
    if (node.frame != kNoFrame && node.self.samples > 0)
      by_kind[KindName(p.frame_table[node.frame].kind)] += node.self.samples;
  }
  std::vector<std::pair<std::string, std::uint64_t>> kinds(by_kind.begin(), by_kind.end());
  std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [kind, samples] : kinds)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", samples, kind);

  fmt::print(stderr, "  file      {} ({}{})\n", process.output, Bytes(process.bytes),
             p.complete ? "" : ", without its end");
  if (p.cost.samples == 0) text = "it used too little CPU time";
  fmt::print(stderr, "  samples   {} of {} thread{} in {:.1f} s: {}\n", p.cost.samples, p.threads.size(),
             p.threads.size() == 1 ? "" : "s", static_cast<double>(p.duration_ns) / 1e9, text);
  fmt::print(stderr, "  loss      expected {} = recorded {} + dropped {} + suppressed {}\n", p.loss.expected,
             p.loss.recorded, p.loss.dropped, p.loss.suppressed);
  if (p.managed_frames > 0) {
    fmt::print(stderr, "  names     {} of {} managed frames ({:.2f} %)\n", p.managed_named, p.managed_frames,
               Percent(p.managed_named, p.managed_frames));
  }
  const std::uint64_t cost = p.session.handler_ns + p.session.collector_cpu_ns;
  if (p.complete && p.cost.samples > 0) {
    fmt::print(
        stderr,
        "  cost      {:.1f} ms in the program's threads (a sample: {:.1f} us, 99 % below {:.1f} us), {:.1f} "
        "ms in the "
        "collector: {:.1f} % of its CPU time\n",
        static_cast<double>(p.session.handler_ns) / 1e6, static_cast<double>(p.session.handler_p50_ns) / 1e3,
        static_cast<double>(p.session.handler_p99_ns) / 1e3,
        static_cast<double>(p.session.collector_cpu_ns) / 1e6, Percent(cost, p.session.process_cpu_ns));
  }
}

// The process with most samples gets the name that was asked for, and comes first. Of the others, those that
// ended without a sample leave no file.
void PutMainFirst(std::vector<ProcessProgress>* processes, const std::string& wanted) {
  std::stable_sort(processes->begin(), processes->end(), [](const auto& a, const auto& b) {
    return std::pair(a.pid != 0, a.samples) > std::pair(b.pid != 0, b.samples);
  });
  const std::string output = std::filesystem::absolute(wanted).string();
  const auto holder = std::find_if(processes->begin(), processes->end(),
                                   [&](const ProcessProgress& process) { return process.output == output; });
  ProcessProgress& main = processes->front();
  if (main.pid != 0 && main.output != output) {
    const std::string between = main.output + ".renamed";
    std::string other = main.output;
    if (holder == processes->end()) {
      if (std::rename(main.output.c_str(), output.c_str()) == 0) main.output = output;
    } else if (std::rename(output.c_str(), between.c_str()) == 0) {
      if (std::rename(main.output.c_str(), output.c_str()) == 0) main.output = output;
      other = main.output == output ? other : output;
      if (std::rename(between.c_str(), other.c_str()) == 0) holder->output = other;
    }
  }
  std::erase_if(*processes, [&](const ProcessProgress& process) {
    const bool empty = &process != &main && process.pid != 0 && process.ended && process.samples == 0;
    if (empty) unlink(process.output.c_str());
    return empty;
  });
}

int Report(std::vector<ProcessProgress> processes, const RecordOptions& options,
           const CommandResult& result) {
  if (!processes.empty()) PutMainFirst(&processes, options.output);
  const std::string& command = options.command[0];
  if (processes.empty()) {
    PrintError(fmt::format(
        "nothing was recorded: the profiler was not loaded into `{}`.\n"
        "It is not where a program is linked statically, has more rights than its user (setuid), or "
        "was built for another machine.",
        command));
    return result.exit_code != 0 ? result.exit_code : 1;
  }
  bool failed = false;
  const ProcessProgress* main = nullptr;
  for (const ProcessProgress& process : processes) {
    if (process.start_error != 0 && process.pid == 0) {
      PrintError(fmt::format("a process could not be recorded: {}.", process.start_error > 1
                                                                         ? std::strerror(process.start_error)
                                                                         : "the profiler could not start"));
      failed = true;
      continue;
    }
    if (process.write_error != 0) {
      PrintError(
          fmt::format("writing {} failed: {}. The program went on; {} samples are in the file, {} are lost.",
                      process.output, std::strerror(process.write_error), process.samples, process.dropped));
      failed = true;
    } else if (!process.ended) {
      PrintError(
          fmt::format("process {} ended without closing its trace; what it wrote is good.", process.pid));
    }
    if (main == nullptr) main = &process;
  }
  if (main != nullptr) {
    fmt::print(stderr, "stackpipe: recorded `{}` (process {})\n", fmt::join(options.command, " "), main->pid);
    Summarize(*main);
    std::size_t others = 0;
    for (const ProcessProgress& process : processes) {
      if (&process == main || process.pid == 0) continue;
      if (++others > kOthersShown) continue;
      fmt::print(stderr, "  also      {} (process {}, {} samples)\n", process.output, process.pid,
                 process.samples);
    }
    if (others > kOthersShown)
      fmt::print(stderr, "            and {} processes more\n", others - kOthersShown);
    fmt::print(
        stderr,
        "  next      stackpipe report {}\n            stackpipe export {} --to flamegraph -o {}.html\n",
        main->output, main->output, main->output.substr(0, main->output.rfind(".nettrace")));
  }
  if (result.signal != 0)
    fmt::print(stderr, "stackpipe: the program was ended by signal {} ({})\n", result.signal,
               strsignal(result.signal));
  return result.exit_code != 0 ? result.exit_code : (failed ? 1 : 0);
}

int Record(const RecordOptions& options) {
  if (!(options.rate_hz >= kRateMin && options.rate_hz <= kRateMax)) {
    PrintError(fmt::format("--rate {} is out of range: give {} to {} samples per second.", options.rate_hz,
                           kRateMin, kRateMax));
    return kExitUsage;
  }
  if (!(options.duration_s >= 0 && options.duration_s <= 1e9)) {
    PrintError(
        fmt::format("--duration {} is out of range: give seconds, 0 for no limit.", options.duration_s));
    return kExitUsage;
  }
  const std::string adapters = AdapterDirectory();
  if (adapters.empty()) {
    PrintError(
        fmt::format("the adapters are not installed: {} and {} belong in lib/stackpipe beside the directory "
                    "of this tool.",
                    kAgent, kMonoAdapter));
    return kExitFailure;
  }
  if (!PrepareOutput(options.output)) return kExitFailure;
  const ProgressDirectory directory;
  if (directory.path().empty()) {
    PrintError("no temporary directory can be made: set TMPDIR to a writable place.");
    return kExitFailure;
  }
  Ticker ticker{&directory, isatty(STDERR_FILENO) == 1};
  const CommandResult result = RunCommand(
      options.command, RecordingEnvironment(options, adapters, directory.path()), &ShowProgress, &ticker);
  if (ticker.on_terminal) fmt::print(stderr, "\r\033[K");
  if (!result.started) {
    PrintError(fmt::format("cannot run `{}`: {}.", options.command[0], std::strerror(result.exec_errno)));
    return result.exec_errno == ENOENT ? 127 : 126;
  }
  return Report(directory.Read(), options, result);
}

}  // namespace

void AddRecord(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<RecordOptions>();
  CLI::App* command = app.add_subcommand("record", "Run a command and record where its time goes");
  command->add_option("-o,--output", options->output, "The trace file; a trace of that name is replaced")
      ->default_val("stackpipe.nettrace")
      ->type_name("FILE");
  command->add_option("--rate", options->rate_hz, "Samples per second for each running thread, 1 to 100000")
      ->default_val(1000)
      ->type_name("HZ");
  command
      ->add_option("--mode", options->mode,
                   "What is measured: cpu (time on the CPU) or wall (time that passes)")
      ->default_val("cpu")
      ->check(CLI::IsMember({"cpu", "wall"}));
  command
      ->add_option("--duration", options->duration_s, "Stop recording after this time; the command runs on")
      ->type_name("SECONDS");
  command->add_option("command", options->command, "The command and its arguments, after --")
      ->required()
      ->type_name("COMMAND ARG...");
  command->callback([options, exit_code] { *exit_code = Record(*options); });
}

}  // namespace stackpipe
