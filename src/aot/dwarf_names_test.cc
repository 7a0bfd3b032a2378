// SPDX-License-Identifier: MIT
#include "aot/dwarf_names.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace stackpipe {
namespace {

using Bytes = std::vector<std::uint8_t>;

void Append(Bytes* to, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) to->push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}
void Append(Bytes* to, const std::string& text) {
  to->insert(to->end(), text.begin(), text.end());
  to->push_back(0);
}

// 1: a function with a name and an address; 2: one of all forms that are passed over; 3: a function without a
// name; 4: of a form that is not known.
Bytes Abbreviations() {
  return {1,    0x2e, 1,    0x03, 0x08, 0x11, 0x01, 0,    0,                                   //
          2,    0x34, 0,    0x01, 0x0b, 0x01, 0x05, 0x01, 0x06, 0x01, 0x07, 0x01, 0x08, 0x01,  //
          0x09, 0x01, 0x0a, 0x01, 0x03, 0x01, 0x04, 0x01, 0x0c, 0x01, 0x0d, 0x01, 0x0e, 0x01,
          0x0f, 0x01, 0x10, 0x01, 0x11, 0x01, 0x12, 0x01, 0x13, 0x01, 0x14, 0x01, 0x15, 0x01,
          0x17, 0x01, 0x18, 0x01, 0x19, 0x01, 0x20, 0,    0,  //
          3,    0x2e, 0,    0x11, 0x01, 0,    0,              //
          4,    0x2e, 0,    0x03, 0x08, 0x01, 0x7f, 0,    0,  //
          0};
}

void AppendAllForms(Bytes* unit) {
  unit->push_back(2);
  Append(unit, 0, 1);  // data1
  Append(unit, 0, 2);
  Append(unit, 0, 4);
  Append(unit, 0, 8);
  Append(unit, "text");
  for (const int size_bytes : {1, 1, 2, 4}) {  // block, block1, block2, block4
    Append(unit, 3, size_bytes);
    Append(unit, 0x010101, 3);
  }
  Append(unit, 1, 1);                       // flag
  unit->insert(unit->end(), {0x80, 0x7f});  // sdata
  Append(unit, 0, 4);                       // strp
  unit->insert(unit->end(), {0x80, 0x01});  // udata
  Append(unit, 0, 8);                       // ref_addr of DWARF 2
  Append(unit, 0, 1);
  Append(unit, 0, 2);
  Append(unit, 0, 4);
  Append(unit, 0, 8);
  unit->insert(unit->end(), {0x80, 0x01});  // ref_udata
  Append(unit, 0, 4);                       // sec_offset
  Append(unit, 2, 1);                       // exprloc
  Append(unit, 0x0101, 2);
  Append(unit, 0, 8);  // ref_sig8
}

void AppendFunction(Bytes* unit, const std::string& name, std::uint64_t address) {
  unit->push_back(1);
  Append(unit, name);
  Append(unit, address, 8);
}

Bytes Unit(const Bytes& body, std::uint16_t version = 2, std::uint32_t abbrev_offset = 0,
           int address_size = 8) {
  Bytes unit;
  Append(&unit, body.size() + 7, 4);
  Append(&unit, version, 2);
  Append(&unit, abbrev_offset, 4);
  Append(&unit, static_cast<std::uint64_t>(address_size), 1);
  unit.insert(unit.end(), body.begin(), body.end());
  return unit;
}

// "name@address" of each.
std::vector<std::string> NamesIn(const Bytes& info, const Bytes& abbrev) {
  std::vector<std::string> names;
  for (const DwarfName& name : ReadDwarfNames(info.data(), info.size(), abbrev.data(), abbrev.size())) {
    EXPECT_LT(name.text_offset, info.size());
    names.push_back(std::string(reinterpret_cast<const char*>(info.data()) + name.text_offset) + "@" +
                    std::to_string(name.address));
  }
  return names;
}

Bytes TwoFunctions() {
  Bytes body;
  AppendFunction(&body, "A:a", 100);
  AppendAllForms(&body);
  body.push_back(0);  // the end of its children
  body.push_back(3);
  Append(&body, 150, 8);
  AppendFunction(&body, "B:b", 200);
  return body;
}

TEST(DwarfNamesTest, FindsFunctionsAndPassesOverAllElse) {
  EXPECT_EQ(NamesIn(Unit(TwoFunctions()), Abbreviations()), (std::vector<std::string>{"A:a@100", "B:b@200"}));
}

TEST(DwarfNamesTest, ReadsEachUnitWithItsOwnAbbreviations) {
  Bytes abbrev = {7, 0x2e, 0, 0x11, 0x01, 0x03, 0x08, 0, 0, 0};  // address first
  const auto second = static_cast<std::uint32_t>(abbrev.size());
  const Bytes rest = Abbreviations();
  abbrev.insert(abbrev.end(), rest.begin(), rest.end());
  Bytes body = {7};
  Append(&body, 5, 8);
  Append(&body, "C:c");
  Bytes info = Unit(body, 4);
  const Bytes other = Unit(TwoFunctions(), 2, second);
  info.insert(info.end(), other.begin(), other.end());
  EXPECT_EQ(NamesIn(info, abbrev), (std::vector<std::string>{"C:c@5", "A:a@100", "B:b@200"}));
}

TEST(DwarfNamesTest, StopsAtWhatItDoesNotKnow) {
  Bytes body;
  AppendFunction(&body, "A:a", 100);
  body.push_back(4);
  Append(&body, "X:x");
  AppendFunction(&body, "B:b", 200);
  EXPECT_EQ(NamesIn(Unit(body), Abbreviations()), (std::vector<std::string>{"A:a@100"}));
  EXPECT_TRUE(NamesIn(Unit(TwoFunctions(), 5), Abbreviations()).empty());
  EXPECT_TRUE(NamesIn(Unit(TwoFunctions(), 2, 1000), Abbreviations()).empty());
  EXPECT_TRUE(NamesIn(Unit(TwoFunctions(), 2, 0, 4), Abbreviations()).empty());
  Bytes unknown = {9};
  EXPECT_TRUE(NamesIn(Unit(unknown), Abbreviations()).empty());
}

TEST(DwarfNamesTest, SurvivesEveryCutAndRandomDamage) {
  const Bytes info = Unit(TwoFunctions());
  const Bytes abbrev = Abbreviations();
  for (std::size_t size = 0; size < info.size(); ++size) {
    const Bytes cut(info.begin(), info.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_TRUE(NamesIn(cut, abbrev).empty());  // the unit is not whole
  }
  for (std::size_t size = 0; size < abbrev.size(); ++size) {
    NamesIn(info, Bytes(abbrev.begin(), abbrev.begin() + static_cast<std::ptrdiff_t>(size)));
  }
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    Bytes bad_info = info;
    Bytes bad_abbrev = abbrev;
    bad_info[random() % bad_info.size()] = static_cast<std::uint8_t>(random());
    bad_abbrev[random() % bad_abbrev.size()] = static_cast<std::uint8_t>(random());
    NamesIn(bad_info, round % 2 == 0 ? abbrev : bad_abbrev);
  }
}

}  // namespace
}  // namespace stackpipe
