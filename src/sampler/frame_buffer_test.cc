// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <vector>

#include "stackpipe/runtime_adapter.h"

namespace stackpipe {
namespace {

std::vector<std::uint64_t> Kept(std::size_t frames, std::size_t capacity, std::size_t* elided) {
  std::vector<std::uint64_t> pcs(capacity);
  FrameBuffer buffer(pcs.data(), capacity);
  for (std::size_t i = 0; i < frames; ++i) EXPECT_TRUE(buffer.Add(i));
  *elided = buffer.elided();
  pcs.resize(buffer.Finish());
  return pcs;
}

// Proves: A10
TEST(FrameBufferTest, KeepsTheLeafHalfAndTheRootHalf) {
  for (const std::size_t capacity : {2u, 3u, 8u, 9u}) {
    for (std::size_t frames = 0; frames < 40; ++frames) {
      std::size_t elided = 0;
      const std::vector<std::uint64_t> kept = Kept(frames, capacity, &elided);
      std::vector<std::uint64_t> expected;
      for (std::size_t i = 0; i < frames; ++i) {
        const bool fits = frames <= capacity;
        const std::size_t root_half = capacity - capacity / 2;
        if (fits || i < capacity / 2 || i >= frames - root_half) expected.push_back(i);
      }
      EXPECT_EQ(kept, expected) << frames << " frames, room for " << capacity;
      EXPECT_EQ(elided, frames - expected.size());
    }
  }
}

TEST(FrameBufferTest, StopsAWalkThatDoesNotEnd) {
  std::vector<std::uint64_t> pcs(16);
  FrameBuffer buffer(pcs.data(), pcs.size());
  std::size_t added = 0;
  while (buffer.Add(added)) ++added;
  EXPECT_EQ(added, FrameBuffer::kMaxWalked);
}

}  // namespace
}  // namespace stackpipe
