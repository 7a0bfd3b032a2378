// SPDX-License-Identifier: MIT
#include "code_map/description_store.h"

#include <algorithm>

#include "code_map/code_details.h"
#include "code_map/page_memory.h"

namespace stackpipe::internal {

bool DescriptionStore::Add(const Description& fresh, std::uint32_t* index) noexcept {
  if (AllocationFailsForTest() || !pool_.Reserve(pool_.count() + 1)) return false;
  *index = pool_.Allocate();
  Description& to = pool_[*index];
  internal::Release(&to.module_id, fresh.module_id);
  internal::Release(&to.owner, fresh.owner);
  internal::Release(&to.name_space, fresh.name_space);
  internal::Release(&to.name, fresh.name);
  internal::Release(&to.signature, fresh.signature);
  internal::Release(&to.source_file, fresh.source_file);
  internal::Release(&to.details, fresh.details);
  internal::Release(&to.source_line, fresh.source_line);
  internal::Release(&to.tier, fresh.tier);
  to.previous = 0;
  to.next = 0;
  internal::Release(&to.id, fresh.id);  // pairs with the loads in Read and Frames
  return true;
}

bool DescriptionStore::Create(const CodeRegistration& code, CodeId id, std::uint32_t* index) noexcept {
  *index = 0;
  const bool any = code.module_id != 0 || code.owner != 0 || code.source_line != 0 || code.tier != 0 ||
                   !code.name_space.empty() || !code.name.empty() || !code.signature.empty() ||
                   !code.source_file.empty() || !code.lines.empty() || !code.inlines.empty();
  if (!any) return true;
  Description fresh = {};
  fresh.module_id = code.module_id;
  fresh.owner = code.owner;
  fresh.source_line = code.source_line;
  fresh.tier = code.tier;
  fresh.id = id;
  if (InternTexts(code, &fresh) && InternDetails(code, &fresh.details) && Add(fresh, index)) return true;
  Release(fresh);
  return false;
}

bool DescriptionStore::Copy(std::uint32_t from, CodeId id, std::uint32_t* index) noexcept {
  *index = 0;
  if (from == 0) return true;
  Description fresh = pool_[from];
  fresh.id = id;
  if (!Add(fresh, index)) return false;
  for (const std::uint32_t text :
       {fresh.name_space, fresh.name, fresh.signature, fresh.source_file, fresh.details}) {
    texts_.Hold(text);
  }
  return true;
}

bool DescriptionStore::CopyFrom(const DescriptionStore& other, std::uint32_t from, CodeId id,
                                std::uint32_t* index) noexcept {
  *index = 0;
  if (from == 0) return true;
  const Description& was = other.pool_[from];
  Description fresh = {};
  fresh.module_id = was.module_id;
  fresh.owner = was.owner;
  fresh.source_line = was.source_line;
  fresh.tier = was.tier;
  fresh.id = id;
  CodeRegistration texts;
  texts.name_space = other.texts_.View(was.name_space);
  texts.name = other.texts_.View(was.name);
  texts.signature = other.texts_.View(was.signature);
  texts.source_file = other.texts_.View(was.source_file);
  if (InternTexts(texts, &fresh) && InternDetailsOf(other, from, &fresh.details) && Add(fresh, index)) {
    return true;
  }
  Release(fresh);
  return false;
}

void DescriptionStore::Destroy(std::uint32_t index) noexcept {
  if (index == 0) return;
  const Description description = pool_[index];
  internal::Release(&pool_[index].id, CodeId{0});  // pairs with the loads in Read and Frames
  Release(description);
  pool_.Free(index);
}

bool DescriptionStore::InternTexts(const CodeRegistration& code, Description* out) noexcept {
  return texts_.Intern(code.name_space, &out->name_space) && texts_.Intern(code.name, &out->name) &&
         texts_.Intern(code.signature, &out->signature) && texts_.Intern(code.source_file, &out->source_file);
}

void DescriptionStore::Release(const Description& description) noexcept {
  texts_.Release(description.name_space);
  texts_.Release(description.name);
  texts_.Release(description.signature);
  texts_.Release(description.source_file);
  if (texts_.HeldOnce(description.details)) ReleaseTextsIn(texts_.View(description.details));
  texts_.Release(description.details);
}

// --- details ---

bool DescriptionStore::InternDetails(const CodeRegistration& code, std::uint32_t* details) noexcept {
  if (code.lines.empty() && code.inlines.empty()) return true;
  DetailsWriter writer;
  if (!writer.Reserve(code.lines.size(), code.inlines.size())) return false;
  writer.PutCount(code.lines.size());
  for (const CodeLine& line : code.lines) writer.Put(line);
  writer.PutCount(code.inlines.size());
  for (const CodeInline& call : code.inlines) {
    InlineEntry entry{call.start, call.size, call.depth, call.call_line, {}};
    const bool done = texts_.Intern(call.name_space, &entry.texts[0]) &&
                      texts_.Intern(call.name, &entry.texts[1]) &&
                      texts_.Intern(call.source_file, &entry.texts[2]);
    writer.Put(entry);
    if (done) continue;
    ReleaseTextsIn(writer.bytes());
    return false;
  }
  return InternBytes(writer.bytes(), details);
}

bool DescriptionStore::InternDetailsOf(const DescriptionStore& other, std::uint32_t from,
                                       std::uint32_t* details) noexcept {
  const std::string_view bytes = other.texts_.View(other.pool_[from].details);
  if (bytes.empty()) return true;
  CodeLine line;
  InlineEntry entry;
  std::size_t lines = 0, inlines = 0;
  DetailsReader count(bytes);
  while (count.NextLine(&line)) ++lines;
  while (count.NextInline(&entry)) ++inlines;
  DetailsReader reader(bytes);
  DetailsWriter writer;
  if (!writer.Reserve(lines, inlines)) return false;
  writer.PutCount(lines);
  while (reader.NextLine(&line)) writer.Put(line);
  writer.PutCount(inlines);
  while (reader.NextInline(&entry)) {
    bool done = true;
    for (std::uint32_t& text : entry.texts) {
      const std::string_view view = other.texts_.View(text);
      text = 0;
      done = done && texts_.Intern(view, &text);
    }
    writer.Put(entry);
    if (done) continue;
    ReleaseTextsIn(writer.bytes());
    return false;
  }
  return InternBytes(writer.bytes(), details);
}

// The bytes hold their texts once, however many descriptions hold the bytes.
bool DescriptionStore::InternBytes(std::string_view bytes, std::uint32_t* details) noexcept {
  const bool done = texts_.Intern(bytes, details);
  if (!done || !texts_.HeldOnce(*details)) ReleaseTextsIn(bytes);
  return done;
}

void DescriptionStore::ReleaseTextsIn(std::string_view details) noexcept {
  DetailsReader reader(details);
  CodeLine line;
  InlineEntry entry;
  while (reader.NextLine(&line)) {
  }
  while (reader.NextInline(&entry)) {
    for (const std::uint32_t text : entry.texts) texts_.Release(text);
  }
}

// --- readers ---

bool DescriptionStore::Read(std::uint32_t index, CodeId id, CodeDescriptor* out) const noexcept {
  const Description* const description = pool_.At(index);
  if (description == nullptr || Acquire(description->id) != id) return false;
  out->module_id = Acquire(description->module_id);
  out->owner = Acquire(description->owner);
  out->name_space = texts_.View(Acquire(description->name_space));
  out->name = texts_.View(Acquire(description->name));
  out->signature = texts_.View(Acquire(description->signature));
  out->source_file = texts_.View(Acquire(description->source_file));
  out->source_line = Acquire(description->source_line);
  out->tier = static_cast<std::uint8_t>(Acquire(description->tier));
  return Acquire(description->id) == id;  // see Description::id
}

std::size_t DescriptionStore::Frames(std::uint32_t index, CodeId id, std::uint32_t offset, CodeFrame* frames,
                                     std::size_t max) const noexcept {
  CodeDescriptor code;
  if (max == 0 || !Read(index, id, &code)) return 0;
  DetailsReader reader(texts_.View(Acquire(pool_.At(index)->details)));
  CodeLine line;
  std::uint32_t innermost_line = code.source_line;
  while (reader.NextLine(&line)) {
    if (line.offset <= offset) innermost_line = line.line;
  }
  // The calls around the offset, from the outermost on. In preorder the one of a depth follows that around
  // it.
  InlineEntry around[kInlineDepthMax];
  std::uint32_t depth = 0;
  InlineEntry entry;
  while (reader.NextInline(&entry)) {
    if (entry.depth == depth && depth < kInlineDepthMax && offset - entry.start < entry.size) {
      around[depth++] = entry;
    }
  }
  std::size_t count = 0;
  std::uint32_t at_line = innermost_line;
  for (; depth > 0 && count < max; --depth) {
    const InlineEntry& call = around[depth - 1];
    frames[count++] = {texts_.View(call.texts[0]), texts_.View(call.texts[1]), texts_.View(call.texts[2]),
                       at_line};
    at_line = call.call_line;
  }
  if (count < max) frames[count++] = {code.name_space, code.name, code.source_file, at_line};
  return Acquire(pool_.At(index)->id) == id ? count : 0;
}

}  // namespace stackpipe::internal
