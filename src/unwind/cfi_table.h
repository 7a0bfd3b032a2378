// SPDX-License-Identifier: MIT
//
// CfiTable: the compiled call frame information of one object, as a signal handler uses it: immutable,
// compact, and found in a handful of steps. cfi_compiler.h makes it. docs/design/unwind.md describes the
// format.
//
// Addresses here are those of the file (virtual addresses before the load bias is added).
#ifndef STACKPIPE_UNWIND_CFI_TABLE_H_
#define STACKPIPE_UNWIND_CFI_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stackpipe {

// Indices of registers, in the order of struct Registers.
enum CfiRegister : std::uint8_t {
  kRegPc,
  kRegSp,
  kRegBp,
  kRegBx,
  kRegR12,
  kRegR13,
  kRegR14,
  kRegR15,
  kRegCount
};

// The registers other than pc and sp: the ones that a callee saves.
inline constexpr std::size_t kSavedCount = 6;
inline constexpr std::size_t kFirstSaved = kRegBp;

// How to step out of a frame. 16 bytes; each kind of frame is stored once for each object.
struct CfiRule {
  enum class Kind : std::uint8_t {
    kUnknown,   // no CFI, or CFI that cannot be expressed here: the walk must end
    kEnd,       // the outermost frame: the CFI says that there is no return address
    kPlain,     // CFA = register + offset, return address at CFA - 8, registers saved near the CFA
    kExtended,  // all else: `offset` is an index into the table's extended rules
  };
  std::int32_t offset = 0;
  Kind kind = Kind::kUnknown;
  std::uint8_t cfa_register = kRegSp;
  // The saved registers lie at CFA + 8 * slot. 0: not saved, the caller has the same value.
  std::int8_t saved[kSavedCount] = {};
  std::int8_t lowest_slot = -1;  // the lowest of `saved` and of the return address's slot
  std::uint8_t unused[3] = {};

  bool operator==(const CfiRule&) const = default;
};
static_assert(sizeof(CfiRule) == 16);

// Where a value of the caller's is found.
struct CfiLocation {
  enum class Kind : std::uint8_t {
    kSame,         // the register is unchanged
    kUndefined,    // lost; read as 0
    kAtCfa,        // in memory at CFA + offset
    kAtRegister,   // in memory at register + offset
    kCfaPlus,      // CFA + offset itself
    kRegisterPlus  // register + offset itself
  };
  std::int32_t offset = 0;
  Kind kind = Kind::kSame;
  std::uint8_t base = kRegSp;
  std::uint8_t unused[2] = {};

  bool operator==(const CfiLocation&) const = default;
};

struct CfiExtendedRule {
  enum class CfaKind : std::uint8_t {
    kRegister,  // register + offset
    kDeref,     // *(register + offset) + addend
    kPlt        // register + offset + (pc % 16 >= addend ? 8 : 0): a lazily bound PLT entry
  };
  std::int32_t cfa_offset = 0;
  std::int32_t cfa_addend = 0;
  CfaKind cfa_kind = CfaKind::kRegister;
  std::uint8_t cfa_register = kRegSp;
  bool signal_frame = false;
  std::uint8_t unused = 0;
  CfiLocation return_address;
  CfiLocation saved[kSavedCount];

  bool operator==(const CfiExtendedRule&) const = default;
};

class CfiTable {
 public:
  // Code is cut into buckets of this size; a row is 32 bits: the offset in its bucket above, the rule's index
  // below.
  static constexpr unsigned kBucketBits = 7;
  static constexpr std::uint32_t kBucketSize = 1u << kBucketBits;
  static constexpr unsigned kRuleBits = 32 - kBucketBits;
  static constexpr std::uint32_t kRuleMask = (1u << kRuleBits) - 1;
  // Objects whose code spans more get no table: buckets cost memory (64 MB here) even where there is no CFI.
  static constexpr std::uint64_t kSpanMax = std::uint64_t{1} << 30;

  // One stretch of code, up to the next row's address, that has one rule. For building.
  struct Row {
    std::uint64_t address;
    std::uint32_t rule;
  };

  CfiTable() = default;
  // `rows` ascend strictly; the last one is kUnknown (rule 0) and ends the code. rules[0] is kUnknown.
  CfiTable(const std::vector<Row>& rows, std::vector<CfiRule> rules, std::vector<CfiExtendedRule> extended);

  // The rule for the code at `address`. AS-safe. At most kBucketSize steps, typically 3.
  const CfiRule& Find(std::uint64_t address) const noexcept {
    const std::uint64_t offset = address - base_;  // wraps below base_: then beyond the buckets too
    const std::uint64_t bucket = offset >> kBucketBits;
    if (bucket >= bucket_count_) return kUnknownRule;
    const std::uint32_t* row = rows_.data() + bucket_begin_.data()[bucket];
    const std::uint32_t* end = rows_.data() + bucket_begin_.data()[bucket + 1];
    // The first row of a bucket is at offset 0. Rows compare by offset first, so all rows at or below `last`
    // hold.
    const std::uint32_t last =
        (static_cast<std::uint32_t>(offset & (kBucketSize - 1)) << kRuleBits) | kRuleMask;
    while (row + 1 != end && row[1] <= last) ++row;
    return rules_.data()[*row & kRuleMask];
  }

  const CfiExtendedRule& extended(const CfiRule& rule) const noexcept {
    return extended_.data()[static_cast<std::uint32_t>(rule.offset)];
  }

  std::size_t row_count() const { return rows_.size(); }
  std::size_t rule_count() const { return rules_.size() + extended_.size(); }
  // Memory held, in bytes.
  std::size_t byte_count() const;
  bool empty() const { return rows_.empty(); }

 private:
  static const CfiRule kUnknownRule;

  std::uint64_t base_ = 0;          // a multiple of kBucketSize
  std::uint64_t bucket_count_ = 0;  // bucket_begin_ has one entry more
  std::vector<std::uint32_t> bucket_begin_;
  std::vector<std::uint32_t> rows_;
  std::vector<CfiRule> rules_;
  std::vector<CfiExtendedRule> extended_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_CFI_TABLE_H_
