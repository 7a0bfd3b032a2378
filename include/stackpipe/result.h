// SPDX-License-Identifier: MIT
//
// How functions of this project report failure: a Status (one meaning per code) or a Result<T>, which is a
// value or a Status. Neither allocates and neither throws, so both may be used in code that is embedded in
// other programs.
//
//     Result<CodeId> id = map.Register(range);
//     if (!id.ok()) return id.status();
#ifndef STACKPIPE_RESULT_H_
#define STACKPIPE_RESULT_H_

#include <cstdint>
#include <utility>

namespace stackpipe {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  // the call itself is wrong: a zero length, an address that wraps
  kOverlap,          // the range overlaps one that is registered
  kNotFound,         // there is nothing of that name, id or address
  kOutOfMemory,      // an allocation failed; nothing was changed
  kLimit,            // a fixed limit was reached; nothing was changed
  kIo,               // a system call failed: Status::os_error() says how
  kFormat,           // the input is not what its format says
  kTruncated,        // the input stops before its end mark; what came before it is good
  kUnsupported,      // this machine, format version or runtime cannot do that
};

// A code, a static text that says what was being done, and errno where a system call failed.
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  constexpr Status(StatusCode code, const char* context, int os_error = 0)
      : context_(context), os_error_(os_error), code_(code) {}

  constexpr bool ok() const { return code_ == StatusCode::kOk; }
  constexpr StatusCode code() const { return code_; }
  constexpr const char* context() const { return context_; }
  constexpr int os_error() const { return os_error_; }

 private:
  const char* context_ = "";
  int os_error_ = 0;
  StatusCode code_ = StatusCode::kOk;
};

// A T, or the Status that says why there is none. T must be default-constructible.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(status) {}     // NOLINT: implicit by design

  bool ok() const { return status_.ok(); }
  Status status() const { return status_; }
  T& value() { return value_; }
  const T& value() const { return value_; }

 private:
  T value_{};
  Status status_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_RESULT_H_
