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

// How to step out of a frame, but for the offset of the CFA, which the row has.
struct CfiShape {
  enum class Kind : std::uint8_t {
    kUnknown,  // no CFI, or CFI that cannot be expressed here: the walk must end
    kEnd,      // the outermost frame: the CFI says that there is no return address
    kPlain,    // CFA = register + 8 * the row's number, return address at CFA - 8, registers saved below that
    kExtended,  // all else: an extended rule, with the index `first_extended` + the row's number
  };
  Kind kind = Kind::kUnknown;
  std::uint8_t cfa_register = kRegSp;
  // The saved registers lie at CFA + 8 * slot. 0: not saved, the caller has the same value.
  std::int8_t saved[kSavedCount] = {};
  std::uint16_t depth = 8;  // all slots, the return address's too, lie in [CFA - depth, CFA)
  std::uint8_t unused[2] = {};
  std::uint32_t first_extended = 0;

  bool operator==(const CfiShape&) const = default;
};
static_assert(sizeof(CfiShape) == 16);

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

// One row of a table, 32 bits. From the top: the offset in its bucket, the index of its shape, a number whose
// meaning the shape tells. The offset of the CFA is in the row itself since the walk waits for it: the shape,
// which has the rest, is loaded meanwhile.
struct CfiRow {
  static constexpr unsigned kNumberBits = 14;  // CFA offsets below 128 KB
  static constexpr unsigned kShapeBits = 11;
  static constexpr unsigned kRuleBits = kNumberBits + kShapeBits;
  static constexpr std::uint32_t kNumberMax = (1u << kNumberBits) - 1;
  static constexpr std::uint32_t kShapeMax = (1u << kShapeBits) - 1;
  static constexpr std::uint32_t kRuleMask = (1u << kRuleBits) - 1;

  std::uint32_t bits = 0;

  std::uint32_t number() const { return bits & kNumberMax; }
  std::uint32_t shape() const { return (bits >> kNumberBits) & kShapeMax; }
};

// A table as it is read: for a process in which the object lies where the view was made for. Immutable.
struct CfiView {
  // Code is cut into buckets of this size.
  static constexpr unsigned kBucketBits = 32 - CfiRow::kRuleBits;
  static constexpr std::uint32_t kBucketSize = 1u << kBucketBits;

  std::uint64_t base = 0;          // of the first bucket
  std::uint64_t bucket_count = 0;  // bucket_begin has one entry more
  const std::uint32_t* bucket_begin = nullptr;
  const CfiRow* rows = nullptr;
  const CfiShape* shapes = nullptr;
  const CfiExtendedRule* extended = nullptr;

  // The row for the code at `pc`; the row 0 stands for unknown code. AS-safe. At most kBucketSize steps,
  // typically 3.
  CfiRow Find(std::uint64_t pc) const noexcept {
    const std::uint64_t offset = pc - base;  // wraps below base: then beyond the buckets too
    const std::uint64_t bucket = offset >> kBucketBits;
    if (bucket >= bucket_count) return CfiRow();
    // Backwards from the bucket's last row. Its first row is at offset 0, so the search ends there at the
    // latest. Rows compare by offset first: the first that is at or below `last` holds.
    const std::uint32_t last =
        (static_cast<std::uint32_t>(offset & (kBucketSize - 1)) << CfiRow::kRuleBits) | CfiRow::kRuleMask;
    const CfiRow* row = rows + bucket_begin[bucket + 1];
    do {
      --row;
    } while (row->bits > last);
    return *row;
  }
  // AS-safe.
  const CfiShape& ShapeOf(CfiRow row) const noexcept { return shapes[row.shape()]; }
  const CfiExtendedRule& ExtendedOf(const CfiShape& shape, CfiRow row) const noexcept {
    return extended[shape.first_extended + row.number()];
  }
};

class CfiTable {
 public:
  // Objects whose code spans more get no table: buckets cost memory (64 MB here) even where there is no CFI.
  static constexpr std::uint64_t kSpanMax = std::uint64_t{1} << 30;

  // One stretch of code, up to the next stretch's address, that has one row, whose offset is 0 here. For
  // building.
  struct Stretch {
    std::uint64_t address;
    CfiRow row;
  };

  CfiTable() : CfiTable({}, {CfiShape()}, {}) {}
  // `code` ascends strictly; the last stretch is the row 0 and ends the code. shapes[0] is kUnknown.
  CfiTable(const std::vector<Stretch>& code, std::vector<CfiShape> shapes,
           std::vector<CfiExtendedRule> extended);

  // The table for an object whose addresses are `bias` above the file's. Valid as long as the table is.
  CfiView View(std::uint64_t bias) const;

  std::size_t row_count() const { return rows_.size(); }
  std::size_t shape_count() const { return shapes_.size(); }
  std::size_t extended_count() const { return extended_.size(); }
  // Memory held, in bytes.
  std::size_t byte_count() const;
  bool empty() const { return rows_.empty(); }

 private:
  std::uint64_t base_ = 0;  // a multiple of the buckets' size
  std::vector<std::uint32_t> bucket_begin_;
  std::vector<CfiRow> rows_;
  std::vector<CfiShape> shapes_;
  std::vector<CfiExtendedRule> extended_;
};

}  // namespace stackpipe

#endif  // STACKPIPE_UNWIND_CFI_TABLE_H_
