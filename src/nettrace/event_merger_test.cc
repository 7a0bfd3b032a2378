// SPDX-License-Identifier: MIT
#include "nettrace/event_merger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "nettrace/collected_events.h"

namespace stackpipe::nettrace {
namespace {

struct Times : Visitor {
  std::vector<std::uint64_t> times;
  std::vector<std::uint64_t> threads;
  void OnEvent(const Event& event) override {
    times.push_back(event.timestamp);
    threads.push_back(event.thread_id);
  }
};

class EventMergerTest : public testing::Test {
 protected:
  void Add(EventMerger* merger, EventMerger::Thread* thread, std::uint64_t time, bool sorted = false) {
    Event event;
    event.timestamp = time;
    event.thread_id = thread->order;
    merger->Add(thread, event, sorted, block_);
  }

  std::uint64_t next_ = 0;
  Times seen_;
  BlockPool pool_;
  PooledBlock* block_ = pool_.Acquire();
  EventMerger merger_{seen_, pool_};
};

TEST_F(EventMergerTest, SortedEventLetsGoWhatIsEarlier) {
  EventMerger::Thread* a = merger_.AddThread(0);
  EventMerger::Thread* b = merger_.AddThread(0);
  Add(&merger_, a, 1);
  Add(&merger_, a, 5);
  Add(&merger_, a, 9);
  Add(&merger_, b, 2);
  Add(&merger_, b, 7);
  EXPECT_TRUE(seen_.times.empty());
  Add(&merger_, a, 6, true);
  EXPECT_EQ(seen_.times, (std::vector<std::uint64_t>{1, 2, 5, 6}));
  merger_.FlushAll();
  EXPECT_EQ(seen_.times, (std::vector<std::uint64_t>{1, 2, 5, 6, 7, 9}));
  EXPECT_EQ(merger_.delivered(), 6u);
}

TEST_F(EventMergerTest, EventsOfOneTimeKeepTheirOrder) {
  EventMerger::Thread* a = merger_.AddThread(0);
  for (const bool sorted : {false, false, true, false, true, true}) {
    Event event;
    event.timestamp = 7;
    event.thread_id = next_++;
    merger_.Add(a, event, sorted, block_);
  }
  merger_.FlushAll();
  EXPECT_EQ(seen_.threads, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5}));
}

TEST_F(EventMergerTest, EqualTimesGoByThread) {
  EventMerger::Thread* a = merger_.AddThread(0);
  EventMerger::Thread* b = merger_.AddThread(0);
  Add(&merger_, b, 3);
  Add(&merger_, a, 3);
  merger_.FlushAll();
  EXPECT_EQ(seen_.threads, (std::vector<std::uint64_t>{a->order, b->order}));
}

TEST_F(EventMergerTest, BlocksAreGivenBackWhenTheirEventsAreGone) {
  EventMerger::Thread* a = merger_.AddThread(0);
  block_->bytes.resize(1000);
  Add(&merger_, a, 1);
  Add(&merger_, a, 2);
  EXPECT_EQ(pool_.waiting_bytes(), 1000u);
  pool_.RemoveUser(block_);  // as the reader does behind the block
  PooledBlock* other = pool_.Acquire();
  EXPECT_NE(other, block_) << "events wait in it";
  merger_.FlushAll();
  EXPECT_EQ(pool_.waiting_bytes(), 0u);
  EXPECT_EQ(pool_.Acquire(), block_);
}

TEST_F(EventMergerTest, EventsThatWaitTakeBoundedMemory) {
  EventMerger bounded(seen_, pool_, 100 * sizeof(EventMerger::Thread::Waiting));
  EventMerger::Thread* a = bounded.AddThread(0);
  EventMerger::Thread* b = bounded.AddThread(0);
  for (std::uint64_t time = 1; time <= 1000; ++time) {
    Add(&bounded, a, 2 * time);
    Add(&bounded, b, 2 * time + 1);
    ASSERT_GE(seen_.times.size() + 101, 2 * time);
  }
  EXPECT_TRUE(std::is_sorted(seen_.times.begin(), seen_.times.end()));
}

TEST_F(EventMergerTest, EventsOfARemovedThreadAreStillDelivered) {
  EventMerger::Thread* a = merger_.AddThread(0);
  Add(&merger_, a, 5);
  merger_.RemoveThread(a);
  EventMerger::Thread* b = merger_.AddThread(0);
  EXPECT_NE(a, b);
  Add(&merger_, b, 4);
  merger_.FlushAll();
  EXPECT_EQ(seen_.times, (std::vector<std::uint64_t>{4, 5}));
  EXPECT_EQ(merger_.AddThread(0), a) << "used again once it is empty";
}

TEST_F(EventMergerTest, LossArithmetic) {
  EventMerger::Thread* a = merger_.AddThread(10);
  merger_.CountLost(a, 10, true);
  EXPECT_EQ(merger_.lost(), 0u);
  merger_.CountLost(a, 13, true);
  EXPECT_EQ(merger_.lost(), 3u);
  a->last_sequence = 0xffff'fffe;
  merger_.CountLost(a, 1, true);  // over the wrap
  EXPECT_EQ(merger_.lost(), 6u);
  a->last_sequence = 100;
  merger_.CountLost(a, 0, true);  // back
  EXPECT_EQ(merger_.lost(), 6u + 0x7fff'ffff);
  a->last_sequence = 0;
  merger_.CountLost(a, 50, true);
  EXPECT_EQ(merger_.lost(), 6u + 0x7fff'ffff);
  merger_.CountLost(a, 50, false);
  EXPECT_EQ(merger_.lost(), 56u + 0x7fff'ffff);
}

// As the runtime writes: the oldest event sorted, then its thread's events up to the end of the batch.
TEST_F(EventMergerTest, MergesWhatTheRuntimeWrites) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    seen_.times.clear();
    EventMerger merger(seen_, pool_);
    std::vector<std::vector<std::uint64_t>> waiting(1 + random() % 6);
    std::vector<EventMerger::Thread*> threads;
    for (std::size_t i = 0; i < waiting.size(); ++i) threads.push_back(merger.AddThread(0));
    std::uint64_t time = 0;
    std::size_t events = 0;
    for (int batch = 0; batch < 10; ++batch) {
      for (std::uint32_t i = static_cast<std::uint32_t>(random() % 100); i > 0; --i, ++events) {
        waiting[random() % waiting.size()].push_back(++time);
      }
      while (true) {
        std::size_t oldest = waiting.size();
        for (std::size_t i = 0; i < waiting.size(); ++i) {
          if (waiting[i].empty()) continue;
          if (oldest == waiting.size() || waiting[i].front() < waiting[oldest].front()) oldest = i;
        }
        if (oldest == waiting.size()) break;
        bool sorted = true;
        for (const std::uint64_t event : waiting[oldest]) {
          Add(&merger, threads[oldest], event, sorted);
          sorted = false;
        }
        waiting[oldest].clear();
      }
    }
    merger.FlushAll();
    ASSERT_EQ(seen_.times.size(), events);
    ASSERT_TRUE(std::is_sorted(seen_.times.begin(), seen_.times.end()));
  }
}

}  // namespace
}  // namespace stackpipe::nettrace
