// SPDX-License-Identifier: MIT
//
// Proves: A8
#include "aot/aot_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

namespace stackpipe {
namespace {

AotCode CodeOf(std::uint32_t method) {
  return {.size = method * 7 + 1, .kind = method % 3 == 0 ? CodeKind::kWrapper : CodeKind::kAot};
}

std::vector<AotCache::Seen> TakeAll(AotCache* cache) {
  std::vector<AotCache::Seen> all;
  cache->Take([&](const AotCache::Seen& seen) { all.push_back(seen); });
  return all;
}

TEST(AotCacheTest, NoBucketHasMoreThan32Methods) {
  std::vector<std::uint32_t> counts = {30'000, 65'535, 1'000'000};
  for (std::uint32_t n = 1; n < 3000; ++n) counts.push_back(n);
  for (const std::uint32_t methods : counts) {
    const std::uint32_t buckets = AotCache::BucketCount(methods);
    EXPECT_EQ(buckets, methods / 32 + 1);
    EXPECT_LT((methods - 1) / buckets, 32u) << methods;  // the number of the last method in its bucket
  }
}

TEST(AotCacheTest, FindsEachMethodOnceItIsAdded) {
  for (const std::uint32_t methods : {1u, 31u, 32u, 33u, 1000u}) {
    AotCache cache;
    ASSERT_TRUE(cache.Reserve(methods, methods));
    std::atomic<std::uint32_t> order{0};
    for (std::uint32_t i = 0; i < methods; ++i) {
      const std::uint32_t method = methods - 1 - i;
      AotCode code;
      EXPECT_FALSE(cache.Find(method, &code));
      EXPECT_EQ(cache.Add(method, CodeOf(method), &order), AotCache::AddResult::kAdded);
      EXPECT_EQ(cache.Add(method, CodeOf(method), &order), AotCache::AddResult::kPresent);
    }
    for (std::uint32_t method = 0; method < methods; ++method) {
      AotCode code;
      ASSERT_TRUE(cache.Find(method, &code)) << method << " of " << methods;
      EXPECT_EQ(code.size, CodeOf(method).size);
      EXPECT_EQ(code.kind, CodeOf(method).kind);
    }
    EXPECT_EQ(cache.item_count(), methods);
  }
}

TEST(AotCacheTest, TakesEachMethodOnceInOrder) {
  AotCache cache;
  ASSERT_TRUE(cache.Reserve(100, 100));
  std::atomic<std::uint32_t> order{0};
  for (const std::uint32_t method : {40u, 7u, 99u}) cache.Add(method, CodeOf(method), &order);
  const std::vector<AotCache::Seen> first = TakeAll(&cache);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].method, 40u);
  EXPECT_EQ(first[1].method, 7u);
  EXPECT_EQ(first[2].method, 99u);
  EXPECT_EQ(first[2].code.size, CodeOf(99).size);
  EXPECT_LT(first[0].order, first[1].order);
  EXPECT_TRUE(TakeAll(&cache).empty());
  cache.Add(0, CodeOf(0), &order);
  const std::vector<AotCache::Seen> second = TakeAll(&cache);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].method, 0u);
}

TEST(AotCacheTest, CostsNothingBeforeTheFirstMethodAndAtMost8KbWithIt) {
  constexpr std::uint32_t kMethods = 30'000;
  AotCache cache;
  ASSERT_TRUE(cache.Reserve(kMethods, 8192));
  EXPECT_EQ(cache.byte_count(), 0u);
  EXPECT_EQ(cache.resident_bytes(), 0u);
  std::atomic<std::uint32_t> order{0};
  ASSERT_EQ(cache.Add(12'345, CodeOf(12'345), &order), AotCache::AddResult::kAdded);
  EXPECT_GE(cache.byte_count(), AotCache::BucketCount(kMethods) * sizeof(void*));
  EXPECT_LE(cache.byte_count(), 8u * 1024);
  EXPECT_GT(cache.resident_bytes(), 0u);
  EXPECT_LE(cache.resident_bytes(), 8u * 1024);
}

TEST(AotCacheTest, StaysBoundedWhenAllMethodsAreSeen) {
  constexpr std::uint32_t kMethods = 30'000;
  constexpr std::uint32_t kItems = 1000;
  AotCache cache;
  ASSERT_TRUE(cache.Reserve(kMethods, kItems));
  std::atomic<std::uint32_t> order{0};
  std::uint32_t added = 0;
  for (int round = 0; round < 20; ++round) {
    for (std::uint32_t method = 0; method < kMethods; ++method) {
      const AotCache::AddResult result = cache.Add(method, CodeOf(method), &order);
      added += result == AotCache::AddResult::kAdded ? 1 : 0;
      if (round == 0 && method >= kItems) {
        EXPECT_EQ(result, AotCache::AddResult::kFull);
      }
      AotCode code;
      EXPECT_EQ(cache.Find(method, &code), method < kItems);
    }
  }
  EXPECT_EQ(added, kItems);
  EXPECT_EQ(cache.item_count(), kItems);
  EXPECT_TRUE(cache.full());
  EXPECT_EQ(TakeAll(&cache).size(), kItems);
  EXPECT_LE(cache.resident_bytes(), cache.byte_count() + 2 * 4096);
}

// Threads that meet each method first together: each method gets one item, no item is wasted, and whoever
// finds a method finds all of it.
TEST(AotCacheTest, RacingThreadsMakeOneItemOfEachMethod) {
  constexpr unsigned kThreads = 8;
  constexpr std::uint32_t kMethods = 300;  // 10 buckets: much contention
  for (int round = 0; round < 40; ++round) {
    AotCache cache;
    ASSERT_TRUE(cache.Reserve(kMethods, kMethods));
    std::atomic<std::uint32_t> order{0};
    std::atomic<std::uint32_t> added{0};
    std::atomic<std::uint32_t> wrong{0};
    std::vector<AotCache::Seen> taken;
    std::barrier together(kThreads + 1);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        together.arrive_and_wait();
        for (std::uint32_t i = 0; i < kMethods; ++i) {
          const std::uint32_t method = t % 2 == 0 ? i : (i * 7 + t) % kMethods;
          AotCode code;
          if (!cache.Find(method, &code)) {
            code = CodeOf(method);
            if (cache.Add(method, code, &order) == AotCache::AddResult::kAdded) added.fetch_add(1);
            continue;
          }
          if (code.size != CodeOf(method).size || code.kind != CodeOf(method).kind) wrong.fetch_add(1);
        }
      });
    }
    together.arrive_and_wait();
    while (taken.size() < kMethods / 2) {
      cache.Take([&](const AotCache::Seen& seen) { taken.push_back(seen); });
    }
    for (std::thread& thread : threads) thread.join();
    cache.Take([&](const AotCache::Seen& seen) { taken.push_back(seen); });

    EXPECT_EQ(wrong.load(), 0u);
    EXPECT_EQ(added.load(), kMethods);
    EXPECT_EQ(cache.item_count(), kMethods);
    std::vector<std::uint32_t> methods;
    for (const AotCache::Seen& seen : taken) {
      methods.push_back(seen.method);
      EXPECT_EQ(seen.code.size, CodeOf(seen.method).size);
    }
    std::sort(methods.begin(), methods.end());
    ASSERT_EQ(methods.size(), kMethods);
    for (std::uint32_t method = 0; method < kMethods; ++method) EXPECT_EQ(methods[method], method);
  }
}

}  // namespace
}  // namespace stackpipe
