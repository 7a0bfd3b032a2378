// SPDX-License-Identifier: MIT
//
// Random changes of a CodeMap and of the obvious map, compared after each.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "code_map/page_memory.h"
#include "code_map/reference_map.h"
#include "stackpipe/code_map.h"

namespace stackpipe {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSteps = 1000;
#else
constexpr int kSteps = 4000;
#endif

// How addresses and sizes are chosen: each shape reaches other paths of the cells.
struct Shape {
  const char* name;
  std::uintptr_t base;
  std::uintptr_t span;
  std::size_t size_max;
  std::uintptr_t align;
  unsigned live_max;
};

constexpr Shape kShapes[] = {
    {"small code in one cell", 0x10000, 0x10000, 200, 1, 300},
    {"across cells", 0x7fff'fff8'0000, 0x40000, 0x3000, 16, 80},
    {"large ranges", 0xffff'0000, 0x60'0000, 0x20'0000, 256, 12},
    {"bytes in one cell", 0x20000, 0x4000, 3, 1, 3000},
    {"stubs in two cells", 0xfffff, 0x10000, 40, 16, 1500},
    {"from one region into the next", 0x7fff'ffff'0000, 0x20000, 0x800, 8, 100},
};

class Driver {
 public:
  Driver(const Shape& shape, unsigned seed, bool fail_memory)
      : shape_(shape), random_(seed), fail_memory_(fail_memory) {}

  void Step() {
    const unsigned dice = Below(100);
    const bool many = model_.live().size() >= shape_.live_max;
    if (fail_memory_ && Below(3) == 0) internal::FailAllocationsForTest(Below(12));
    if (dice < 50 && !many) {
      Register();
    } else if (dice < 75) {
      Unregister();
    } else if (dice < 82) {
      Move();
    } else if (dice < 88) {
      RegisterOver();
    } else if (dice < 92) {
      RegisterBatch();
    } else if (dice < 94) {
      UnregisterOwner();
    } else if (dice < 96) {
      UnregisterRange();
    } else {
      Trim();
    }
    internal::FailAllocationsForTest(-1);
    ASSERT_EQ(map_.epoch(), model_.epoch());
    ASSERT_EQ(map_.live_count(), model_.live().size());
  }

  void Check(int pcs) {
    for (int i = 0; i < pcs; ++i) {
      const std::uintptr_t pc = SomePc();
      CodeHit hit;
      const auto want = model_.Lookup(pc);
      ASSERT_EQ(map_.Find(pc, &hit), want ? LookupResult::kFound : LookupResult::kNone) << std::hex << pc;
      if (want) {
        ASSERT_NO_FATAL_FAILURE(Same(hit, *want));
      }
      const CodeEpoch epoch = oldest_ + Below(static_cast<unsigned>(model_.epoch() - oldest_ + 1));
      const auto old = model_.LookupAt(pc, epoch);
      ASSERT_EQ(map_.LookupAt(pc, epoch, &hit), old.has_value()) << std::hex << pc;
      if (!old) continue;
      ASSERT_NO_FATAL_FAILURE(Same(hit, *old));
      CodeDescriptor code;
      ASSERT_TRUE(map_.Describe(hit.id, &code));
      ASSERT_EQ(code.start, old->start);
      ASSERT_EQ(code.size, old->size);
      ASSERT_EQ(code.birth, old->birth);
      ASSERT_EQ(code.death, old->death);
      ASSERT_EQ(code.owner, old->owner);
      ASSERT_EQ(code.name, NameOf(old->size));
    }
  }

  // Each byte, and what lies around.
  void CheckAll() {
    for (std::uintptr_t pc = shape_.base - 100; pc < shape_.base + shape_.span + 100; ++pc) {
      CodeHit hit;
      const auto want = model_.Lookup(pc);
      ASSERT_EQ(map_.Find(pc, &hit), want ? LookupResult::kFound : LookupResult::kNone) << std::hex << pc;
      if (want) {
        ASSERT_EQ(hit.id, want->id);
      }
    }
  }

  int refused() const { return refused_; }

 private:
  unsigned Below(unsigned limit) { return std::uniform_int_distribution<unsigned>(0, limit - 1)(random_); }

  static std::string NameOf(std::size_t size) { return "code of " + std::to_string(size) + " bytes"; }

  CodeRegistration Some() {
    CodeRegistration code;
    code.size = 1 + Below(static_cast<unsigned>(Below(4) == 0 ? shape_.size_max : shape_.size_max / 8 + 1));
    code.start = shape_.base + Below(static_cast<unsigned>(shape_.span)) / shape_.align * shape_.align;
    if (Below(3) == 0 && !model_.live().empty()) {  // right behind something
      const auto range = Pick();
      code.start = range.start + range.size;
    }
    code.kind = CodeKind::kJit;
    code.owner = Below(6);
    name_ = NameOf(code.size);
    code.name = name_;
    return code;
  }
  ReferenceMap::Range Pick() {
    auto it = model_.live().lower_bound(shape_.base + Below(static_cast<unsigned>(shape_.span)));
    if (it == model_.live().end()) it = model_.live().begin();
    return it->second;
  }
  std::uintptr_t SomePc() {
    if (Below(2) == 0 || model_.live().empty())
      return shape_.base - 64 + Below(static_cast<unsigned>(shape_.span) + 128);
    const auto range = Pick();
    switch (Below(4)) {
      case 0:
        return range.start;
      case 1:
        return range.start + range.size - 1;
      case 2:
        return range.start + range.size;
      default:
        return range.start - 1;
    }
  }
  static void Same(const CodeHit& hit, const ReferenceMap::Range& want) {
    ASSERT_EQ(hit.id, want.id);
    ASSERT_EQ(hit.start, want.start);
    ASSERT_EQ(hit.size, want.size);
    ASSERT_EQ(hit.kind, CodeKind::kJit);
  }
  // Without memory a change may fail, and then nothing has changed; all else may not fail.
  bool MayFail(const Status& status) {
    if (status.ok()) return false;
    EXPECT_TRUE(fail_memory_);
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
    ++refused_;
    return true;
  }

  void Register() {
    const CodeRegistration code = Some();
    const Result<CodeId> id = map_.Register(code);
    if (model_.Overlaps(code.start, code.size)) {
      ASSERT_EQ(id.status().code(), StatusCode::kOverlap);
    } else if (!MayFail(id.status())) {
      model_.Register(code.start, code.size, id.value(), code.owner);
    }
  }
  void RegisterOver() {
    const CodeRegistration code = Some();
    const Result<CodeId> id = map_.RegisterOver(code);
    if (!MayFail(id.status())) model_.Replace(code.start, code.size, id.value(), code.owner);
  }
  void RegisterBatch() {
    std::vector<CodeRegistration> codes;
    std::vector<std::string> names;
    bool overlap = false;
    for (unsigned i = 1 + Below(20); i > 0; --i) {
      CodeRegistration code = Some();
      bool clash = model_.Overlaps(code.start, code.size);
      for (const CodeRegistration& other : codes) {
        clash |= code.start < other.start + other.size && other.start < code.start + code.size;
      }
      if (clash && Below(10) != 0) continue;  // most batches are good
      overlap |= clash;
      codes.push_back(code);
      names.push_back(name_);
    }
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i].name = names[i];
    if (codes.empty()) return;
    std::vector<CodeId> ids(codes.size());
    const Status status = map_.RegisterBatch(codes.data(), codes.size(), ids.data());
    if (overlap) {
      if (status.code() != StatusCode::kOutOfMemory) {
        ASSERT_EQ(status.code(), StatusCode::kOverlap);
      }
      return;
    }
    if (MayFail(status)) return;
    const CodeEpoch epoch = model_.epoch();
    for (std::size_t i = 0; i < codes.size(); ++i) {
      model_.Register(codes[i].start, codes[i].size, ids[i], codes[i].owner);
      model_.SetEpoch(epoch);
    }
    model_.SetEpoch(epoch + 1);
  }
  void Unregister() {
    if (model_.live().empty()) return;
    std::vector<std::uintptr_t> starts;
    std::vector<CodeId> ids;
    for (unsigned i = Below(4) == 0 ? Below(20) + 1 : 1; i > 0; --i) {
      const auto range = Pick();
      if (std::find(starts.begin(), starts.end(), range.start) != starts.end()) continue;
      starts.push_back(range.start);
      ids.push_back(range.id);
    }
    ASSERT_TRUE(map_.UnregisterBatch(ids.data(), ids.size()).ok());  // never needs memory
    model_.Unregister(starts);
  }
  void Move() {
    if (model_.live().empty()) return;
    const auto range = Pick();
    std::uintptr_t to = Some().start;
    if (Below(3) == 0) to = range.start + Below(64);
    const Result<CodeId> id = map_.Move(range.id, to);
    if (model_.Overlaps(to, range.size, range.id)) {
      ASSERT_EQ(id.status().code(), StatusCode::kOverlap);
    } else if (!MayFail(id.status())) {
      model_.Move(range.start, to, id.value());
    }
  }
  void UnregisterOwner() {
    const std::uint64_t owner = 1 + Below(5);
    const std::size_t count = map_.UnregisterOwner(owner);
    ASSERT_EQ(count, model_.UnregisterOwner(owner));
  }
  void UnregisterRange() {
    const CodeRegistration code = Some();
    const std::size_t before = model_.live().size();
    const std::size_t count = map_.UnregisterRange(code.start, code.size);
    if (model_.Overlaps(code.start, code.size)) model_.Replace(code.start, code.size, 0, 0);
    ASSERT_EQ(count, before - model_.live().size());
  }
  void Trim() {
    oldest_ += Below(static_cast<unsigned>(model_.epoch() - oldest_ + 1));
    map_.TrimHistory(oldest_);
    model_.TrimHistory(oldest_);
  }

  const Shape& shape_;
  std::mt19937 random_;
  const bool fail_memory_;
  CodeMap map_;
  ReferenceMap model_;
  CodeEpoch oldest_ = 1;
  std::string name_;
  int refused_ = 0;
};

class CodeMapModelTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const Shape& shape() const { return kShapes[std::get<0>(GetParam())]; }
  unsigned seed() const { return static_cast<unsigned>(std::get<1>(GetParam())); }
};

// Proves: B1, B3; tests 6, 9 and 24 of the list
TEST_P(CodeMapModelTest, AgreesWithTheObviousMap) {
  SCOPED_TRACE(shape().name);
  Driver driver(shape(), seed(), false);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_NO_FATAL_FAILURE(driver.Step());
    ASSERT_NO_FATAL_FAILURE(driver.Check(8));
  }
  if (shape().span <= 0x10000) {
    ASSERT_NO_FATAL_FAILURE(driver.CheckAll());
  }
}

// Proves: B5; test 22 of the list
TEST_P(CodeMapModelTest, WithoutMemoryNothingChanges) {
  SCOPED_TRACE(shape().name);
  Driver driver(shape(), seed() + 1000, true);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_NO_FATAL_FAILURE(driver.Step());
    ASSERT_NO_FATAL_FAILURE(driver.Check(4));
  }
  EXPECT_GT(driver.refused(), kSteps / 40);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CodeMapModelTest,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kShapes))),
                                          testing::Values(1, 2, 3)));

}  // namespace
}  // namespace stackpipe
