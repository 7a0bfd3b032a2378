// SPDX-License-Identifier: MIT
#include "stackpipe/recording.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "session/progress_block.h"

namespace stackpipe {

namespace fs = std::filesystem;

ProgressDirectory::ProgressDirectory() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  std::string name = ((error ? fs::path("/tmp") : base) / "stackpipe-XXXXXX").string();
  if (mkdtemp(name.data()) != nullptr) path_ = name;
}

ProgressDirectory::~ProgressDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

std::vector<ProcessProgress> ProgressDirectory::Read() const {
  std::vector<ProcessProgress> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    // A file that is shorter is being made right now.
    std::error_code size_error;
    const bool whole = entry.file_size(size_error) >= sizeof(ProgressBlock) && !size_error;
    void* at = whole ? mmap(nullptr, sizeof(ProgressBlock), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (at == MAP_FAILED) continue;
    const auto* block = static_cast<const ProgressBlock*>(at);
    ProcessProgress progress;
    progress.start_error = static_cast<int>(block->start_error.load());
    if (block->magic.load() == ProgressBlock::kMagic) {
      progress.pid = block->process_id.load();
      progress.output = block->output_path;
      progress.samples = block->samples.load();
      progress.dropped = block->dropped.load();
      progress.bytes = block->bytes.load();
      progress.write_error = static_cast<int>(block->write_error.load());
      progress.ended = block->ended.load() != 0;
    }
    if (progress.pid != 0 || progress.start_error != 0) found.push_back(progress);
    munmap(at, sizeof(ProgressBlock));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return found;
}

std::string AdapterDirectory() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path directory = self.parent_path().parent_path() / "lib" / "stackpipe";
  const bool whole = fs::exists(directory / kMonoAdapter, error) && fs::exists(directory / kAgent, error);
  return whole ? directory.string() : std::string();
}

std::vector<std::string> RecordingEnvironment(const RecordOptions& options,
                                              const std::string& adapter_directory,
                                              const std::string& progress_directory) {
  const auto with = [](const char* name, const std::string& added, const char* separator, bool before) {
    const char* old = std::getenv(name);
    if (old == nullptr || *old == '\0') return fmt::format("{}={}", name, added);
    return before ? fmt::format("{}={}{}{}", name, added, separator, old)
                  : fmt::format("{}={}{}{}", name, old, separator, added);
  };
  return {
      with("MONO_ENV_OPTIONS", "--profile=stackpipe", " ", false),
      with("LD_LIBRARY_PATH", adapter_directory, ":", true),
      // By its name alone: blanks and colons in a path would end it.
      with("LD_PRELOAD", kAgent, ":", true),
      fmt::format("STACKPIPE_OUTPUT={}", fs::absolute(options.output).string()),
      fmt::format("STACKPIPE_RATE={}", options.rate_hz),
      fmt::format("STACKPIPE_MODE={}", options.mode),
      fmt::format("STACKPIPE_DURATION={}", options.duration_s),
      fmt::format("STACKPIPE_PROGRESS={}", progress_directory),
  };
}

namespace {

volatile pid_t child_pid = 0;

// A signal from the terminal has gone to the whole foreground group, the command among it.
void PassOn(int signal, siginfo_t* info, void*) {
  if (info->si_code != SI_KERNEL && child_pid > 0) kill(child_pid, signal);
}

[[noreturn]] void Exec(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                       int error_pipe) {
  for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t n = write(error_pipe, &error, sizeof error);
  _exit(127);
}

}  // namespace

CommandResult RunCommand(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                         void (*tick)(void* context), void* context) {
  CommandResult result;
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    result.exec_errno = errno;
    return result;
  }
  const pid_t child = fork();
  if (child == 0) Exec(command, environment, error_pipe[1]);
  close(error_pipe[1]);
  if (child < 0) {
    result.exec_errno = errno;
    close(error_pipe[0]);
    return result;
  }
  child_pid = child;
  struct sigaction pass {};
  pass.sa_sigaction = &PassOn;
  pass.sa_flags = SA_SIGINFO | SA_RESTART;
  constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  struct sigaction old[std::size(kSignals)];
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &pass, &old[i]);

  result.started = read(error_pipe[0], &result.exec_errno, sizeof result.exec_errno) == 0;
  close(error_pipe[0]);
  int status = 0;
  while (waitpid(child, &status, result.started ? WNOHANG : 0) == 0) {
    tick(context);
    for (int i = 0; i < 20; ++i) {
      usleep(10'000);
      siginfo_t ended{};
      if (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          ended.si_pid == child)
        break;
    }
  }
  child_pid = 0;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &old[i], nullptr);
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
    result.exit_code = 128 + result.signal;
  } else {
    result.exit_code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace stackpipe
