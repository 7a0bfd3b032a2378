// SPDX-License-Identifier: MIT
#include "aot/dwarf_names.h"

#include <algorithm>

#include "unwind/byte_reader.h"

namespace stackpipe {

namespace {

constexpr std::uint64_t kTagSubprogram = 0x2e;
constexpr std::uint64_t kAttributeName = 0x03;
constexpr std::uint64_t kAttributeLowPc = 0x11;
constexpr std::uint64_t kFormAddress = 0x01;
constexpr std::uint64_t kFormString = 0x08;

struct Attribute {
  std::uint64_t name = 0;
  std::uint64_t form = 0;
};

struct Abbreviation {
  std::uint64_t code = 0;
  std::uint64_t tag = 0;
  std::vector<Attribute> attributes;
};

// The abbreviations of one unit, by code. Empty: not understood.
std::vector<Abbreviation> ReadAbbreviations(ByteReader reader) {
  constexpr std::size_t kMax = 65536;  // of abbreviations and of attributes in all; compilers write hundreds
  std::vector<Abbreviation> all;
  std::size_t attribute_count = 0;
  for (;;) {
    Abbreviation one;
    one.code = reader.ReadUleb();
    if (one.code == 0) break;
    one.tag = reader.ReadUleb();
    reader.Skip(1);  // whether it has children: they come one after the other in any case
    for (;;) {
      const Attribute attribute = {reader.ReadUleb(), reader.ReadUleb()};
      if (reader.failed() || ++attribute_count > kMax) return {};
      if (attribute.name == 0 && attribute.form == 0) break;
      one.attributes.push_back(attribute);
    }
    all.push_back(std::move(one));
    if (all.size() > kMax) return {};
  }
  std::sort(all.begin(), all.end(),
            [](const Abbreviation& a, const Abbreviation& b) { return a.code < b.code; });
  return all;
}

const Abbreviation* Find(const std::vector<Abbreviation>& all, std::uint64_t code) {
  const auto at =
      std::lower_bound(all.begin(), all.end(), code,
                       [](const Abbreviation& one, std::uint64_t value) { return one.code < value; });
  return at != all.end() && at->code == code ? &*at : nullptr;
}

// Passes over a value. False: of a form that is not known.
bool SkipForm(std::uint64_t form, std::uint16_t version, ByteReader* reader) {
  switch (form) {
    case 0x0b:  // data1
    case 0x0c:  // flag
    case 0x11:  // ref1
      reader->Skip(1);
      return true;
    case 0x05:  // data2
    case 0x12:  // ref2
      reader->Skip(2);
      return true;
    case 0x06:  // data4
    case 0x0e:  // strp
    case 0x13:  // ref4
    case 0x17:  // sec_offset
      reader->Skip(4);
      return true;
    case kFormAddress:
    case 0x07:  // data8
    case 0x14:  // ref8
    case 0x20:  // ref_sig8
      reader->Skip(8);
      return true;
    case 0x10:  // ref_addr
      reader->Skip(version == 2 ? 8 : 4);
      return true;
    case 0x0d:  // sdata
      reader->ReadSleb();
      return true;
    case 0x0f:  // udata
    case 0x15:  // ref_udata
      reader->ReadUleb();
      return true;
    case 0x03:  // block2
      reader->Skip(reader->Read<std::uint16_t>());
      return true;
    case 0x04:  // block4
      reader->Skip(reader->Read<std::uint32_t>());
      return true;
    case 0x0a:  // block1
      reader->Skip(reader->Read<std::uint8_t>());
      return true;
    case 0x09:  // block
    case 0x18:  // exprloc
      reader->Skip(reader->ReadUleb());
      return true;
    case kFormString:
      reader->ReadCString();
      return true;
    case 0x19:  // flag_present
      return true;
    default:
      return false;
  }
}

}  // namespace

std::vector<DwarfName> ReadDwarfNames(const std::uint8_t* info, std::size_t info_size,
                                      const std::uint8_t* abbrev, std::size_t abbrev_size) {
  std::vector<DwarfName> names;
  ByteReader rest(info, info_size);
  while (rest.left() > 0) {
    ByteReader unit = rest.Take(rest.Read<std::uint32_t>());
    const auto version = unit.Read<std::uint16_t>();
    const auto abbrev_offset = unit.Read<std::uint32_t>();
    const auto address_size = unit.Read<std::uint8_t>();
    if (rest.failed() || unit.failed() || version < 2 || version > 4 || address_size != 8 ||
        abbrev_offset > abbrev_size) {
      break;
    }
    const std::vector<Abbreviation> abbreviations =
        ReadAbbreviations(ByteReader(abbrev + abbrev_offset, abbrev_size - abbrev_offset));
    while (unit.left() > 0) {
      const std::uint64_t code = unit.ReadUleb();
      if (code == 0) continue;  // the end of somebody's children
      const Abbreviation* entry = Find(abbreviations, code);
      if (entry == nullptr) return names;
      DwarfName name;
      bool has_name = false;
      bool has_address = false;
      for (const Attribute& attribute : entry->attributes) {
        if (attribute.name == kAttributeName && attribute.form == kFormString) {
          name.text_offset = static_cast<std::uint64_t>(unit.at() - info);
          has_name = true;
        }
        if (attribute.name == kAttributeLowPc && attribute.form == kFormAddress) {
          name.address = unit.Read<std::uint64_t>();
          has_address = true;
        } else if (!SkipForm(attribute.form, version, &unit)) {
          return names;
        }
      }
      if (unit.failed()) return names;
      if (entry->tag == kTagSubprogram && has_name && has_address) names.push_back(name);
    }
  }
  return names;
}

}  // namespace stackpipe
