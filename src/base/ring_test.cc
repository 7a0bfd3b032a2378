// SPDX-License-Identifier: MIT
#include "base/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>

namespace stackpipe {
namespace {

bool Put(Ring* ring, const std::string& text, std::size_t room) {
  std::byte* to = ring->Reserve(room);
  if (to == nullptr) return false;
  std::memcpy(to, text.data(), text.size());
  ring->Commit(text.size());
  return true;
}

std::deque<std::string> TakeAll(Ring* ring) {
  std::deque<std::string> all;
  Ring::Cursor cursor = ring->Begin();
  std::size_t size = 0;
  while (const std::byte* bytes = ring->Peek(&cursor, &size)) {
    all.emplace_back(reinterpret_cast<const char*>(bytes), size);
    ring->Next(&cursor);
  }
  ring->Pop(cursor);
  return all;
}

TEST(RingTest, GivesBackWhatWasCommittedInOrder) {
  Ring ring;
  ASSERT_TRUE(ring.Allocate(4096));
  std::mt19937 random(1);
  std::deque<std::string> model;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text(random() % 200, static_cast<char>('a' + i % 26));
    // Reserving more than is used is what handlers do.
    if (Put(&ring, text, text.size() + random() % 100)) {
      model.push_back(text);
    } else {
      EXPECT_FALSE(model.empty()) << "an empty ring has room";
    }
    if (random() % 8 == 0 || model.size() > 12) {
      EXPECT_EQ(TakeAll(&ring), model);
      EXPECT_TRUE(ring.Empty());
      model.clear();
    }
  }
}

TEST(RingTest, SaysThatItIsFullAndLosesNothingThatIsInIt) {
  Ring ring;
  ASSERT_TRUE(ring.Allocate(4096));
  int put = 0;
  while (Put(&ring, "0123456789", 10)) ++put;
  EXPECT_EQ(put, 4096 / 24);
  EXPECT_EQ(TakeAll(&ring).size(), static_cast<std::size_t>(put));
  EXPECT_TRUE(Put(&ring, "again", 5));
}

TEST(RingTest, ReservationWithoutCommitIsNoRecord) {
  Ring ring;
  ASSERT_TRUE(ring.Allocate(4096));
  ASSERT_NE(ring.Reserve(100), nullptr);
  EXPECT_TRUE(TakeAll(&ring).empty());
  EXPECT_TRUE(Put(&ring, "x", 1));
  EXPECT_EQ(TakeAll(&ring), std::deque<std::string>{"x"});
}

TEST(RingTest, OneProducerAndOneConsumerAtTheSameTime) {
  Ring ring;
  ASSERT_TRUE(ring.Allocate(4096));
  constexpr int kRecords = 100'000;
  std::thread producer([&ring] {
    for (int i = 0; i < kRecords;) {
      std::string text(static_cast<std::size_t>(i % 61), 'x');
      text += std::to_string(i);
      if (Put(&ring, text, text.size())) ++i;
    }
  });
  int next = 0;
  while (next < kRecords) {
    for (const std::string& text : TakeAll(&ring)) {
      ASSERT_EQ(text, std::string(static_cast<std::size_t>(next % 61), 'x') + std::to_string(next));
      ++next;
    }
  }
  producer.join();
}

}  // namespace
}  // namespace stackpipe
