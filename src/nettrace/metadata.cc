// SPDX-License-Identifier: MIT
#include "nettrace/metadata.h"

#include <string_view>
#include <utility>

#include "nettrace/byte_reader.h"
#include "nettrace/format.h"

namespace stackpipe::nettrace {

namespace {

// Objects in objects, arrays of arrays: no real type comes near.
constexpr int kDepthMax = 16;

// What the name says where no opcode is given.
std::int32_t OpcodeFromName(std::string_view name) {
  if (name.ends_with("Start")) return 1;
  if (name.ends_with("Stop")) return 2;
  return 0;
}

// Version 4: a count, and for each field its type, for objects their fields, then its name.
bool TakeFields4(ByteReader* in, int depth, std::vector<EventField>* fields) {
  const auto count = in->Take<std::uint32_t>();
  if (depth > kDepthMax) return false;
  for (std::uint32_t i = 0; i < count && !in->failed(); ++i) {
    EventField field;
    field.type = in->Take<std::int32_t>();
    if (field.type == format::kTypeObject && !TakeFields4(in, depth + 1, &field.fields)) return false;
    field.name = in->TakeUtf16Text();
    fields->push_back(std::move(field));
  }
  return !in->failed();
}

// The newer layout: for each field its size, then name and type; arrays have an element type, objects have
// fields.
bool TakeParameters4(ByteReader* in, int depth, std::vector<EventField>* fields) {
  const auto count = in->Take<std::uint32_t>();
  if (depth > kDepthMax) return false;
  for (std::uint32_t i = 0; i < count && !in->failed(); ++i) {
    const auto size = in->Take<std::uint32_t>();  // with itself
    if (size < sizeof size) return false;
    ByteReader row(in->TakeBytes(size - sizeof size));
    EventField field;
    field.name = row.TakeUtf16Text();
    field.type = row.Take<std::int32_t>();
    int type = field.type;
    if (type == format::kTypeArray) type = field.element_type = row.Take<std::int32_t>();
    if (type == format::kTypeObject && !TakeParameters4(&row, depth + 1, &field.fields)) return false;
    if (row.failed()) return false;
    fields->push_back(std::move(field));
  }
  return !in->failed();
}

// Each tag has a size, so those that are not known are skipped.
void TakeTags4(ByteReader* in, EventType* type) {
  while (in->left() > 0) {
    const auto size = in->Take<std::uint32_t>();
    const auto tag = in->Take<std::uint8_t>();
    ByteReader data(in->TakeBytes(size));
    if (in->failed()) return;
    if (tag == format::kTagOpcode && data.left() > 0) {
      type->opcode = data.Take<std::uint8_t>();
    } else if (tag == format::kTagParameters) {
      std::vector<EventField> fields;
      if (TakeParameters4(&data, 0, &fields)) type->fields = std::move(fields);
    }
  }
}

bool TakeFields6(ByteReader* in, int depth, std::vector<EventField>* fields);

// A type code and what belongs to it. For an array the fields are those of its elements.
bool TakeType6(ByteReader* in, int depth, int* code, int* element, std::vector<EventField>* fields) {
  if (depth > kDepthMax) return false;
  *code = in->Take<std::uint8_t>();
  switch (*code) {
    case format::kTypeObject:
      return TakeFields6(in, depth + 1, fields);
    case format::kTypeArray:
    case format::kTypeFixedLengthArray:
    case format::kTypeRelLoc:
    case format::kTypeDataLoc: {
      int element_of_element = 0;
      if (!TakeType6(in, depth + 1, element, &element_of_element, fields)) return false;
      if (*code == format::kTypeFixedLengthArray) in->Take<std::uint16_t>();
      break;
    }
    default:
      break;
  }
  return !in->failed();
}

bool TakeFields6(ByteReader* in, int depth, std::vector<EventField>* fields) {
  const auto count = in->Take<std::uint16_t>();
  for (unsigned i = 0; i < count && !in->failed(); ++i) {
    ByteReader row(in->TakeBytes(in->Take<std::uint16_t>()));
    EventField field;
    field.name = row.TakeUtf8Text();
    if (!TakeType6(&row, depth, &field.type, &field.element_type, &field.fields)) return false;
    fields->push_back(std::move(field));
  }
  return !in->failed();
}

void TakeOptions6(ByteReader* in, EventType* type) {
  enum : std::uint8_t {
    kOpcode = 1,
    kKeywords = 3,
    kMessage,
    kDescription,
    kKeyValue,
    kGuid,
    kLevel,
    kVersion
  };
  while (in->left() > 0) {
    switch (in->Take<std::uint8_t>()) {
      case kOpcode:
        type->opcode = in->Take<std::uint8_t>();
        break;
      case kKeywords:
        type->keywords = in->Take<std::uint64_t>();
        break;
      case kMessage:
      case kDescription:
        in->TakeUtf8Text();
        break;
      case kKeyValue:
        in->TakeUtf8Text();
        in->TakeUtf8Text();
        break;
      case kGuid:
        in->TakeBytes(16);
        break;
      case kLevel:
        type->level = in->Take<std::uint8_t>();
        break;
      case kVersion:
        type->version = in->Take<std::uint8_t>();
        break;
      default:
        return;  // without a size there is no way past it
    }
  }
}

}  // namespace

bool ParseMetadata4(std::span<const std::byte> payload, EventType* type) {
  ByteReader in(payload);
  type->id = in.Take<std::uint32_t>();
  type->provider = in.TakeUtf16Text();
  type->event_id = in.Take<std::int32_t>();
  type->name = in.TakeUtf16Text();
  type->keywords = in.Take<std::uint64_t>();
  type->version = in.Take<std::int32_t>();
  type->level = in.Take<std::int32_t>();
  if (in.failed()) return false;
  type->opcode = OpcodeFromName(type->name);
  if (TakeFields4(&in, 0, &type->fields)) {
    TakeTags4(&in, type);
  } else {
    type->fields.clear();
  }
  return true;
}

bool ParseMetadata6(std::span<const std::byte> row, EventType* type) {
  ByteReader in(row);
  type->id = in.TakeVarUint<std::uint32_t>();
  type->provider = in.TakeUtf8Text();
  type->event_id = static_cast<std::int32_t>(in.TakeVarUint<std::uint32_t>());
  type->name = in.TakeUtf8Text();
  if (in.failed()) return false;
  type->opcode = OpcodeFromName(type->name);
  if (!TakeFields6(&in, 0, &type->fields)) {
    type->fields.clear();
    return true;  // where the options begin is not known
  }
  ByteReader options(in.TakeBytes(in.Take<std::uint16_t>()));
  TakeOptions6(&options, type);
  return true;
}

}  // namespace stackpipe::nettrace
