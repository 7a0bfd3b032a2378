// SPDX-License-Identifier: MIT
#include "nettrace/metadata.h"

#include <gtest/gtest.h>

#include "nettrace/collected_events.h"

namespace stackpipe::nettrace {
namespace {

Assembler Fixed4(std::string_view name = "Name") {
  Assembler out;
  out.Put(7).Utf16("Provider").Put(70'000).Utf16(name).Put(std::uint64_t{0xf000'0000'0001}).Put(3).Put(5);
  return out;
}

TEST(MetadataTest, FixedPartOfVersion4) {
  const Bytes payload = Fixed4().Put(0).bytes();
  EventType type;
  ASSERT_TRUE(ParseMetadata4(payload, &type));
  EXPECT_EQ(type.id, 7u);
  EXPECT_EQ(type.provider, "Provider");
  EXPECT_EQ(type.event_id, 70'000);
  EXPECT_EQ(type.name, "Name");
  EXPECT_EQ(type.keywords, 0xf000'0000'0001u);
  EXPECT_EQ(type.version, 3);
  EXPECT_EQ(type.level, 5);
  EXPECT_EQ(type.opcode, 0);
  EXPECT_TRUE(type.fields.empty());
  for (std::size_t size = 0; size < payload.size() - 4; ++size) {
    EXPECT_FALSE(ParseMetadata4(std::span(payload).first(size), &type)) << size;
  }
}

TEST(MetadataTest, FieldsOfVersion4) {
  Assembler payload = Fixed4();
  payload.Put(3).Put(9).Utf16("a");
  payload.Put(1).Put(2).Put(18).Utf16("inner").Put(14).Utf16("other").Utf16("b");
  payload.Put(18).Utf16("c");
  EventType type;
  ASSERT_TRUE(ParseMetadata4(payload.bytes(), &type));
  ASSERT_EQ(type.fields.size(), 3u);
  EXPECT_EQ(type.fields[0].name, "a");
  EXPECT_EQ(type.fields[0].type, 9);
  EXPECT_EQ(type.fields[1].name, "b");
  ASSERT_EQ(type.fields[1].fields.size(), 2u);
  EXPECT_EQ(type.fields[1].fields[1].name, "other");
  EXPECT_EQ(type.fields[2].type, 18);
}

TEST(MetadataTest, BrokenFieldsAreLeftOut) {
  EventType type;
  ASSERT_TRUE(ParseMetadata4(Fixed4().Put(2).Put(9).Utf16("a").Put(9).bytes(), &type));
  EXPECT_TRUE(type.fields.empty());
  EXPECT_EQ(type.name, "Name");
}

TEST(MetadataTest, FieldsMayBeNestedButNotWithoutEnd) {
  const auto nested = [](int depth) {
    Assembler payload = Fixed4();
    for (int i = 0; i < depth; ++i) payload.Put(1).Put(1);  // one field; it is an object
    payload.Put(1).Put(9).Utf16("innermost");
    for (int i = 0; i < depth; ++i) payload.Utf16("object");
    EventType type;
    EXPECT_TRUE(ParseMetadata4(payload.bytes(), &type));
    return type.fields.size();
  };
  EXPECT_EQ(nested(1), 1u);
  EXPECT_EQ(nested(10), 1u);
  EXPECT_EQ(nested(20), 0u);
}

TEST(MetadataTest, TagsOfVersion4) {
  Assembler payload = Fixed4("WorkStart");
  payload.Put(0);
  payload.Put(3).Put(std::uint8_t{99}).Text("???");           // not known
  payload.Put(1).Put(std::uint8_t{1}).Put(std::uint8_t{33});  // opcode
  Assembler parameters;
  parameters.Put(2);
  parameters.Put(4 + 4 + 4).Utf16("x").Put(9);
  parameters.Put(4 + 4 + 4 + 4).Utf16("y").Put(19).Put(6);  // an array
  payload.Put(static_cast<std::int32_t>(parameters.bytes().size()))
      .Put(std::uint8_t{2})
      .Add(parameters.bytes());
  EventType type;
  ASSERT_TRUE(ParseMetadata4(payload.bytes(), &type));
  EXPECT_EQ(type.opcode, 33);
  ASSERT_EQ(type.fields.size(), 2u);
  EXPECT_EQ(type.fields[0].name, "x");
  EXPECT_EQ(type.fields[1].name, "y");
  EXPECT_EQ(type.fields[1].type, 19);
  EXPECT_EQ(type.fields[1].element_type, 6);
}

TEST(MetadataTest, OpcodeFromTheNameWithoutATag) {
  EventType type;
  ASSERT_TRUE(ParseMetadata4(Fixed4("WorkStart").Put(0).bytes(), &type));
  EXPECT_EQ(type.opcode, 1);
  ASSERT_TRUE(ParseMetadata4(Fixed4("WorkStop").Put(0).bytes(), &type));
  EXPECT_EQ(type.opcode, 2);
  ASSERT_TRUE(ParseMetadata4(Fixed4("Stopped").Put(0).bytes(), &type));
  EXPECT_EQ(type.opcode, 0);
}

TEST(MetadataTest, RowsOfVersion6) {
  const auto field = [](std::string_view name, const Bytes& field_type) {
    const Bytes row = Assembler().Utf8(name).Add(field_type).bytes();
    return Assembler().Put(static_cast<std::uint16_t>(row.size())).Add(row).bytes();
  };
  const Bytes inner = field("inner", Assembler().Put(std::uint8_t{18}).bytes());
  Assembler row;
  row.VarUint(300).Utf8("Provider").VarUint(12).Utf8("Name").Put(std::uint16_t{4});
  row.Add(field("a", Assembler().Put(std::uint8_t{9}).bytes()));
  row.Add(field("b", Assembler().Put(std::uint8_t{19}).Put(std::uint8_t{6}).bytes()));
  row.Add(field("c", Assembler().Put(std::uint8_t{22}).Put(std::uint8_t{6}).Put(std::uint16_t{16}).bytes()));
  row.Add(field("d", Assembler().Put(std::uint8_t{1}).Put(std::uint16_t{1}).Add(inner).bytes()));
  Assembler options;
  options.Put(std::uint8_t{1}).Put(std::uint8_t{44});
  options.Put(std::uint8_t{3}).Put(std::uint64_t{0x55});
  options.Put(std::uint8_t{4}).Utf8("message").Put(std::uint8_t{5}).Utf8("description");
  options.Put(std::uint8_t{6}).Utf8("key").Utf8("value").Put(std::uint8_t{7}).Add(Bytes(16));
  options.Put(std::uint8_t{8}).Put(std::uint8_t{2}).Put(std::uint8_t{9}).Put(std::uint8_t{3});
  options.Put(std::uint8_t{88}).Put(std::uint8_t{1}).Put(std::uint8_t{1});  // not known: the rest is not read
  row.Put(static_cast<std::uint16_t>(options.bytes().size())).Add(options.bytes());
  EventType type;
  ASSERT_TRUE(ParseMetadata6(row.bytes(), &type));
  EXPECT_EQ(type.id, 300u);
  EXPECT_EQ(type.provider, "Provider");
  EXPECT_EQ(type.event_id, 12);
  EXPECT_EQ(type.name, "Name");
  EXPECT_EQ(type.opcode, 44);
  EXPECT_EQ(type.keywords, 0x55u);
  EXPECT_EQ(type.level, 2);
  EXPECT_EQ(type.version, 3);
  ASSERT_EQ(type.fields.size(), 4u);
  EXPECT_EQ(type.fields[1].element_type, 6);
  EXPECT_EQ(type.fields[2].type, 22);
  EXPECT_EQ(type.fields[2].element_type, 6);
  ASSERT_EQ(type.fields[3].fields.size(), 1u);
  EXPECT_EQ(type.fields[3].fields[0].name, "inner");
  for (std::size_t size = 0; size < row.bytes().size(); ++size) {
    EventType cut;
    const bool good = ParseMetadata6(std::span(row.bytes()).first(size), &cut);
    EXPECT_EQ(good, size >= 2 + 9 + 1 + 5) << size;
  }
}

}  // namespace
}  // namespace stackpipe::nettrace
