// SPDX-License-Identifier: MIT
#include "stackpipe/code_map.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "code_map/page_memory.h"

namespace stackpipe {
namespace {

constexpr std::uintptr_t kBase = 0x7f0000000000;
constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

CodeRegistration Code(std::uintptr_t start, std::size_t size, std::string_view name = "f") {
  CodeRegistration code;
  code.start = start;
  code.size = size;
  code.kind = CodeKind::kJit;
  code.name = name;
  return code;
}

CodeId Add(CodeMap& map, std::uintptr_t start, std::size_t size, std::string_view name = "f") {
  const Result<CodeId> id = map.Register(Code(start, size, name));
  EXPECT_TRUE(id.ok()) << id.status().context();
  return id.value();
}

// 0: none.
CodeId IdAt(const CodeMap& map, std::uintptr_t pc) {
  CodeHit hit;
  return map.Lookup(pc, &hit) ? hit.id : 0;
}

CodeId IdAt(const CodeMap& map, std::uintptr_t pc, CodeEpoch epoch) {
  CodeHit hit;
  return map.LookupAt(pc, epoch, &hit) ? hit.id : 0;
}

TEST(CodeMapTest, EmptyMapFindsNothing) {
  CodeMap map;
  CodeHit hit;
  EXPECT_EQ(map.Find(kBase, &hit), LookupResult::kNone);
  EXPECT_FALSE(map.LookupAt(kBase, map.epoch(), &hit));
  EXPECT_EQ(map.live_count(), 0u);
}

// Proves: B1
TEST(CodeMapTest, AHitSaysAllOfTheRange) {
  CodeMap map;
  const CodeId id = Add(map, kBase + 0x123, 77);
  CodeHit hit;
  ASSERT_EQ(map.Find(kBase + 0x123 + 76, &hit), LookupResult::kFound);
  EXPECT_EQ(hit.id, id);
  EXPECT_EQ(hit.kind, CodeKind::kJit);
  EXPECT_EQ(hit.start, kBase + 0x123);
  EXPECT_EQ(hit.size, 77u);
}

TEST(CodeMapTest, BordersAreExact) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 16);
  const CodeId b = Add(map, kBase + 16, 16);
  const CodeId c = Add(map, kBase + 48, 1);
  EXPECT_EQ(IdAt(map, kBase - 1), 0u);
  EXPECT_EQ(IdAt(map, kBase), a);
  EXPECT_EQ(IdAt(map, kBase + 15), a);
  EXPECT_EQ(IdAt(map, kBase + 16), b);
  EXPECT_EQ(IdAt(map, kBase + 31), b);
  EXPECT_EQ(IdAt(map, kBase + 32), 0u);
  EXPECT_EQ(IdAt(map, kBase + 47), 0u);
  EXPECT_EQ(IdAt(map, kBase + 48), c);
  EXPECT_EQ(IdAt(map, kBase + 49), 0u);
}

TEST(CodeMapTest, TheLastByteOfACellIsLikeAnyOther) {
  for (const std::uintptr_t count : {1u, 5u, 6u, 7u, 12u, 150u}) {
    CodeMap map;
    for (std::uintptr_t i = 0; i < count; ++i) Add(map, kBase + 16 * i, 16);
    EXPECT_EQ(IdAt(map, kBase + 0xffff), 0u);
    const CodeId id = Add(map, kBase + 0xfff0, 16);
    EXPECT_EQ(IdAt(map, kBase + 0xffff), id);
    const CodeId next = Add(map, kBase + 0x10000, 16);
    ASSERT_TRUE(map.Unregister(id).ok());
    EXPECT_EQ(IdAt(map, kBase + 0xffff), 0u);
    const CodeId byte = Add(map, kBase + 0xffff, 1);
    EXPECT_EQ(IdAt(map, kBase + 0xfffe), 0u);
    EXPECT_EQ(IdAt(map, kBase + 0xffff), byte);
    EXPECT_EQ(IdAt(map, kBase + 0x10000), next);
  }
}

TEST(CodeMapTest, ZeroSizeAndWrapAreRefused) {
  CodeMap map;
  EXPECT_EQ(map.Register(Code(kBase, 0)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Register(Code(~std::uintptr_t{0} - 10, 11)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Register(Code(~std::uintptr_t{0}, 100)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Register(Code(kBase, CodeMap::kRangeBytesMax + 1)).status().code(), StatusCode::kLimit);
  EXPECT_EQ(map.live_count(), 0u);
  EXPECT_EQ(IdAt(map, kBase), 0u);
}

TEST(CodeMapTest, AnyAddressMayBeAskedFor) {
  CodeMap map;
  const CodeId low = Add(map, 0, 1);
  const CodeId high = Add(map, ~std::uintptr_t{0} - 10, 10);
  const CodeId kernel = Add(map, 0xffffffff81000000, 4096);
  const CodeId hole = Add(map, 0x0000800000000000 - 5, 10);  // crosses into addresses that are not canonical
  EXPECT_EQ(IdAt(map, 0), low);
  EXPECT_EQ(IdAt(map, 1), 0u);
  EXPECT_EQ(IdAt(map, ~std::uintptr_t{0}), 0u);
  EXPECT_EQ(IdAt(map, ~std::uintptr_t{0} - 1), high);
  EXPECT_EQ(IdAt(map, 0xffffffff81000fff), kernel);
  EXPECT_EQ(IdAt(map, 0x0000800000000000 - 6), 0u);
  EXPECT_EQ(IdAt(map, 0x0000800000000000 - 5), hole);
  EXPECT_EQ(IdAt(map, 0x0000800000000000 + 4), hole);
  EXPECT_EQ(IdAt(map, 0x0000800000000000 + 5), 0u);
  EXPECT_EQ(IdAt(map, 0x1234567812345678), 0u);
}

TEST(CodeMapTest, TooManyRegionsIsALimitAndChangesNothing) {
  CodeMap map;
  std::vector<CodeId> ids;
  for (std::uintptr_t region = 1;; ++region) {
    const Result<CodeId> id = map.Register(Code(region << 47, 100));
    if (!id.ok()) {
      EXPECT_EQ(id.status().code(), StatusCode::kLimit);
      EXPECT_EQ(IdAt(map, region << 47), 0u);
      break;
    }
    ids.push_back(id.value());
  }
  EXPECT_EQ(ids.size(), 15u);
  for (std::uintptr_t i = 0; i < ids.size(); ++i) EXPECT_EQ(IdAt(map, ((i + 1) << 47) + 99), ids[i]);
}

TEST(CodeMapTest, OverlapsAreRefusedAndChangeNothing) {
  CodeMap map;
  const CodeId id = Add(map, kBase + 100, 100);
  const CodeEpoch epoch = map.epoch();
  for (const auto& [start, size] : std::vector<std::pair<std::uintptr_t, std::size_t>>{
           {100, 100}, {100, 1}, {199, 1}, {0, 101}, {199, 500}, {0, 1000}, {150, 10}, {0, 10 * kMiB}}) {
    EXPECT_EQ(map.Register(Code(kBase + start, size)).status().code(), StatusCode::kOverlap) << start;
  }
  EXPECT_EQ(map.live_count(), 1u);
  EXPECT_EQ(map.epoch(), epoch);
  EXPECT_EQ(IdAt(map, kBase + 99), 0u);
  EXPECT_EQ(IdAt(map, kBase + 199), id);
  EXPECT_EQ(IdAt(map, kBase + 200), 0u);
}

TEST(CodeMapTest, UnregisteringTwiceOrTheUnknownIsAnErrorAndChangesNothing) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 10);
  const CodeId b = Add(map, kBase + 10, 10);
  ASSERT_TRUE(map.Unregister(a).ok());
  const CodeEpoch epoch = map.epoch();
  EXPECT_EQ(map.Unregister(a).code(), StatusCode::kNotFound);
  EXPECT_EQ(map.Unregister(0).code(), StatusCode::kNotFound);
  EXPECT_EQ(map.Unregister(12345).code(), StatusCode::kNotFound);
  EXPECT_EQ(map.epoch(), epoch);
  EXPECT_EQ(map.live_count(), 1u);
  EXPECT_EQ(IdAt(map, kBase + 10), b);
}

// Proves: B6
TEST(CodeMapTest, AFailedRegistrationNeverUnregistersAnything) {
  CodeMap map;
  const CodeId id = Add(map, kBase, 100);
  const Result<CodeId> failed = map.Register(Code(kBase + 50, 100));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(map.Unregister(failed.value()).code(), StatusCode::kNotFound);
  EXPECT_EQ(IdAt(map, kBase + 50), id);
}

// Proves: B7
TEST(CodeMapTest, AnOldSampleOfAReusedAddressResolvesToTheOldCode) {
  CodeMap map;
  const CodeEpoch before = map.epoch();
  const CodeId a = Add(map, kBase, 100, "old");
  const CodeEpoch during_a = map.epoch();
  ASSERT_TRUE(map.Unregister(a).ok());
  const CodeEpoch between = map.epoch();
  const CodeId b = Add(map, kBase + 50, 100, "new");
  const CodeEpoch during_b = map.epoch();
  EXPECT_EQ(IdAt(map, kBase + 60, before), 0u);
  EXPECT_EQ(IdAt(map, kBase + 60, during_a), a);
  EXPECT_EQ(IdAt(map, kBase + 60, between), 0u);
  EXPECT_EQ(IdAt(map, kBase + 60, during_b), b);
  EXPECT_EQ(IdAt(map, kBase + 10, during_b), 0u);
  CodeDescriptor code;
  ASSERT_TRUE(map.Describe(a, &code));
  EXPECT_EQ(code.name, "old");
  EXPECT_EQ(code.birth, during_a);
  EXPECT_EQ(code.death, between);
}

TEST(CodeMapTest, OneReuseMayOverlapSeveralOldRanges) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 100);
  const CodeId b = Add(map, kBase + 100, 100);
  const CodeId c = Add(map, kBase + 200, 100);
  const CodeEpoch old_epoch = map.epoch();
  for (const CodeId id : {a, b, c}) ASSERT_TRUE(map.Unregister(id).ok());
  const CodeId d = Add(map, kBase + 50, 200);
  for (std::uintptr_t i = 0; i < 300; ++i) {
    EXPECT_EQ(IdAt(map, kBase + i, old_epoch), i < 100 ? a : i < 200 ? b : c);
    EXPECT_EQ(IdAt(map, kBase + i), i >= 50 && i < 250 ? d : 0u);
  }
}

TEST(CodeMapTest, TrimmedCodeIsUnknown) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 100);
  const CodeEpoch during = map.epoch();
  const CodeId b = Add(map, kBase + 100, 100);
  ASSERT_TRUE(map.Unregister(a).ok());
  map.TrimHistory(during);  // gone after it: still needed
  EXPECT_EQ(IdAt(map, kBase, during), a);
  map.TrimHistory(map.epoch());
  EXPECT_EQ(IdAt(map, kBase, during), 0u);
  CodeDescriptor code;
  EXPECT_FALSE(map.Describe(a, &code));
  EXPECT_TRUE(map.Describe(b, &code));
}

TEST(CodeMapTest, DescriptionsAreCopiedAndComplete) {
  CodeMap map;
  std::string text = "texts that change after the call";
  CodeRegistration code = Code(kBase, 64, text);
  code.module_id = 1;
  code.owner = 2;
  code.name_space = "System.Collections.Generic.List`1";
  code.signature = "void (int)";
  code.source_file = "list.cs";
  code.source_line = 17;
  code.kind = CodeKind::kAot;
  const Result<CodeId> id = map.Register(code);
  ASSERT_TRUE(id.ok());
  text.assign(text.size(), 'x');
  CodeDescriptor out;
  ASSERT_TRUE(map.Describe(id.value(), &out));
  EXPECT_EQ(out.start, kBase);
  EXPECT_EQ(out.size, 64u);
  EXPECT_EQ(out.kind, CodeKind::kAot);
  EXPECT_EQ(out.module_id, 1u);
  EXPECT_EQ(out.owner, 2u);
  EXPECT_EQ(out.name_space, "System.Collections.Generic.List`1");
  EXPECT_EQ(out.name, "texts that change after the call");
  EXPECT_EQ(out.signature, "void (int)");
  EXPECT_EQ(out.source_file, "list.cs");
  EXPECT_EQ(out.source_line, 17u);
  EXPECT_EQ(out.birth, map.epoch());
  EXPECT_EQ(out.death, 0u);
}

// Proves: B3
TEST(CodeMapTest, RangesOfAnySizeAndPlaceResolveAtEachEdge) {
  for (const std::size_t size : {std::size_t{1}, 255 * std::size_t{1}, 64 * kKiB - 1, 64 * kKiB,
                                 64 * kKiB + 1, 128 * kKiB, 10 * kMiB, kGiB, 5 * kGiB + 3}) {
    for (const std::uintptr_t offset : {0ul, 1ul, 0xfffful, 0xffffff00ul}) {
      CodeMap map;
      const std::uintptr_t start = kBase + offset;
      const CodeId before = Add(map, start - 7, 7);
      const CodeId behind = Add(map, start + size, 9);
      const CodeId id = Add(map, start, size);
      CodeHit hit;
      for (std::uintptr_t at = 0; at < size; at += std::max<std::size_t>(size / 1000, 1)) {
        ASSERT_TRUE(map.Lookup(start + at, &hit));
        ASSERT_EQ(hit.id, id);
        ASSERT_EQ(hit.start, start);
        ASSERT_EQ(hit.size, size);
      }
      EXPECT_EQ(IdAt(map, start + size - 1), id);
      EXPECT_EQ(IdAt(map, start + size), behind);
      EXPECT_EQ(IdAt(map, start - 1), before);
      ASSERT_TRUE(map.Unregister(id).ok());
      for (std::uintptr_t at = 0; at < size; at += std::max<std::size_t>(size / 1000, 1)) {
        ASSERT_EQ(IdAt(map, start + at), 0u);
      }
      EXPECT_EQ(IdAt(map, start + size - 1), 0u);
      EXPECT_EQ(IdAt(map, start + size), behind);
      EXPECT_EQ(IdAt(map, start - 1), before);
    }
  }
}

TEST(CodeMapTest, CodeOfOneByteIsAsDenseAsItGets) {
  CodeMap map;
  constexpr std::uintptr_t kCount = 70'000;
  const CodeId first = Add(map, kBase, 1);
  for (std::uintptr_t i = 1; i < kCount; ++i) ASSERT_EQ(Add(map, kBase + i, 1), first + i);
  for (std::uintptr_t i = 0; i < kCount; ++i) ASSERT_EQ(IdAt(map, kBase + i), first + i);
  // A range over the place of dense code that is gone covers the split cells whole.
  for (CodeId i = 0; i < kCount; ++i) ASSERT_TRUE(map.Unregister(first + i).ok());
  const CodeId large = Add(map, kBase + 100, 65'536);
  EXPECT_EQ(IdAt(map, kBase + 99), 0u);
  for (std::uintptr_t i = 0; i < 65'536; ++i) ASSERT_EQ(IdAt(map, kBase + 100 + i), large);
  EXPECT_EQ(IdAt(map, kBase + 100 + 65'536), 0u);
}

// Proves: B8
TEST(CodeMapTest, TheMapIsEmptyAgainWhenTheLastRangeIsGone) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 10);
  const CodeId b = Add(map, kBase + 10, 10);
  EXPECT_EQ(map.live_count(), 2u);
  ASSERT_TRUE(map.Unregister(a).ok());
  EXPECT_EQ(IdAt(map, kBase + 10), b);
  ASSERT_TRUE(map.Unregister(b).ok());
  EXPECT_EQ(map.live_count(), 0u);
  CodeHit hit;
  EXPECT_EQ(map.Find(kBase, &hit), LookupResult::kNone);
  const CodeId c = Add(map, kBase, 10);
  EXPECT_EQ(IdAt(map, kBase), c);
}

TEST(CodeMapTest, MoveRetiresTheOldPlace) {
  CodeMap map;
  CodeRegistration code = Code(kBase, 100, "moves");
  code.owner = 7;
  const CodeId a = map.Register(code).value();
  const CodeId other = Add(map, kBase + 1000, 100);
  const CodeEpoch before = map.epoch();
  EXPECT_EQ(map.Move(a, kBase + 950).status().code(), StatusCode::kOverlap);
  EXPECT_EQ(map.Move(99, kBase + 950).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(map.Move(a, ~std::uintptr_t{0} - 5).status().code(), StatusCode::kInvalidArgument);
  const Result<CodeId> b = map.Move(a, kBase + 50);  // overlaps its old place
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(IdAt(map, kBase + 49), 0u);
  EXPECT_EQ(IdAt(map, kBase + 50), b.value());
  EXPECT_EQ(IdAt(map, kBase + 149), b.value());
  EXPECT_EQ(IdAt(map, kBase + 60, before), a);
  EXPECT_EQ(map.Move(a, kBase).status().code(), StatusCode::kNotFound);
  CodeDescriptor out;
  ASSERT_TRUE(map.Describe(b.value(), &out));
  EXPECT_EQ(out.name, "moves");
  EXPECT_EQ(out.owner, 7u);
  EXPECT_EQ(map.live_count(), 2u);
  EXPECT_EQ(IdAt(map, kBase + 1000), other);
}

TEST(CodeMapTest, ABatchIsAllOrNothingAndOneEpoch) {
  CodeMap map;
  Add(map, kBase + 500, 10);
  const CodeEpoch epoch = map.epoch();
  // Not in order of addresses, and one that spans cells between small ones.
  std::vector<CodeRegistration> codes = {Code(kBase + 0x50000, 10), Code(kBase + 0x100, 10),
                                         Code(kBase + 0x8000, 0x30000), Code(kBase + 0x38000, 0x10)};
  std::vector<CodeId> ids(codes.size());
  codes.push_back(Code(kBase + 501, 1));
  EXPECT_EQ(map.RegisterBatch(codes.data(), codes.size(), nullptr).code(), StatusCode::kOverlap);
  EXPECT_EQ(map.epoch(), epoch);
  codes.back() = Code(kBase + 0x37fff, 2);  // overlaps its neighbours in the batch
  EXPECT_EQ(map.RegisterBatch(codes.data(), codes.size(), nullptr).code(), StatusCode::kOverlap);
  EXPECT_EQ(map.live_count(), 1u);
  EXPECT_EQ(IdAt(map, kBase + 0x100), 0u);
  codes.pop_back();
  ASSERT_TRUE(map.RegisterBatch(codes.data(), codes.size(), ids.data()).ok());
  EXPECT_EQ(map.epoch(), epoch + 1);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(IdAt(map, codes[i].start), ids[i]);
    EXPECT_EQ(IdAt(map, codes[i].start + codes[i].size - 1), ids[i]);
  }
  EXPECT_EQ(map.live_count(), 5u);

  std::vector<CodeId> some = {ids[0], ids[2], ids[0]};
  EXPECT_EQ(map.UnregisterBatch(some.data(), 3).code(), StatusCode::kNotFound);
  EXPECT_EQ(map.live_count(), 5u);
  EXPECT_EQ(IdAt(map, codes[2].start), ids[2]);
  ASSERT_TRUE(map.UnregisterBatch(some.data(), 2).ok());
  EXPECT_EQ(map.epoch(), epoch + 2);
  EXPECT_EQ(IdAt(map, codes[2].start + 0x20000), 0u);
  EXPECT_EQ(IdAt(map, codes[3].start), ids[3]);
}

struct Retired {
  std::vector<std::pair<CodeId, std::string>> all;
  CodeRetiredVisitor visitor{[](void* to, CodeId id, const CodeDescriptor& code) {
                               static_cast<Retired*>(to)->all.emplace_back(id, code.name);
                             },
                             this};
};

TEST(CodeMapTest, AnOwnersCodeGoesInOneStep) {
  CodeMap map;
  std::vector<CodeId> mine;
  for (std::uintptr_t i = 0; i < 1000; ++i) {
    CodeRegistration code = Code(kBase + i * 100, 100, "of an owner");
    code.owner = 1 + i % 2;
    const CodeId id = map.Register(code).value();
    if (code.owner == 2) mine.push_back(id);
  }
  EXPECT_EQ(map.UnregisterOwner(0), 0u);
  EXPECT_EQ(map.UnregisterOwner(3), 0u);
  ASSERT_TRUE(map.Unregister(mine[10]).ok());
  const CodeEpoch epoch = map.epoch();
  Retired retired;
  EXPECT_EQ(map.UnregisterOwner(2, &retired.visitor), 499u);
  EXPECT_EQ(map.epoch(), epoch + 1);
  EXPECT_EQ(retired.all.size(), 499u);
  EXPECT_EQ(retired.all[0].second, "of an owner");
  for (std::uintptr_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(IdAt(map, kBase + i * 100 + 50) != 0, i % 2 == 0);
    EXPECT_EQ(IdAt(map, kBase + i * 100 + 50, epoch) != 0, i % 2 == 0 || i != 21);
  }
  EXPECT_EQ(map.UnregisterOwner(2), 0u);
  EXPECT_EQ(map.UnregisterOwner(1), 500u);
  EXPECT_EQ(map.live_count(), 0u);
}

TEST(CodeMapTest, RegisterOverRetiresWhatItOverlaps) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 100, "a");
  const CodeId b = Add(map, kBase + 100, 0x30000, "b");
  const CodeId c = Add(map, kBase + 0x40000, 100, "c");
  const CodeEpoch before = map.epoch();
  Retired retired;
  const Result<CodeId> d = map.RegisterOver(Code(kBase + 50, 100), &retired.visitor);
  ASSERT_TRUE(d.ok());
  EXPECT_EQ(map.epoch(), before + 1);
  EXPECT_EQ(retired.all, (std::vector<std::pair<CodeId, std::string>>{{a, "a"}, {b, "b"}}));
  EXPECT_EQ(IdAt(map, kBase + 49), 0u);
  EXPECT_EQ(IdAt(map, kBase + 50), d.value());
  EXPECT_EQ(IdAt(map, kBase + 150), 0u);
  EXPECT_EQ(IdAt(map, kBase + 0x20000), 0u);
  EXPECT_EQ(IdAt(map, kBase + 0x20000, before), b);
  EXPECT_EQ(IdAt(map, kBase + 0x40000), c);
  EXPECT_EQ(map.live_count(), 2u);
}

TEST(CodeMapTest, UnregisterRangeRetiresWhatItTouches) {
  CodeMap map;
  const CodeId a = Add(map, kBase, 100);
  const CodeId b = Add(map, kBase + 100, 100);
  const CodeId c = Add(map, kBase + 300, 100);
  Retired retired;
  EXPECT_EQ(map.UnregisterRange(kBase + 200, 100), 0u);
  EXPECT_EQ(map.UnregisterRange(kBase, 0), 0u);
  EXPECT_EQ(map.UnregisterRange(kBase + 199, 1, &retired.visitor), 1u);
  EXPECT_EQ(retired.all[0].first, b);
  EXPECT_EQ(IdAt(map, kBase + 99), a);
  EXPECT_EQ(map.UnregisterRange(0, ~std::size_t{0}), 2u);
  EXPECT_EQ(IdAt(map, kBase + 300), 0u);
  EXPECT_EQ(IdAt(map, kBase + 300, map.epoch() - 1), c);
  EXPECT_EQ(map.live_count(), 0u);
}

TEST(CodeMapTest, ForEachLiveSeesEachOnce) {
  CodeMap map;
  std::vector<CodeId> ids;
  for (std::uintptr_t i = 0; i < 3000; ++i) ids.push_back(Add(map, kBase + i * 50, 50));
  for (std::size_t i = 0; i < ids.size(); i += 3) ASSERT_TRUE(map.Unregister(ids[i]).ok());
  map.TrimHistory(map.epoch());
  std::vector<int> seen(ids.back() + 1);
  map.ForEachLive([](void* to, CodeId id) { ++(*static_cast<std::vector<int>*>(to))[id]; }, &seen);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(seen[ids[i]], i % 3 == 0 ? 0 : 1);
}

// A map whose very first allocations failed stays empty and says so.
TEST(CodeMapTest, WithoutMemoryTheMapIsEmpty) {
  for (int allowed = 0; allowed < 3; ++allowed) {
    internal::FailAllocationsForTest(allowed);
    CodeMap map;
    internal::FailAllocationsForTest(-1);
    EXPECT_EQ(map.Register(Code(kBase, 10)).status().code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(map.Unregister(1).code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(IdAt(map, kBase), 0u);
    EXPECT_EQ(IdAt(map, kBase, 1), 0u);
    EXPECT_EQ(map.live_count(), 0u);
  }
}

}  // namespace
}  // namespace stackpipe
