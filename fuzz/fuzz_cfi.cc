// SPDX-License-Identifier: MIT
//
// Fuzzes the readers of ELF files and of call frame information. The first byte chooses what the rest is: an
// ELF file, .eh_frame, or .debug_frame. Whatever comes, the tables must be sound: each row in order, each
// rule in place, and steps by them read nothing outside the stack that they are given.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "unwind/cfi_compiler.h"
#include "unwind/elf_image.h"
#include "unwind/step.h"
#include "unwind/symbol_table.h"

namespace {

using namespace stackpipe;

void Check(bool good) {
  if (!good) std::abort();
}

void CheckTable(const CfiTable& table, const std::vector<AddressRange>& code) {
  // On the heap, so that AddressSanitizer sees a read of anything beside it.
  constexpr std::size_t kWords = 512;
  const auto stack = std::make_unique<std::uint64_t[]>(kWords);
  const auto low = reinterpret_cast<std::uintptr_t>(stack.get());
  for (std::size_t i = 0; i < kWords; ++i) stack[i] = low + 8 * ((i * 7 + 3) % kWords);
  const StackBounds bounds = {low, low + 8 * kWords};
  const CfiView view = table.View(0);
  for (const AddressRange& range : code) {
    const std::uint64_t stride = std::max<std::uint64_t>(1, (range.end - range.start) / 512);
    for (std::uint64_t i = 0; i < 512; ++i) {
      const std::uint64_t pc = range.start + i * stride;
      const CfiRow row = view.Find(pc);
      Check(row.shape() < table.shape_count());
      const CfiShape& shape = view.ShapeOf(row);
      if (shape.kind == CfiShape::Kind::kExtended) {
        Check(shape.first_extended + row.number() < table.extended_count());
        Check(view.ExtendedOf(shape, row).cfa_register < kRegCount);
      }
      Registers regs = {pc,           low + 8 * 64,  low + 8 * 80,  low + 8 * 96,
                        low + 8 * 70, low + 8 * 500, low + 8 * 511, ~std::uint64_t{0} - 64};
      const std::uint64_t sp = regs.sp;
      bool is_caller = false;
      StopReason reason = StopReason::kNotWalked;
      if (StepByTable(view, pc, bounds, &regs, &is_caller, &reason)) {
        Check(regs.sp > sp && regs.pc != 0);
      } else {
        Check(reason != StopReason::kNotWalked && regs.sp == sp && regs.pc == pc);
      }
    }
  }
}

void FuzzSection(CfiSection section) {
  const std::vector<AddressRange> code = {{0x1000, 0x5000}, {0x100000, 0x140000}};
  CheckTable(CompileCfi(section, code), code);
  const auto functions = ListFunctions(section, code);
  Check(std::is_sorted(functions.begin(), functions.end(),
                       [](const AddressRange& a, const AddressRange& b) { return a.start < b.start; }));
}

void FuzzFile(const std::uint8_t* data, std::size_t size) {
  ElfImage elf;
  if (!elf.OpenBytes(data, size)) return;
  std::uint8_t id[20];
  Check(elf.BuildId(id) <= sizeof id);
  FrameSection frames;
  // Code ranges may be huge in a damaged file, and tables cost memory by them (CfiTable::kSpanMax).
  std::vector<AddressRange> code = elf.CodeRanges();
  code.erase(std::remove_if(code.begin(), code.end(),
                            [](const AddressRange& range) { return range.end - range.start > (1 << 24); }),
             code.end());
  if (elf.LoadEhFrame(&frames)) CheckTable(CompileCfi(frames.section, code), code);
  if (elf.LoadDebugFrame(&frames)) CheckTable(CompileCfi(frames.section, code), code);
  SymbolTable symbols;
  symbols.Load(elf);
  for (std::uint64_t address = 0; address < 0x4000; address += 0x3b) {
    if (const SymbolTable::Symbol* symbol = symbols.Find(address)) {
      Check(symbol->start <= address && address < symbol->end);
      Demangle(symbols.NameOf(*symbol));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t kind = data[0];
  // A copy of its own, so that AddressSanitizer sees a read beyond the end.
  const std::vector<std::uint8_t> bytes(data + 1, data + size);
  if (kind % 4 == 0) {
    FuzzFile(bytes.data(), bytes.size());
  } else {
    FuzzSection({.data = bytes.data(),
                 .size = bytes.size(),
                 .address = 0x100000,
                 .is_debug_frame = kind % 4 == 2,
                 .stop_at_zero = kind % 4 == 3});
  }
  return 0;
}
