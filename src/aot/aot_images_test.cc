// SPDX-License-Identifier: MIT
#include "aot/aot_images.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aot/aot_test_source.h"
#include "code_map/page_memory.h"

namespace {

// Non-throwing allocations that still succeed; negative: all do.
std::atomic<int> news_allowed{-1};

bool NewFails() {
  int left = news_allowed.load();
  if (left < 0) return false;
  if (left == 0) return true;
  news_allowed.store(left - 1);
  return false;
}

}  // namespace

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return NewFails() ? nullptr : ::operator new(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return NewFails() ? nullptr : ::operator new[](size);
}

namespace stackpipe {
namespace {

using testing::ImageAt;
using testing::MethodsWithGaps;
using testing::TestMethod;
using testing::TestSource;

constexpr std::uintptr_t kBase = 0x7000'0000'0000;

std::unique_ptr<TestSource> Source(const std::string& name, const std::vector<TestMethod>& methods,
                                   std::atomic<int>* freed = nullptr) {
  return std::make_unique<TestSource>(name, methods, freed);
}

// What the collector does to name an address of a sample: "" if it cannot.
std::string NameAt(const CodeMap& code, const AotImages& images, std::uintptr_t pc, CodeEpoch epoch) {
  CodeHit range;
  AotHit hit;
  AotName name;
  if (!code.LookupAt(pc, epoch, &range) || images.Find(range.id, pc, &hit) != AotResult::kFound ||
      !images.Describe(hit.image, hit.method, &name)) {
    return "";
  }
  EXPECT_LT(pc - hit.start, hit.size);
  return name.name;
}

TEST(AotImagesTest, DecodeFindsEachByteOfEachMethodAndNothingElse) {  // Proves: B9
  CodeMap code;
  AotImages images(code);
  const std::vector<TestMethod> methods = {{4, 3}, {7, 1}, {20, 10}, {40, 0}, {60, 4}};
  const Result<CodeId> image = images.RegisterImage(ImageAt(kBase, 64, Source("m", methods)));
  ASSERT_TRUE(image.ok()) << image.status().context();
  for (int round = 0; round < 2; ++round) {  // decoded, then out of the cache
    for (std::uintptr_t offset = 0; offset < 70; ++offset) {
      const auto owner = std::find_if(methods.begin(), methods.end(), [&](const TestMethod& method) {
        return offset >= method.start && offset < method.start + method.size;
      });
      AotHit hit;
      const AotResult result = images.Decode(kBase + offset, &hit);
      if (owner != methods.end()) {
        ASSERT_EQ(result, AotResult::kFound) << offset;
        EXPECT_EQ(hit.method, owner - methods.begin());
        EXPECT_EQ(hit.start, kBase + owner->start);
        EXPECT_EQ(hit.size, owner->size);
        EXPECT_EQ(hit.kind, CodeKind::kAot);
      } else {
        EXPECT_EQ(result, offset < 64 ? AotResult::kNoMethod : AotResult::kNoImage) << offset;
      }
      if (result != AotResult::kNoImage) {
        EXPECT_EQ(hit.image, image.value());
      }
    }
  }
  AotHit hit;
  EXPECT_EQ(images.Decode(kBase - 1, &hit), AotResult::kNoImage);
  EXPECT_EQ(images.Decode(0, &hit), AotResult::kNoImage);
  EXPECT_EQ(images.Decode(~std::uintptr_t{0}, &hit), AotResult::kNoImage);
}

TEST(AotImagesTest, FindsTheRightOneOfManyImages) {
  CodeMap code;
  AotImages images(code);
  AotHit hit;
  EXPECT_EQ(images.Decode(kBase, &hit), AotResult::kNoImage);
  std::vector<CodeId> ids;
  for (std::uintptr_t i = 0; i < 50; ++i) {
    const std::uintptr_t place = (i * 37) % 50;
    const Result<CodeId> id =
        images.RegisterImage(ImageAt(kBase + place * 0x2000, 0x1000, Source("m", MethodsWithGaps(3))));
    ASSERT_TRUE(id.ok());
    ids.push_back(id.value());
    for (std::uintptr_t other = 0; other < 50; ++other) {
      const std::uintptr_t pc = kBase + ((other * 37) % 50) * 0x2000 + 32;
      ASSERT_EQ(images.Decode(pc, &hit), other <= i ? AotResult::kFound : AotResult::kNoImage);
      if (other > i) continue;
      EXPECT_EQ(hit.image, ids[other]);
      EXPECT_EQ(hit.method, 1u);
    }
  }
  for (std::uintptr_t i = 0; i < 50; i += 2) ASSERT_TRUE(images.UnregisterImage(ids[i]).ok());
  for (int round = 0; round < 2; ++round) {
    for (std::uintptr_t i = 0; i < 50; ++i) {
      const std::uintptr_t pc = kBase + ((i * 37) % 50) * 0x2000 + 32;
      EXPECT_EQ(images.Decode(pc, &hit), i % 2 == 0 ? AotResult::kNoImage : AotResult::kFound);
    }
    images.Reclaim(true, code.epoch());
  }
}

TEST(AotImagesTest, RefusesWhatMakesNoSenseAndChangesNothing) {
  CodeMap code;
  AotImages images(code);
  const auto refused = [&](std::uintptr_t start, std::size_t size, const std::vector<TestMethod>& methods) {
    const CodeEpoch before = code.epoch();
    const Result<CodeId> id = images.RegisterImage(ImageAt(start, size, Source("m", methods)));
    EXPECT_EQ(code.epoch(), before);
    return id.status().code();
  };
  ASSERT_TRUE(images.RegisterImage(ImageAt(kBase, 0x1000, Source("m", MethodsWithGaps(3)))).ok());
  EXPECT_EQ(refused(kBase + 0xfff, 0x1000, MethodsWithGaps(3)), StatusCode::kOverlap);
  EXPECT_EQ(refused(kBase * 2, 0, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(kBase * 2, 0x1000, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(kBase * 2, 0x1000, {{16, 1}, {16, 1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(kBase * 2, 0x1000, {{16, 1}, {8, 1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(kBase * 2, 0x1000, {{0x1000, 1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(~std::uintptr_t{0} - 10, 0x1000, MethodsWithGaps(3)), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(kBase * 2, std::size_t{1} << 32, MethodsWithGaps(3)), StatusCode::kLimit);
  AotImageRegistration without;
  without.start = kBase * 2;
  without.size = 16;
  EXPECT_EQ(images.RegisterImage(std::move(without)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(images.image_count(), 1u);
  EXPECT_EQ(code.live_count(), 1u);
}

TEST(AotImagesTest, UnregisteringWhatIsNotThereIsAnError) {
  CodeMap code;
  AotImages images(code);
  EXPECT_EQ(images.UnregisterImage(1).code(), StatusCode::kNotFound);
  const Result<CodeId> plain = code.Register({.start = kBase, .size = 16, .kind = CodeKind::kAot});
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(images.UnregisterImage(plain.value()).code(), StatusCode::kNotFound);
  const Result<CodeId> id = images.RegisterImage(ImageAt(kBase + 16, 64, Source("m", MethodsWithGaps(2))));
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(images.UnregisterImage(id.value()).ok());
  EXPECT_EQ(images.UnregisterImage(id.value()).code(), StatusCode::kNotFound);
  EXPECT_EQ(code.live_count(), 1u);
}

TEST(AotImagesTest, RegisteringDecodesAndCachesNothing) {  // Proves: A8
  CodeMap code;
  AotImages images(code);
  auto source = Source("m", MethodsWithGaps(30'000));
  const TestSource* watched = source.get();
  ASSERT_TRUE(images.RegisterImage(ImageAt(kBase, 30'000 * 32, std::move(source))).ok());
  EXPECT_EQ(watched->decodes.load(), 0u);
  EXPECT_EQ(images.stats().cache_bytes, 0u);
  AotHit hit;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(images.Decode(kBase + 20'000 * 32 + 15, &hit), AotResult::kFound);
  EXPECT_EQ(hit.method, 20'000u);
  EXPECT_EQ(watched->decodes.load(), 1u);
  EXPECT_EQ(images.stats().cached_methods, 1u);
  EXPECT_LE(images.stats().cache_bytes, 8u * 1024);
  EXPECT_EQ(images.stats().uncached, 0u);
}

TEST(AotImagesTest, WorksUncachedWhenTheArenaIsFullAndCountsIt) {  // Proves: A8
  CodeMap code;
  AotImages images(code, {.cached_methods_max = 10});
  ASSERT_TRUE(images.RegisterImage(ImageAt(kBase, 100 * 32, Source("m", MethodsWithGaps(100)))).ok());
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t method = 0; method < 100; ++method) {
      AotHit hit;
      ASSERT_EQ(images.Decode(kBase + method * 32 + 7, &hit), AotResult::kFound);
      EXPECT_EQ(hit.method, method);
      EXPECT_EQ(hit.size, 16u);
      EXPECT_EQ(images.Decode(kBase + method * 32 + 16, &hit), AotResult::kNoMethod);
    }
  }
  EXPECT_EQ(images.stats().uncached, 3u * 90);
  EXPECT_EQ(images.stats().cached_methods, 10u);
  EXPECT_EQ(NameAt(code, images, kBase + 99 * 32, code.epoch()), "m99");
}

TEST(AotImagesTest, TakesWhatWasSeenOnceInOrderOfFirstSight) {  // Proves: A6
  CodeMap code;
  AotImages images(code);
  const Result<CodeId> b =
      images.RegisterImage(ImageAt(kBase + 0x1000, 640, Source("b", MethodsWithGaps(20))));
  const Result<CodeId> a = images.RegisterImage(ImageAt(kBase, 640, Source("a", MethodsWithGaps(20))));
  ASSERT_TRUE(a.ok() && b.ok());
  AotHit hit;
  for (const std::uintptr_t pc : {kBase + 65, kBase + 0x1000 + 64, kBase + 64, kBase + 0, kBase + 0x1000 + 32,
                                  kBase + 17 /* between methods */, kBase + 1}) {
    images.Decode(pc, &hit);
  }
  std::vector<AotHit> seen;
  images.TakeSeen(&seen);
  std::vector<std::string> names;
  for (const AotHit& method : seen) {
    AotName name;
    ASSERT_TRUE(images.Describe(method.image, method.method, &name));
    names.push_back(name.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a2", "b2", "a0", "b1"}));
  EXPECT_EQ(seen[1].image, b.value());
  EXPECT_EQ(seen[1].start, kBase + 0x1000 + 64);
  EXPECT_EQ(seen[1].size, 16u);
  EXPECT_EQ(seen[1].kind, CodeKind::kAot);
  seen.clear();
  images.TakeSeen(&seen);
  EXPECT_TRUE(seen.empty());
  // What was seen of an image that was closed meanwhile comes too.
  images.Decode(kBase + 96, &hit);
  ASSERT_TRUE(images.UnregisterImage(a.value()).ok());
  images.TakeSeen(&seen);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].image, a.value());
  EXPECT_EQ(seen[0].method, 3u);
}

TEST(AotImagesTest, OldSamplesMeanTheImageThatWasThere) {  // Proves: B7
  CodeMap code;
  AotImages images(code);
  const std::uintptr_t pc = kBase + 33;
  const auto put = [&](const std::string& name) {
    return images.RegisterImage(ImageAt(kBase, 640, Source(name, MethodsWithGaps(20))));
  };
  // One after the other at one address: an image, another image, the first one again, JIT code, an image.
  std::vector<CodeEpoch> epochs;
  for (const char* name : {"a", "b", "a"}) {
    const Result<CodeId> id = put(name);
    ASSERT_TRUE(id.ok());
    epochs.push_back(code.epoch());
    ASSERT_TRUE(images.UnregisterImage(id.value()).ok());
    epochs.push_back(code.epoch());  // nothing is there
  }
  const Result<CodeId> jit =
      code.Register({.start = kBase + 32, .size = 64, .kind = CodeKind::kJit, .name = "j"});
  ASSERT_TRUE(jit.ok());
  epochs.push_back(code.epoch());
  ASSERT_TRUE(code.Unregister(jit.value()).ok());
  ASSERT_TRUE(put("c").ok());
  epochs.push_back(code.epoch());

  const char* const names[] = {"a1", "", "b1", "", "a1", "", "", "c1"};
  for (std::size_t i = 0; i < epochs.size(); ++i)
    EXPECT_EQ(NameAt(code, images, pc, epochs[i]), names[i]) << i;
  // The three that are closed are different images.
  CodeHit first;
  CodeHit third;
  ASSERT_TRUE(code.LookupAt(pc, epochs[0], &first) && code.LookupAt(pc, epochs[4], &third));
  EXPECT_NE(first.id, third.id);
  EXPECT_EQ(images.image_count(), 4u);
}

TEST(AotImagesTest, ForgetsAClosedImageAfterTheGracePeriodAndTheLastEpochThatNeedsIt) {
  for (const bool grace_first : {false, true}) {
    CodeMap code;
    AotImages images(code);
    std::atomic<int> freed{0};
    const Result<CodeId> id =
        images.RegisterImage(ImageAt(kBase, 640, Source("m", MethodsWithGaps(20), &freed)));
    ASSERT_TRUE(id.ok());
    const CodeEpoch alive = code.epoch();
    for (int i = 0; i < 3; ++i) images.Reclaim(true, alive);
    EXPECT_EQ(images.image_count(), 1u);  // not closed
    ASSERT_TRUE(images.UnregisterImage(id.value()).ok());
    const CodeEpoch gone = code.epoch();
    ASSERT_GT(gone, alive);
    if (grace_first) {
      for (int i = 0; i < 3; ++i) images.Reclaim(true, alive);
    } else {
      for (int i = 0; i < 3; ++i) images.Reclaim(false, gone);
    }
    EXPECT_EQ(freed.load(), 0);
    EXPECT_EQ(NameAt(code, images, kBase, alive), "m0");
    images.Reclaim(true, gone);
    EXPECT_EQ(freed.load(), 1);
    EXPECT_EQ(images.image_count(), 0u);
    EXPECT_EQ(NameAt(code, images, kBase, alive), "");
    EXPECT_EQ(NameAt(code, images, kBase, gone), "");
  }
}

TEST(AotImagesTest, AHandlerOfBeforeKeepsTheSnapshotThatItHas) {
  // Reclaim(true) speaks of handlers that began before the previous Reclaim returned, so the first one after
  // an image was closed frees nothing yet: a handler may have begun between the two.
  CodeMap code;
  AotImages images(code);
  std::atomic<int> freed{0};
  const Result<CodeId> id =
      images.RegisterImage(ImageAt(kBase, 640, Source("m", MethodsWithGaps(20), &freed)));
  ASSERT_TRUE(id.ok());
  images.Reclaim(true, code.epoch());
  ASSERT_TRUE(images.UnregisterImage(id.value()).ok());
  images.Reclaim(true, code.epoch());
  EXPECT_EQ(freed.load(), 0);
  images.Reclaim(true, code.epoch());
  EXPECT_EQ(freed.load(), 1);
}

TEST(AotImagesTest, AnImageThatTheMapRetiredBehindItsBackGivesWay) {
  CodeMap code;
  AotImages images(code);
  std::atomic<int> freed{0};
  const Result<CodeId> old =
      images.RegisterImage(ImageAt(kBase, 640, Source("old", MethodsWithGaps(20), &freed)));
  ASSERT_TRUE(old.ok());
  const CodeEpoch then = code.epoch();
  ASSERT_EQ(code.UnregisterRange(kBase, 1), 1u);
  const Result<CodeId> fresh =
      images.RegisterImage(ImageAt(kBase + 32, 640, Source("new", MethodsWithGaps(20))));
  ASSERT_TRUE(fresh.ok());
  AotHit hit;
  EXPECT_EQ(images.Decode(kBase, &hit), AotResult::kNoImage);
  ASSERT_EQ(images.Decode(kBase + 32, &hit), AotResult::kFound);
  EXPECT_EQ(hit.image, fresh.value());
  EXPECT_EQ(NameAt(code, images, kBase + 32, then), "old1");
  EXPECT_EQ(images.UnregisterImage(old.value()).code(), StatusCode::kNotFound);
  for (int i = 0; i < 2; ++i) images.Reclaim(true, code.epoch());
  EXPECT_EQ(freed.load(), 1);

  ASSERT_EQ(code.UnregisterRange(kBase + 32, 1), 1u);
  EXPECT_TRUE(images.UnregisterImage(fresh.value()).ok());
  EXPECT_EQ(images.Decode(kBase + 32, &hit), AotResult::kNoImage);
}

TEST(AotImagesTest, WithoutMemoryNothingChanges) {  // Proves: B5
  int failures = 0;
  bool succeeded = false;
  for (int allowed = 0; !succeeded; ++allowed) {
    ASSERT_LT(allowed, 1000);
    CodeMap code;
    AotImages images(code);
    const Result<CodeId> first = images.RegisterImage(ImageAt(kBase, 640, Source("a", MethodsWithGaps(20))));
    ASSERT_TRUE(first.ok());
    const CodeEpoch before = code.epoch();
    auto source = Source("b", MethodsWithGaps(20));
    // First all of one kind of allocation, then all of the other.
    const bool pages = allowed >= 100;
    if (pages) {
      internal::FailAllocationsForTest(allowed - 100);
    } else {
      news_allowed.store(allowed);
    }
    const Result<CodeId> second = images.RegisterImage(ImageAt(kBase + 0x10'0000, 640, std::move(source)));
    internal::FailAllocationsForTest(-1);
    news_allowed.store(-1);
    AotHit hit;
    EXPECT_EQ(images.Decode(kBase, &hit), AotResult::kFound);
    EXPECT_EQ(images.Decode(kBase + 0x10'0000, &hit), second.ok() ? AotResult::kFound : AotResult::kNoImage);
    if (second.ok()) {
      if (pages)
        succeeded = true;
      else if (allowed < 100)
        allowed = 99;
      continue;
    }
    ++failures;
    EXPECT_EQ(second.status().code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(code.epoch(), before);
    EXPECT_EQ(code.live_count(), 1u);
    EXPECT_EQ(images.image_count(), 1u);
  }
  EXPECT_GE(failures, 6);  // image, snapshot and its entries, list and its entries; the cache
}

TEST(AotImagesTest, UnregisteringNeedsNoMemory) {
  CodeMap code;
  AotImages images(code);
  const Result<CodeId> id = images.RegisterImage(ImageAt(kBase, 640, Source("a", MethodsWithGaps(20))));
  const Result<CodeId> other =
      images.RegisterImage(ImageAt(kBase + 0x1000, 640, Source("b", MethodsWithGaps(20))));
  ASSERT_TRUE(id.ok() && other.ok());
  const CodeEpoch then = code.epoch();
  news_allowed.store(0);
  EXPECT_TRUE(images.UnregisterImage(id.value()).ok());
  images.Reclaim(true, then);
  AotHit hit;
  EXPECT_EQ(images.Decode(kBase, &hit), AotResult::kNoImage);
  EXPECT_EQ(images.Decode(kBase + 0x1000, &hit), AotResult::kFound);
  news_allowed.store(-1);
  EXPECT_EQ(NameAt(code, images, kBase, then), "a0");
  for (int i = 0; i < 3; ++i) images.Reclaim(true, code.epoch());
  EXPECT_EQ(images.image_count(), 1u);
  EXPECT_EQ(images.Decode(kBase + 0x1000, &hit), AotResult::kFound);
}

// Threads in "handlers", and the grace periods that the sampler gives the collector.
class Handlers {
 public:
  static constexpr std::size_t kCount = 2;

  void Enter(std::size_t index) { runs_[index].fetch_add(1); }
  void Leave(std::size_t index) { runs_[index].fetch_add(1); }

  void StartGrace() {
    for (std::size_t i = 0; i < kCount; ++i) noted_[i] = runs_[i].load();
  }
  bool GraceOver() const {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (noted_[i] % 2 == 1 && runs_[i].load() == noted_[i]) return false;
    }
    return true;
  }

 private:
  std::atomic<std::uint64_t> runs_[kCount] = {};
  std::uint64_t noted_[kCount] = {};
};

TEST(AotImagesTest, HandlersDecodeWhileImagesComeAndGo) {
  constexpr int kChanges = 600;
  constexpr std::uintptr_t kMoving = kBase + 0x10000;
  CodeMap code;
  AotImages images(code, {.cached_methods_max = 64});
  ASSERT_TRUE(images.RegisterImage(ImageAt(kBase, 640, Source("stays", MethodsWithGaps(20)))).ok());
  Handlers handlers;
  std::atomic<bool> stop{false};
  std::atomic<int> freed{0};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> found{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < Handlers::kCount; ++t) {
    threads.emplace_back([&, t] {
      for (std::uintptr_t i = t; !stop.load(); ++i) {
        handlers.Enter(t);
        AotHit hit;
        if (images.Decode(kBase + i % 20 * 32, &hit) != AotResult::kFound || hit.method != i % 20)
          wrong.fetch_add(1);
        // Images there have methods of 16, 17, 18... bytes.
        if (images.Decode(kMoving + i % 20 * 32 + 3, &hit) == AotResult::kFound) {
          found.fetch_add(1);
          if (hit.method != i % 20 || hit.size != 16 + hit.image % 16) wrong.fetch_add(1);
        }
        handlers.Leave(t);
        if (i % 16 == 0) std::this_thread::yield();  // not in a handler: the grace period may end
      }
    });
  }
  std::thread runtime([&] {
    for (int i = 0; i < kChanges; ++i) {
      // The size tells which image answers: the ids are given in order.
      const CodeId expected = static_cast<CodeId>(i + 2);
      std::vector<TestMethod> methods = MethodsWithGaps(20);
      for (TestMethod& method : methods) method.size = 16 + expected % 16;
      const Result<CodeId> id = images.RegisterImage(ImageAt(kMoving, 640, Source("m", methods, &freed)));
      if (!id.ok() || id.value() != expected) wrong.fetch_add(1);
      while (images.image_count() > 40) std::this_thread::yield();  // as fast as the collector can
      if (!images.UnregisterImage(id.value()).ok()) wrong.fetch_add(1);
    }
    stop.store(true);
  });
  // The collector.
  std::size_t most = 0;
  std::vector<AotHit> seen;
  while (!stop.load()) {
    seen.clear();
    images.TakeSeen(&seen);
    for (const AotHit& hit : seen) {
      AotName name;
      if (!images.Describe(hit.image, hit.method, &name) || name.name.empty()) wrong.fetch_add(1);
    }
    images.Reclaim(handlers.GraceOver(), code.epoch());
    handlers.StartGrace();
    most = std::max(most, images.image_count());
  }
  runtime.join();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) images.Reclaim(true, code.epoch());
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(found.load(), 0u);
  EXPECT_EQ(images.image_count(), 1u);
  EXPECT_EQ(freed.load(), kChanges);
}

// A child of fork can use all functions, wherever the parent's other threads were.
TEST(AotImagesTest, AChildOfForkGoesOn) {
  CodeMap code;
  AotImages images(code);
  ASSERT_TRUE(images.RegisterImage(ImageAt(kBase, 640, Source("stays", MethodsWithGaps(20)))).ok());
  Handlers handlers;
  std::atomic<bool> stop{false};
  std::thread runtime([&] {
    while (!stop.load()) {
      if (images.image_count() > 20) {
        std::this_thread::yield();
        continue;
      }
      const Result<CodeId> id =
          images.RegisterImage(ImageAt(kBase + 0x10000, 640, Source("moves", MethodsWithGaps(20))));
      if (id.ok()) (void)images.UnregisterImage(id.value());
    }
  });
  std::thread handler([&] {
    AotHit hit;
    while (!stop.load()) {
      handlers.Enter(0);
      images.Decode(kBase + 0x10000, &hit);
      handlers.Leave(0);
    }
  });
  int failures = 0;
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      AotHit hit;
      bool good = images.Decode(kBase + 37, &hit) == AotResult::kFound && hit.method == 1;
      images.Decode(kBase + 0x10000, &hit);
      const Result<CodeId> id =
          images.RegisterImage(ImageAt(kBase + 0x20000, 640, Source("child", MethodsWithGaps(20))));
      good = good && id.ok() && images.Decode(kBase + 0x20000, &hit) == AotResult::kFound;
      std::vector<AotHit> seen;
      images.TakeSeen(&seen);
      good = good && !seen.empty() && NameAt(code, images, kBase + 37, code.epoch()) == "stays1";
      good = good && images.UnregisterImage(id.value()).ok();
      for (int round = 0; round < 3; ++round) images.Reclaim(true, code.epoch());
      good = good && images.Decode(kBase, &hit) == AotResult::kFound;
      _exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
    images.Reclaim(handlers.GraceOver(), code.epoch());
    handlers.StartGrace();
  }
  stop.store(true);
  runtime.join();
  handler.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace stackpipe
