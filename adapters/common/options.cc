// SPDX-License-Identifier: MIT
#include "common/options.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace stackpipe::adapter {

namespace {

// A whole number in [low, high].
bool ParseNumber(const std::string& text, double low, double high, double* value) {
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && *value >= low && *value <= high;
}

bool Apply(std::string_view key, const std::string& value, SessionOptions* options) {
  double number = 0;
  if (key == "output") {
    options->output_path = value;
    return !value.empty();
  }
  if (key == "rate") {
    if (!ParseNumber(value, 1, 100'000, &number)) return false;
    options->period_ns = static_cast<std::uint64_t>(1e9 / number);
    return true;
  }
  if (key == "duration") {
    if (!ParseNumber(value, 0, 1e9, &number)) return false;
    options->duration_ns = static_cast<std::uint64_t>(number * 1e9);
    return true;
  }
  if (key == "mode") {
    options->mode = value == "wall" ? SampleMode::kWall : SampleMode::kCpu;
    return value == "wall" || value == "cpu";
  }
  if (key == "progress") {
    options->progress_path = value + "/" + std::to_string(getpid());
    return true;
  }
  return false;
}

std::string WithPid(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  std::size_t dot = path.find('.', slash == std::string::npos ? 0 : slash);
  if (dot == std::string::npos) dot = path.size();
  return path.substr(0, dot) + "-" + std::to_string(getpid()) + path.substr(dot);
}

}  // namespace

bool ReadOptions(const char* text, SessionOptions* options) {
  options->output_path = "stackpipe-" + std::to_string(getpid()) + ".nettrace";
  constexpr struct {
    const char* variable;
    const char* key;
  } kVariables[] = {{"STACKPIPE_OUTPUT", "output"},
                    {"STACKPIPE_RATE", "rate"},
                    {"STACKPIPE_MODE", "mode"},
                    {"STACKPIPE_DURATION", "duration"},
                    {"STACKPIPE_PROGRESS", "progress"}};
  for (const auto& [variable, key] : kVariables) {
    const char* value = std::getenv(variable);
    if (value != nullptr && !Apply(key, value, options)) return false;
    // Under `record` a signal that ends the program must end the recording first.
    if (value != nullptr && std::string_view(key) == "progress") options->end_on_signals = true;
  }
  const char* colon = text != nullptr ? std::strchr(text, ':') : nullptr;
  std::string_view rest = colon != nullptr ? colon + 1 : "";
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size() == rest.size() ? item.size() : item.size() + 1);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) return false;
    if (!Apply(item.substr(0, equals), std::string(item.substr(equals + 1)), options)) return false;
  }
  return true;
}

Result<std::unique_ptr<Session>> StartSession(SessionOptions* options) {
  Result<std::unique_ptr<Session>> session = Session::Start(*options);
  if (session.ok() || session.status().os_error() != EEXIST) return session;
  options->output_path = WithPid(options->output_path);
  return Session::Start(*options);
}

}  // namespace stackpipe::adapter
