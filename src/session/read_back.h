// SPDX-License-Identifier: MIT
//
// For tests: a trace that a session wrote, read back. Frames are named from what stands before their sample,
// as the format promises.
#ifndef STACKPIPE_SESSION_READ_BACK_H_
#define STACKPIPE_SESSION_READ_BACK_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nettrace/clr_events.h"
#include "nettrace/reader.h"

namespace stackpipe::testing {

struct ReadBack : nettrace::Visitor {
  struct Frame {
    std::uint64_t pc;
    std::string name;
    std::uint64_t module_id;
    std::int32_t kind;
  };
  struct Sample {
    std::uint64_t time, tid, weight;
    std::uint8_t flags;
    std::vector<Frame> frames;
  };
  std::map<std::uint64_t, nettrace::Method> live;      // methods, by start
  std::map<std::uint64_t, nettrace::Module> modules;   // that were loaded, by id
  std::map<std::uint64_t, std::uint64_t> unloaded_at;  // those that were unloaded
  std::map<std::uint64_t, std::int32_t> kinds;         // by method id
  std::vector<nettrace::Method> loads;                 // in the order of the stream
  std::map<std::uint64_t, nettrace::Method> rundown;   // by id
  std::map<std::uint64_t, nettrace::Module> module_rundown;
  std::vector<Sample> samples;
  std::vector<std::string> order;  // "unloading a.dll", ...
  std::vector<std::uint64_t> times;
  std::map<std::int32_t, nettrace::Totals> totals;
  nettrace::SessionEnd end;
  nettrace::ReadSummary summary;

  explicit ReadBack(const std::string& path) {
    auto source = nettrace::OpenFile(path.c_str());
    if (source.ok()) summary = nettrace::Read(*source.value(), *this);
  }

  void OnEvent(const nettrace::Event& event) override {
    const std::string& provider = event.type->provider;
    times.push_back(event.timestamp);
    if (provider == nettrace::kSampleProvider) {
      OnSample(event);
    } else if (provider == nettrace::kRuntimeProvider) {
      OnRuntimeEvent(event);
    } else if (provider == nettrace::kRundownProvider) {
      OnRundownEvent(event);
    } else if (provider == nettrace::kStackpipeProvider) {
      OnOwnEvent(event);
    }
  }

  // Null: no method that is live holds it.
  const nettrace::Method* MethodAt(std::uint64_t pc) const {
    auto it = live.upper_bound(pc);
    if (it == live.begin()) return nullptr;
    --it;
    return pc < it->second.start + it->second.size ? &it->second : nullptr;
  }

  std::uint64_t WeightOf(std::uint64_t tid) const {
    std::uint64_t sum = 0;
    for (const Sample& sample : samples) sum += sample.tid == tid ? sample.weight : 0;
    return sum;
  }

 private:
  void OnSample(const nettrace::Event& event) {
    nettrace::Sample sample;
    ASSERT_TRUE(nettrace::Decode(event.payload, &sample));
    Sample out{event.timestamp, event.thread_id, sample.weight_ns, sample.flags, {}};
    for (const std::uint64_t pc : event.stack) {
      const nettrace::Method* method = MethodAt(pc);
      if (method == nullptr) {
        out.frames.push_back({pc, {}, 0, 0});
      } else {
        out.frames.push_back({pc, method->name, method->module_id, kinds[method->method_id]});
      }
    }
    samples.push_back(std::move(out));
  }

  void OnRuntimeEvent(const nettrace::Event& event) {
    const std::int32_t id = event.type->event_id;
    if (id == 143 || id == 144) {
      nettrace::Method method;
      ASSERT_TRUE(nettrace::Decode(event.payload, event.type->version, &method));
      if (id == 144) {
        EXPECT_EQ(live.erase(method.start), 1u) << method.name;
        return;
      }
      // Never two names for one address.
      const auto next = live.lower_bound(method.start);
      EXPECT_TRUE(next == live.end() || method.start + method.size <= next->first) << method.name;
      EXPECT_EQ(MethodAt(method.start), nullptr) << method.name;
      live.emplace(method.start, method);
      loads.push_back(method);
    } else if (id == 152 || id == 153) {
      nettrace::Module module;
      ASSERT_TRUE(nettrace::Decode(event.payload, event.type->version, &module));
      if (id == 152) {
        EXPECT_TRUE(modules.emplace(module.module_id, module).second) << module.il_path;
      } else {
        EXPECT_EQ(modules.count(module.module_id), 1u) << module.il_path;
        EXPECT_TRUE(unloaded_at.emplace(module.module_id, event.timestamp).second) << module.il_path;
      }
    }
  }

  void OnRundownEvent(const nettrace::Event& event) {
    if (event.type->event_id == 144) {
      nettrace::Method method;
      ASSERT_TRUE(nettrace::Decode(event.payload, event.type->version, &method));
      EXPECT_TRUE(rundown.emplace(method.method_id, method).second) << method.name;
    } else if (event.type->event_id == 154) {
      nettrace::Module module;
      ASSERT_TRUE(nettrace::Decode(event.payload, event.type->version, &module));
      EXPECT_TRUE(module_rundown.emplace(module.module_id, module).second) << module.il_path;
    }
  }

  void OnOwnEvent(const nettrace::Event& event) {
    if (event.type->event_id == 3) {
      nettrace::CodeInfo info;
      ASSERT_TRUE(nettrace::Decode(event.payload, &info));
      kinds[info.method_id] = info.kind;
    } else if (event.type->event_id == 4) {
      nettrace::ThreadTotals thread;
      ASSERT_TRUE(nettrace::Decode(event.payload, &thread));
      totals[thread.thread_id] = thread.totals;
    } else if (event.type->event_id == 5) {
      ASSERT_TRUE(nettrace::Decode(event.payload, &end));
    } else if (event.type->event_id == 6) {
      nettrace::ModulePhase phase;
      ASSERT_TRUE(nettrace::Decode(event.payload, &phase));
      constexpr const char* kNames[] = {"loading", "loaded", "unloading", "unloaded"};
      order.push_back(std::string(kNames[phase.phase]) + " " + phase.path);
    }
  }
};

}  // namespace stackpipe::testing

#endif  // STACKPIPE_SESSION_READ_BACK_H_
