// SPDX-License-Identifier: MIT
//
// EventQueue: what runtimes tell of modules, domains, code and threads, in the order and at the time of
// telling, until the collector takes it. Ordinary code only: it locks and allocates.
#ifndef STACKPIPE_LIFECYCLE_EVENT_QUEUE_H_
#define STACKPIPE_LIFECYCLE_EVENT_QUEUE_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "platform/port.h"
#include "stackpipe/code_map.h"
#include "stackpipe/lifecycle.h"

namespace stackpipe {

struct ModuleEvent {
  LifecyclePhase phase;
  ModuleSnapshot module;
};
struct DomainEvent {
  LifecyclePhase phase;
  DomainSnapshot domain;
};
struct AotImageOpened {
  CodeId id;
};
struct CodeRetired {  // an AOT image, too
  CodeId id;
};
struct ThreadNamed {
  std::int32_t tid;
  std::string name;
};

struct LifecycleEvent {
  std::uint64_t time_ns = 0;
  std::int32_t tid = 0;  // of the thread that told
  std::variant<ModuleEvent, DomainEvent, AotImageOpened, CodeRetired, ThreadNamed> what;
};

class EventQueue {
 public:
  // The time is read under the lock, so the queue is in time order, and whatever comes after Take has a later
  // time than the clock had before Take.
  void Push(decltype(LifecycleEvent::what) what) {
    const std::int32_t tid = port::CurrentTid();
    const std::lock_guard lock(mutex_);
    events_.push_back({port::NowNs(), tid, std::move(what)});
  }

  // Moves all that is there to the end of `to`.
  void Take(std::vector<LifecycleEvent>* to) {
    const std::lock_guard lock(mutex_);
    for (LifecycleEvent& event : events_) to->push_back(std::move(event));
    events_.clear();
  }

 private:
  std::mutex mutex_;  // guards events_
  std::vector<LifecycleEvent> events_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_LIFECYCLE_EVENT_QUEUE_H_
