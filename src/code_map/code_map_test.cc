// SPDX-License-Identifier: MIT
#include "stackpipe/code_map.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <new>
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

// All that a map says about some addresses, now and at each epoch so far, and about all of its ids. What a
// change must not do, it must not do to any of this.
struct Snapshot {
  std::vector<CodeId> now, then;
  std::vector<std::string> descriptions;
  std::vector<CodeId> live;
  std::size_t live_count;
  CodeEpoch epoch;
  bool operator==(const Snapshot&) const = default;
};

Snapshot Take(const CodeMap& map, const std::vector<std::uintptr_t>& pcs, CodeId id_max) {
  Snapshot out;
  out.live_count = map.live_count();
  out.epoch = map.epoch();
  for (const std::uintptr_t pc : pcs) {
    out.now.push_back(IdAt(map, pc));
    for (CodeEpoch epoch = 0; epoch <= out.epoch; ++epoch) out.then.push_back(IdAt(map, pc, epoch));
  }
  for (CodeId id = 1; id <= id_max; ++id) {
    CodeDescriptor code;
    std::string text = "none";
    if (map.Describe(id, &code)) {
      text = std::to_string(code.start) + ' ' + std::to_string(code.size) + ' ' + std::to_string(code.birth) +
             ' ' + std::to_string(code.death) + ' ' + std::to_string(code.owner);
      for (const std::string_view part : {code.name_space, code.name, code.signature, code.source_file}) {
        text += '|';
        text += part;
      }
    }
    out.descriptions.push_back(text);
  }
  map.ForEachLive([](void* to, CodeId id) { static_cast<std::vector<CodeId>*>(to)->push_back(id); },
                  &out.live);
  return out;
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

// Proves: tests 23 and 24 of the list
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

// Proves: test 23 of the list
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

// Proves: test 23 of the list
TEST(CodeMapTest, ZeroSizeAndWrapAreRefused) {
  CodeMap map;
  EXPECT_EQ(map.Register(Code(kBase, 0)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Register(Code(~std::uintptr_t{0} - 10, 11)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Register(Code(~std::uintptr_t{0}, 100)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(map.Register(Code(kBase, CodeMap::kRangeBytesMax + 1)).status().code(), StatusCode::kLimit);
  EXPECT_EQ(map.live_count(), 0u);
  EXPECT_EQ(IdAt(map, kBase), 0u);
}

// Proves: test 23 of the list
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

// Proves: test 8 of the list
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

// Proves: test 8 of the list
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

// Proves: B6; test 28 of the list
TEST(CodeMapTest, AFailedRegistrationNeverUnregistersAnything) {
  CodeMap map;
  const CodeId id = Add(map, kBase, 100);
  const Result<CodeId> failed = map.Register(Code(kBase + 50, 100));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(map.Unregister(failed.value()).code(), StatusCode::kNotFound);
  EXPECT_EQ(IdAt(map, kBase + 50), id);
}

// Proves: B7; tests 9 and 11 of the list
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

// Proves: test 10 of the list
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

// Proves: test 29 of the list
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

// Proves: test 17 of the list
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

// Proves: B3; tests 23, 24 and 25 of the list
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
      // Both sides of each border of a cell, up to 1 GiB.
      const std::uintptr_t first_border = (start | 0xffff) + 1;
      for (std::uintptr_t at = first_border; size <= kGiB && at < start + size; at += 64 * kKiB) {
        ASSERT_EQ(IdAt(map, at - 1), id);
        ASSERT_EQ(IdAt(map, at), id);
      }
      EXPECT_EQ(IdAt(map, start + size - 1), id);
      EXPECT_EQ(IdAt(map, start + size), behind);
      EXPECT_EQ(IdAt(map, start - 1), before);
      ASSERT_TRUE(map.Unregister(id).ok());
      for (std::uintptr_t at = first_border; size <= kGiB && at < start + size; at += 64 * kKiB) {
        ASSERT_EQ(IdAt(map, at - 1), at - 1 < start ? before : 0u);
        ASSERT_EQ(IdAt(map, at), 0u);
      }
      for (std::uintptr_t at = 0; at < size; at += std::max<std::size_t>(size / 1000, 1)) {
        ASSERT_EQ(IdAt(map, start + at), 0u);
      }
      EXPECT_EQ(IdAt(map, start + size - 1), 0u);
      EXPECT_EQ(IdAt(map, start + size), behind);
      EXPECT_EQ(IdAt(map, start - 1), before);
    }
  }
}

// The text of the Linux kernel lies in the last 4 GiB that there are.
//
// Proves: B3; tests 23 and 25 of the list
TEST(CodeMapTest, LargeCodeMayLieAtTheEndOfAllAddresses) {
  CodeMap map;
  const CodeId kernel = Add(map, 0xffffffff81000000, 18 * kMiB);
  EXPECT_EQ(IdAt(map, 0xffffffff81000000), kernel);
  EXPECT_EQ(IdAt(map, 0xffffffff81800000), kernel);
  EXPECT_EQ(IdAt(map, 0xffffffff821fffff), kernel);
  EXPECT_EQ(IdAt(map, 0xffffffff82200000), 0u);
  const CodeId last = Add(map, ~std::uintptr_t{0} - 5 * kMiB, 5 * kMiB);
  EXPECT_EQ(IdAt(map, ~std::uintptr_t{0} - 5 * kMiB), last);
  EXPECT_EQ(IdAt(map, ~std::uintptr_t{0} - 1), last);
  EXPECT_EQ(IdAt(map, 0), 0u);
  EXPECT_EQ(IdAt(map, kBase), 0u);
}

// Proves: test 6 of the list
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

// Proves: test 10 of the list
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

// Changes that are refused or run out of memory at one of their allocations, on a map with some of all: a
// neighbour, code over several cells, dense code, a past.
class CodeMapFailedChangeTest : public testing::Test {
 protected:
  static constexpr CodeId kIds = 700;

  CodeMapFailedChangeTest() {
    for (std::uintptr_t at = kBase - 0x20; at < kBase + 0x9000; at += 0x25) pcs_.push_back(at);
    for (std::uintptr_t at = kBase + 0x9000; at < kBase + 0x80000; at += 0x1fff) pcs_.push_back(at);
  }
  static void Prepare(CodeMap& map) {
    std::vector<CodeRegistration> codes;
    for (std::uintptr_t i = 0; i < 533; ++i) codes.push_back(Code(kBase + i * 64, 48, "dense"));
    for (std::size_t i = 0; i < codes.size(); i += 2) codes[i].owner = 3;
    EXPECT_TRUE(map.RegisterBatch(codes.data(), codes.size(), nullptr).ok());
    Add(map, kBase + 0x9000, 0x38000, "large");
    const CodeId gone = Add(map, kBase + 0x50000, 100, "gone");
    EXPECT_TRUE(map.Unregister(gone).ok());
    Add(map, kBase + 0x50010, 100, "in its place");
  }

  std::vector<std::uintptr_t> pcs_;
};

// Proves: B5, B6; tests 22 and 28 of the list
TEST_F(CodeMapFailedChangeTest, WithoutMemoryAtAnyAllocationNothingChanges) {
  const std::string long_name(100'000, 'n');
  struct Case {
    const char* name;
    std::function<Status(CodeMap&)> change;
  };
  const std::vector<Case> cases = {
      {"in the middle, where the cell is full",
       [&](CodeMap& map) { return map.Register(Code(kBase + 100 * 64 + 50, 8, "a new name")).status(); }},
      {"over several cells",
       [&](CodeMap& map) { return map.Register(Code(kBase + 0x60000, 0x38000, long_name)).status(); }},
      {"in a new table and region",
       [&](CodeMap& map) { return map.Register(Code(std::uintptr_t{5} << 47, 100, "far")).status(); }},
      {"over dense, large and other code",
       [&](CodeMap& map) { return map.RegisterOver(Code(kBase + 0x1001, 0x50000, "a new name")).status(); }},
      {"a batch",
       [&](CodeMap& map) {
         const CodeRegistration codes[] = {Code(kBase + 0x70000, 10, "x"),
                                           Code(kBase + 100 * 64 + 50, 8, "y"),
                                           Code(kBase + 0x1'0000'0000, 0x30000, "z")};
         return map.RegisterBatch(codes, 3, nullptr);
       }},
      {"moved", [&](CodeMap& map) { return map.Move(534, kBase + 0x8f00).status(); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CodeMap map;
    Prepare(map);
    const Snapshot before = Take(map, pcs_, kIds);
    int allowed = 0;
    for (;; ++allowed) {
      ASSERT_LT(allowed, 1000);
      internal::FailAllocationsForTest(allowed);
      const Status status = c.change(map);
      internal::FailAllocationsForTest(-1);
      if (status.ok()) break;
      ASSERT_EQ(status.code(), StatusCode::kOutOfMemory) << allowed;
      ASSERT_EQ(Take(map, pcs_, kIds), before) << allowed;
    }
    EXPECT_GT(allowed, 2);
    EXPECT_NE(Take(map, pcs_, kIds), before);
    EXPECT_EQ(map.epoch(), before.epoch + 1);
  }
}

// Proves: B6; tests 8 and 28 of the list
TEST_F(CodeMapFailedChangeTest, ARefusedChangeChangesNothing) {
  CodeMap map;
  Prepare(map);
  const Snapshot before = Take(map, pcs_, kIds);
  const CodeId gone = 535, live = 534;
  const CodeRegistration partly[] = {Code(kBase + 0x70000, 10), Code(kBase + 0x8fff, 2)};
  const CodeRegistration each_other[] = {Code(kBase + 0x70000, 10), Code(kBase + 0x70009, 2)};
  const CodeRegistration with_empty[] = {Code(kBase + 0x70000, 10), Code(kBase + 0x70100, 0)};
  const CodeId twice[] = {live, 7, live}, with_gone[] = {7, live, gone}, with_unknown[] = {7, 8, 99'999};
  const std::vector<std::pair<StatusCode, std::function<Status()>>> changes = {
      {StatusCode::kOverlap, [&] { return map.Register(Code(kBase + 0x9000, 0x38000)).status(); }},
      {StatusCode::kOverlap, [&] { return map.Register(Code(kBase + 0x40fff, 1)).status(); }},
      {StatusCode::kOverlap, [&] { return map.RegisterBatch(partly, 2, nullptr); }},
      {StatusCode::kOverlap, [&] { return map.RegisterBatch(each_other, 2, nullptr); }},
      {StatusCode::kInvalidArgument, [&] { return map.RegisterBatch(with_empty, 2, nullptr); }},
      {StatusCode::kInvalidArgument, [&] { return map.RegisterOver(Code(kBase + 0x9000, 0)).status(); }},
      {StatusCode::kLimit,
       [&] { return map.RegisterOver(Code(kBase, CodeMap::kRangeBytesMax + 1)).status(); }},
      {StatusCode::kNotFound, [&] { return map.Unregister(gone); }},
      {StatusCode::kNotFound, [&] { return map.UnregisterBatch(twice, 3); }},
      {StatusCode::kNotFound, [&] { return map.UnregisterBatch(with_gone, 3); }},
      {StatusCode::kNotFound, [&] { return map.UnregisterBatch(with_unknown, 3); }},
      {StatusCode::kOverlap, [&] { return map.Move(live, kBase + 0x8000).status(); }},
      {StatusCode::kNotFound, [&] { return map.Move(gone, kBase + 0x70000).status(); }},
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(changes[i].second().code(), changes[i].first) << i;
    ASSERT_EQ(Take(map, pcs_, kIds), before) << i;
  }
  // Not even an id was lost: the next one is the one behind the last.
  EXPECT_EQ(Add(map, kBase + 0x70000, 1), 537u);
}

// What a failed change had made is given back, or kept for the next one: not once more each time.
//
// Proves: B5; test 22 of the list
TEST_F(CodeMapFailedChangeTest, FailuresKeepNoMemory) {
  CodeMap map;
  Prepare(map);
  const auto fail = [&] {
    for (int allowed = 0; allowed < 20; ++allowed) {
      internal::FailAllocationsForTest(allowed);
      (void)map.RegisterOver(Code(kBase + 100 * 64 + 20, 10, "a name of its own"));
      internal::FailAllocationsForTest(-1);
      const CodeRegistration codes[] = {Code(kBase + 0x70000, 0x30000, "x"), Code(kBase, 8, "y")};
      (void)map.RegisterBatch(codes, 2, nullptr);
      EXPECT_EQ(map.UnregisterRange(kBase + 100 * 64 + 20, 1), 1u);
      Add(map, kBase + 100 * 64, 48, "dense");
      map.TrimHistory(map.epoch());
    }
  };
  // Until the ids have come into another page, and another again.
  for (int i = 0; i < 150; ++i) fail();
  const CodeMapMemory before = map.memory();
  for (int i = 0; i < 150; ++i) fail();
  const CodeMapMemory after = map.memory();
  EXPECT_EQ(after.lookup, before.lookup);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.texts, before.texts);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

// The same with a kernel that has none left: the seam above stands for this.
//
// Proves: B5; test 22 of the list
TEST(CodeMapTest, WhereTheKernelHasNoMemoryTheMapStaysAsItIs) {
  const pid_t child = fork();
  if (child == 0) {
    CodeMap map;
    const CodeId first = map.Register(Code(kBase, 16)).value();
    // A limit below what is used: no mapping can be made.
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
    std::uintptr_t i = 1;
    for (;; ++i) {
      if (i == 1'000'000) _exit(2);
      const Result<CodeId> id = map.Register(Code(kBase + i * 64, 16));
      if (id.ok()) continue;
      if (id.status().code() != StatusCode::kOutOfMemory) _exit(3);
      break;
    }
    if (map.live_count() != i) _exit(4);
    CodeHit hit;
    if (map.Lookup(kBase + i * 64, &hit)) _exit(5);
    for (std::uintptr_t k = 0; k < i; ++k) {
      if (!map.Lookup(kBase + k * 64 + 15, &hit) || hit.id != first + k) _exit(6);
    }
    // What needs no memory still works, and makes room.
    if (!map.Unregister(first + 1).ok() || map.Lookup(kBase + 64, &hit)) _exit(7);
    map.TrimHistory(map.epoch());
    _exit(map.Register(Code(kBase + 64, 16)).ok() ? 0 : 8);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#endif

// The texts lie on a page that is unreadable as soon as the call is over, as unloaded metadata would be.
//
// Proves: B7; test 17 of the list
TEST(CodeMapTest, NothingOfTheSourceIsReadAfterTheCall) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  char* const source =
      static_cast<char*>(mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(source, MAP_FAILED);
  const std::string text = "a.name.space|a name|a signature|a file";
  const auto poisoned = [&](std::uintptr_t start, const auto& make) {
    mprotect(source, page, PROT_READ | PROT_WRITE);
    std::memcpy(source, text.data(), text.size());
    auto* const code = new (source + 1024) CodeRegistration(Code(start, 64));
    code->name_space = {source, 12};
    code->name = {source + 13, 6};
    code->signature = {source + 20, 11};
    code->source_file = {source + 32, 6};
    code->source_line = 9;
    code->owner = 4;
    const CodeId id = make(*code);
    std::memset(source, 0xdd, page);
    mprotect(source, page, PROT_NONE);
    return id;
  };
  CodeMap map;
  const auto check = [&](CodeId id, const CodeDescriptor& out) {
    EXPECT_EQ(out.name_space, "a.name.space") << id;
    EXPECT_EQ(out.name, "a name") << id;
    EXPECT_EQ(out.signature, "a signature") << id;
    EXPECT_EQ(out.source_file, "a file") << id;
    EXPECT_EQ(out.source_line, 9u) << id;
    EXPECT_EQ(out.owner, 4u) << id;
  };
  std::vector<CodeId> ids;
  ids.push_back(poisoned(kBase, [&](const CodeRegistration& c) { return map.Register(c).value(); }));
  ids.push_back(poisoned(kBase + 32, [&](const CodeRegistration& c) { return map.RegisterOver(c).value(); }));
  ids.push_back(poisoned(kBase + 256, [&](const CodeRegistration& c) {
    CodeId id = 0;
    EXPECT_TRUE(map.RegisterBatch(&c, 1, &id).ok());
    return id;
  }));
  ids.push_back(map.Move(ids.back(), kBase + 512).value());
  for (const CodeId id : ids) {
    CodeDescriptor out;
    ASSERT_TRUE(map.Describe(id, &out));
    check(id, out);
  }
  // Whoever is told of the end gets the whole description, and so does who asks later.
  struct Told {
    decltype(check)* check_one;
    std::vector<CodeId> ids;
  } told{&check, {}};
  const CodeRetiredVisitor visitor{[](void* to, CodeId id, const CodeDescriptor& code) {
                                     (*static_cast<Told*>(to)->check_one)(id, code);
                                     static_cast<Told*>(to)->ids.push_back(id);
                                   },
                                   &told};
  EXPECT_EQ(map.UnregisterOwner(4, &visitor), 2u);
  EXPECT_EQ(told.ids.size(), 2u);
  for (const CodeId id : ids) {
    CodeDescriptor out;
    ASSERT_TRUE(map.Describe(id, &out));
    check(id, out);
    EXPECT_NE(out.death, 0u);
  }
  munmap(source, page);
}

// Sizes around each border between the levels of the history, at places that are aligned to nothing: at its
// epoch each old range is found at its edges, and not one byte further, after its address was used again.
//
// Proves: B7; tests 9 and 10 of the list
TEST(CodeMapTest, OldCodeOfAnySizeIsFoundAtItsEdges) {
  CodeMap map;
  struct Old {
    std::uintptr_t start;
    std::size_t size;
    CodeId id;
    CodeEpoch epoch;
  };
  std::vector<Old> all;
  for (const std::size_t size : {std::size_t{1}, 64 * kKiB - 1, 64 * kKiB, 64 * kKiB + 1, 16 * kMiB - 1,
                                 16 * kMiB, 16 * kMiB + 1, 4 * kGiB, 4 * kGiB + 1, 64 * kGiB}) {
    for (const std::uintptr_t offset : {0ul, 1ul, 0xfffful, 0x1234567ul, 0xffffffful}) {
      if (size == 64 * kGiB && offset != 0xfffful) continue;  // a million cells each
      Old old{kBase + offset, size, 0, 0};
      old.id = Add(map, old.start, size);
      old.epoch = map.epoch();
      ASSERT_TRUE(map.Unregister(old.id).ok());
      all.push_back(old);
    }
  }
  Add(map, kBase - kMiB, 64 * kGiB);
  for (const Old& old : all) {
    for (const std::uintptr_t at : {std::uintptr_t{0}, old.size / 3, old.size - 1}) {
      ASSERT_EQ(IdAt(map, old.start + at, old.epoch), old.id) << std::hex << old.size << ' ' << old.start;
    }
    ASSERT_EQ(IdAt(map, old.start - 1, old.epoch), 0u);
    ASSERT_EQ(IdAt(map, old.start + old.size, old.epoch), 0u);
    ASSERT_EQ(IdAt(map, old.start, old.epoch + 1), 0u);
  }
}

// No lock is held while ids are visited, so the visitor may change the map; what it does not touch is seen
// once, however the storage grows meanwhile.
//
// Proves: test 5 of the list
TEST(CodeMapTest, TheMapMayGrowUnderAScan) {
  CodeMap map;
  std::vector<CodeId> kept;
  for (std::uintptr_t i = 0; i < 3000; ++i) kept.push_back(Add(map, kBase + i * 64, 16));
  struct Scan {
    CodeMap& map;
    std::vector<int> seen;
    std::uintptr_t added = 0;
  } scan{map, std::vector<int>(100'000), 0};
  map.ForEachLive(
      [](void* to, CodeId id) {
        Scan& s = *static_cast<Scan*>(to);
        ASSERT_LT(id, s.seen.size());
        ++s.seen[id];
        if (s.added == 20'000) return;
        const CodeId passing = Add(s.map, kBase + s.added++ * 64 + 20, 8);
        ASSERT_TRUE(s.map.Unregister(passing).ok());
        Add(s.map, kBase + s.added++ * 64 + 40, 8);
      },
      &scan);
  EXPECT_GT(scan.added, 3000u);
  for (const CodeId id : kept) ASSERT_EQ(scan.seen[id], 1) << id;
  EXPECT_EQ(map.live_count(), kept.size() + scan.added / 2);
}

// A handler that comes before the map is made sees zeroed memory, as static objects are before their
// constructor runs: nothing is found. The map lives for as long as anybody may ask; a static one is best
// never destroyed.
//
// Proves: B8; test 21 of the list
TEST(CodeMapTest, BeforeItIsMadeAMapFindsNothing) {
  alignas(CodeMap) static unsigned char memory[sizeof(CodeMap)];
  auto* const map = reinterpret_cast<CodeMap*>(memory);
  CodeHit hit;
  EXPECT_EQ(map->Find(kBase, &hit), LookupResult::kNone);
  new (memory) CodeMap;
  EXPECT_EQ(map->Find(kBase, &hit), LookupResult::kNone);
  const CodeId id = Add(*map, kBase, 10);
  EXPECT_EQ(IdAt(*map, kBase), id);
  map->~CodeMap();
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
