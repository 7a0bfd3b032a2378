// SPDX-License-Identifier: MIT
//
// The parts of `stackpipe record`: the environment that brings an adapter into the command, the command
// itself, and the progress that its processes show.
#ifndef STACKPIPE_TOOLS_RECORDING_H_
#define STACKPIPE_TOOLS_RECORDING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace stackpipe {

struct RecordOptions {
  std::string output;
  double rate_hz = 1000;
  std::string mode = "cpu";
  double duration_s = 0;  // 0 = until the command ends
  std::vector<std::string> command;
};

// What one recorded process has shown (see ProgressBlock).
struct ProcessProgress {
  std::uint64_t pid = 0;
  std::string output;
  std::uint64_t samples = 0, dropped = 0, bytes = 0;
  int write_error = 0;  // errno
  int start_error = 0;  // errno, or 1
  bool ended = false;
};

// A private directory for progress files, removed at the end.
class ProgressDirectory {
 public:
  ProgressDirectory();
  ~ProgressDirectory();
  ProgressDirectory(const ProgressDirectory&) = delete;
  ProgressDirectory& operator=(const ProgressDirectory&) = delete;

  const std::string& path() const { return path_; }  // empty: could not be made
  // What the processes show now, by process id.
  std::vector<ProcessProgress> Read() const;

 private:
  std::string path_;
};

// The directory with the adapters, beside the running tool; empty if there is none.
std::string AdapterDirectory();
// The Mono adapter in it, and the agent for all other programs.
inline constexpr char kMonoAdapter[] = "libmono-profiler-stackpipe.so";
inline constexpr char kAgent[] = "libstackpipe-agent.so";

// "NAME=value" entries to add to the command's environment.
std::vector<std::string> RecordingEnvironment(const RecordOptions& options,
                                              const std::string& adapter_directory,
                                              const std::string& progress_directory);

struct CommandResult {
  bool started = false;
  int exec_errno = 0;  // why it did not start
  int exit_code = 0;   // 128 + n after signal n
  int signal = 0;
};

// Runs the command with `environment` added to ours, and calls `tick` every 200 ms until it ends. Ctrl-C at
// the terminal reaches the command by itself; signals that are sent to us alone are passed on.
CommandResult RunCommand(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                         void (*tick)(void* context), void* context);

}  // namespace stackpipe

#endif  // STACKPIPE_TOOLS_RECORDING_H_
