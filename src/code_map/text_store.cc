// SPDX-License-Identifier: MIT
#include "code_map/text_store.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "code_map/atomic_word.h"

namespace stackpipe::internal {

namespace {

// Only for a table in memory: no promise that it stays the same.
std::uint32_t HashOf(std::string_view text) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;
  std::uint64_t hash = text.size() * kOdd;
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    hash = (std::rotl(hash, 23) ^ word) * kOdd;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, at, left);
  hash = (std::rotl(hash, 23) ^ word) * kOdd;
  return static_cast<std::uint32_t>((hash ^ hash >> 29) * kOdd >> 32);
}

// Into memory that a reader of what was there may still look at.
void CopyInto(void* to, std::string_view text) {
  auto* const words = static_cast<std::uint64_t*>(to);
  for (std::size_t at = 0; at < text.size(); at += sizeof *words) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    Release(&words[at / sizeof word], word);
  }
}

}  // namespace

TextStore::~TextStore() {
  for (std::uint32_t i = 1; i <= chunk_count_; ++i) FreePages(chunks_[i].memory, chunks_[i].bytes);
  FreePages(chunks_, kChunksMax * sizeof(Chunk));
}

unsigned TextStore::ClassOf(std::size_t units) {
  if (units <= kExactClasses) return static_cast<unsigned>(units) - 1;
  return kExactClasses + static_cast<unsigned>(std::bit_width(units - 1)) - 7;  // 65..128 units: the first
}

std::size_t TextStore::UnitsOf(unsigned size_class) {
  return size_class < kExactClasses ? size_class + 1 : std::size_t{128} << (size_class - kExactClasses);
}

bool TextStore::Intern(std::string_view text, std::uint32_t* handle) noexcept {
  *handle = 0;
  if (text.empty()) return true;
  if (text.size() > UINT32_MAX) return false;
  const std::uint32_t hash = HashOf(text);
  const std::uint32_t known = index_.Find(hash, [&](std::uint32_t value) { return View(value) == text; });
  if (known != 0) {
    ++At(known)->held;
    *handle = known;
    return true;
  }
  if (!index_.Reserve(1)) return false;
  const std::uint32_t fresh = Allocate(text.size());
  if (fresh == 0) return false;
  Text* head = At(fresh);
  head->hash = hash;
  head->held = 1;
  internal::Release(&head->length, static_cast<std::uint32_t>(text.size()));
  CopyInto(head + 1, text);
  index_.Insert(hash, fresh);
  *handle = fresh;
  return true;
}

bool TextStore::Release(std::uint32_t handle) noexcept {
  if (handle == 0) return false;
  Text* head = At(handle);
  if (--head->held != 0) return false;
  index_.Erase(head->hash, handle);
  Free(handle);
  return true;
}

bool TextStore::HeldOnce(std::uint32_t handle) const noexcept { return handle != 0 && At(handle)->held == 1; }

std::string_view TextStore::View(std::uint32_t handle) const noexcept {
  const Chunk* const chunks = Acquire(chunks_);
  if (handle == 0 || chunks == nullptr) return {};
  const std::byte* const memory = Acquire(chunks[handle >> 16].memory);
  if (memory == nullptr) return {};
  const auto* const head = reinterpret_cast<const Text*>(memory + (handle & 0xffff) * kUnit);
  return {reinterpret_cast<const char*>(head + 1), Acquire(head->length)};
}

void TextStore::Hold(std::uint32_t handle) noexcept {
  if (handle != 0) ++At(handle)->held;
}

std::uint32_t TextStore::NewChunk(std::size_t bytes) noexcept {
  if (chunks_ == nullptr) {
    auto* const chunks = static_cast<Chunk*>(AllocatePages(kChunksMax * sizeof(Chunk)));
    if (chunks == nullptr) return 0;
    internal::Release(&chunks_, chunks);
  }
  if (chunk_count_ + 1 == kChunksMax) return 0;
  auto* const memory = static_cast<std::byte*>(AllocatePages(bytes));
  if (memory == nullptr) return 0;
  chunks_[++chunk_count_].bytes = bytes;
  internal::Release(&chunks_[chunk_count_].memory, memory);
  return chunk_count_;
}

std::uint32_t TextStore::Allocate(std::size_t length) noexcept {
  if (AllocationFailsForTest()) return 0;
  const std::size_t units = UnitsFor(length);
  if (units > kChunkUnits) return AllocateLarge(units * kUnit);
  const unsigned size_class = ClassOf(units);
  const std::uint32_t reused = free_[size_class];
  if (reused != 0) {
    free_[size_class] = At(reused)->next_free;
    return reused;
  }
  const std::size_t size = UnitsOf(size_class);
  if (fill_used_ + size > kChunkUnits) {
    const std::uint32_t chunk = NewChunk(kChunkUnits * kUnit);
    if (chunk == 0) return 0;
    fill_chunk_ = chunk;
    fill_used_ = 0;
  }
  const auto handle = static_cast<std::uint32_t>(fill_chunk_ << 16 | fill_used_);
  fill_used_ += size;
  bytes_ += size * kUnit;
  return handle;
}

// The first free chunk that is large enough and not twice as large, or a new one.
std::uint32_t TextStore::AllocateLarge(std::size_t bytes) noexcept {
  std::uint32_t* link = &first_free_chunk_;
  while (*link != 0 && (chunks_[*link].bytes < bytes || chunks_[*link].bytes > 2 * bytes)) {
    link = &chunks_[*link].next_free;
  }
  std::uint32_t chunk = *link;
  if (chunk != 0) {
    *link = chunks_[chunk].next_free;
  } else {
    chunk = NewChunk(bytes);
  }
  if (chunk == 0) return 0;
  bytes_ += chunks_[chunk].bytes;
  return chunk << 16;
}

void TextStore::Free(std::uint32_t handle) noexcept {
  Text* head = At(handle);
  const std::size_t units = UnitsFor(head->length);
  if (units > kChunkUnits) {
    Chunk* const chunk = &chunks_[handle >> 16];
    bytes_ -= chunk->bytes;
    DropPages(chunk->memory, chunk->bytes);
    chunk->next_free = first_free_chunk_;
    first_free_chunk_ = handle >> 16;
    return;
  }
  const unsigned size_class = ClassOf(units);
  head->next_free = free_[size_class];
  free_[size_class] = handle;
}

}  // namespace stackpipe::internal
