// SPDX-License-Identifier: MIT
//
// Lanes: runs of sorted 16-bit numbers, four in a word, and the question how many of them are not above a
// limit, answered without a branch that depends on them. It is how a lookup searches the lines of a cell.
// Each number is kept with its highest bit flipped, so that the processor's comparison, which is of signed
// numbers, orders them. AS-safe; loads acquire.
#ifndef STACKPIPE_CODE_MAP_LANES_H_
#define STACKPIPE_CODE_MAP_LANES_H_

#include <bit>
#include <cstdint>

#include "code_map/atomic_word.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define STACKPIPE_LANES_IN_WORDS 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || !defined(__SSE2__)
#define STACKPIPE_LANES_IN_WORDS 1
#endif

#ifndef STACKPIPE_LANES_IN_WORDS
#include <emmintrin.h>
#endif

namespace stackpipe::internal {

inline constexpr std::uint64_t kUnusedLanes = 0x7fff'7fff'7fff'7fff;  // 0xffff each

// The writer's view of one lane.
inline std::uint64_t WithLane(std::uint64_t word, unsigned lane, std::uint32_t number) noexcept {
  const unsigned shift = 16 * (lane & 3);
  return (word & ~(std::uint64_t{0xffff} << shift)) | std::uint64_t{number ^ 0x8000} << shift;
}

#ifdef STACKPIPE_LANES_IN_WORDS

// For all processors, and for ThreadSanitizer, which cannot see into the other one.
struct LaneLimit {
  explicit LaneLimit(std::uint32_t limit) : words((std::uint64_t{limit} | 0x10000) * 0x1'0000'0001) {}
  std::uint64_t words;
};

inline std::uint32_t LaneOf(const AtomicWord* words, std::uint32_t lane) noexcept {
  return (words[lane / 4].Load(std::memory_order_acquire) >> (16 * (lane & 3)) & 0xffff) ^ 0x8000;
}

class LaneCounter {
 public:
  // Counts in words[kBegin] to words[kEnd - 1]; both are even, `words` is a multiple of 16 bytes.
  template <unsigned kBegin, unsigned kEnd>
  void Add(const AtomicWord* words, LaneLimit limit) noexcept {
    for (unsigned i = kBegin; i < kEnd; ++i) {
      const std::uint64_t word = words[i].Load(std::memory_order_acquire) ^ 0x8000'8000'8000'8000;
      // In 32 bits each: limit + 0x10000 - number has bit 16 exactly if the number is not above the limit.
      constexpr std::uint64_t kNumbers = 0x0000'ffff'0000'ffff, kOnes = 0x0000'0001'0000'0001;
      counts_ += (limit.words - (word & kNumbers)) >> 16 & kOnes;
      counts_ += (limit.words - (word >> 16 & kNumbers)) >> 16 & kOnes;
    }
  }
  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(counts_ + (counts_ >> 32)); }

 private:
  std::uint64_t counts_ = 0;
};

// Of the eight numbers in two words.
inline std::uint32_t NotAbove(const AtomicWord* words, LaneLimit limit) noexcept {
  LaneCounter counter;
  counter.Add<0, 2>(words, limit);
  return counter.count();
}

#else

// SSE2, which each x86-64 has. The loads are of 16 bytes: the processor loads each aligned half of them at
// once, and loads in order, so they are what two acquire loads are. The compiler is told by `volatile` and
// "memory".
struct LaneLimit {
  explicit LaneLimit(std::uint32_t limit) : words(_mm_set1_epi16(static_cast<short>(limit ^ 0x8000))) {}
  __m128i words;
};

inline std::uint32_t LaneOf(const AtomicWord* words, std::uint32_t lane) noexcept {
  std::uint32_t number;
  asm volatile("movzwl (%1, %2, 2), %0" : "=r"(number) : "r"(words), "r"(std::uint64_t{lane}) : "memory");
  return number ^ 0x8000;
}

// -1 in each lane of two words that is above the limit.
inline __m128i AboveIn(const AtomicWord* words, LaneLimit limit) noexcept {
  __m128i numbers;
  asm volatile("movdqa %1, %0" : "=x"(numbers) : "m"(*reinterpret_cast<const __m128i*>(words)) : "memory");
  return _mm_cmpgt_epi16(numbers, limit.words);
}

class LaneCounter {
 public:
  template <unsigned kBegin, unsigned kEnd>
  void Add(const AtomicWord* words, LaneLimit limit) noexcept {
#pragma GCC unroll 4
    for (unsigned i = kBegin; i < kEnd; i += 2) above_ = _mm_sub_epi16(above_, AboveIn(words + i, limit));
    lanes_ += (kEnd - kBegin) * 4;
  }
  std::uint32_t count() const noexcept {
    const __m128i sums = _mm_sad_epu8(above_, _mm_setzero_si128());  // each lane is small
    return lanes_ - static_cast<std::uint32_t>(_mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4));
  }

 private:
  __m128i above_ = _mm_setzero_si128();
  std::uint32_t lanes_ = 0;
};

inline std::uint32_t NotAbove(const AtomicWord* words, LaneLimit limit) noexcept {
  // They are sorted: the first that is above ends those that are not.
  const auto above = static_cast<std::uint32_t>(_mm_movemask_epi8(AboveIn(words, limit)));
  return static_cast<std::uint32_t>(std::countr_zero(above | 0x10000)) / 2;
}

#endif

}  // namespace stackpipe::internal

#endif  // STACKPIPE_CODE_MAP_LANES_H_
