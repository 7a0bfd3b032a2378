// SPDX-License-Identifier: MIT
//
// AotImages: the images of precompiled code in this process. An image is one range in the code map, with a
// sorted method table; a method is decoded when a sample meets it first, in the handler.
//
//     Result<CodeId> image =
//         images.RegisterImage({.start = begin, .size = size, .source = std::move(source)});
//
//     AotHit hit;                          // a handler:
//     images.Decode(pc, &hit);             // which method is at pc now, and its range
//
//     images.TakeSeen(&hits);              // the collector: what handlers met first
//     code.LookupAt(pc, epoch, &range);    // which image was there then
//     images.Find(range.id, pc, &hit);     // which method of it
//     images.Describe(hit.image, hit.method, &name);
//
//     images.UnregisterImage(image.value());  // before the image is unmapped
//
// An image keeps its CodeId for itself: one that is closed and opened again, at the same address or another,
// is another image. Which of several that followed one another at an address a sample belongs to is decided
// by the code map, from the sample's epoch. A closed image is still known to the collector until Reclaim is
// told that no sample can need it.
//
// docs/design/aot.md describes the structures and walks the races.
#ifndef STACKPIPE_AOT_AOT_IMAGES_H_
#define STACKPIPE_AOT_AOT_IMAGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aot/aot_source.h"
#include "code_map/fork_safe_lock.h"
#include "stackpipe/code_map.h"
#include "stackpipe/result.h"

namespace stackpipe {

// The file that an image came from, as a trace names it.
struct AotOrigin {
  std::string path;                    // empty = none
  std::vector<std::uint8_t> build_id;  // empty = none
  std::uintptr_t base = 0;             // where the file's address 0 lies
};

struct AotImageRegistration {
  std::uintptr_t start = 0;
  std::size_t size = 0;  // below 4 GB
  std::unique_ptr<AotSource> source;
  std::uint64_t module_id = 0;  // as in CodeRegistration
  std::uint64_t owner = 0;      // as in CodeRegistration
  std::string_view name = {};   // of the image, for the code map; copied
  AotOrigin origin = {};
};

// A method, copied out: it stays valid whatever happens to its image.
struct AotHit {
  CodeId image = 0;
  std::uint32_t method = 0;  // its index in the image's table
  CodeKind kind = CodeKind::kUnknown;
  std::uintptr_t start = 0;
  std::size_t size = 0;
};

enum class AotResult : std::uint8_t {
  kNoImage,   // no image holds the pc
  kNoMethod,  // one does (AotHit::image), but no method of it: padding, data, a stub that nobody lists
  kFound,
};

struct AotImagesOptions {
  // At most so many decoded methods are kept of each image (20 bytes each).
  std::uint32_t cached_methods_max = 8192;
};

struct AotStats {
  std::uint64_t uncached = 0;      // decodes that found the arena of their image full
  std::size_t cached_methods = 0;  // of all images that are known
  std::size_t cache_bytes = 0;     // tables and items in use
};

class AotImages {
 public:
  // `code` must outlive this.
  explicit AotImages(CodeMap& code, const AotImagesOptions& options = {});
  // No handler may be in Decode any more. Images that are still registered stay in the code map.
  ~AotImages();
  AotImages(const AotImages&) = delete;
  AotImages& operator=(const AotImages&) = delete;

  // Registers an image, in the code map too, before its code runs. Reads the method table once, to see that
  // it is sorted; decodes and names nothing. Any thread, not for handlers, and not from a CodeRetiredVisitor.
  // Errors: those of CodeMap::Register; kInvalidArgument (the table is empty, not sorted, or passes the end),
  // kLimit (4 GB), kOutOfMemory. After an error nothing is changed.
  Result<CodeId> RegisterImage(AotImageRegistration registration);

  // Ends an image: call it before the image is unmapped. Samples that were taken before still resolve. Never
  // fails for want of memory. Any thread, not for handlers. Errors: kNotFound (no such image, or ended
  // before).
  Status UnregisterImage(CodeId image);

  // Finds the method that owns `pc` now, and notes that it was seen. `*out` is set unless no image holds the
  // pc. AS-safe: no lock, no allocation, errno kept; any thread. Wait-free: log2 of the number of images,
  // log2 of the number of the image's methods, at most 32 items of a bucket, one AotSource::Decode, and at
  // most 130 attempts to exchange a word.
  AotResult Decode(std::uintptr_t pc, AotHit* out) const noexcept {
    const Snapshot* snapshot = snapshot_.load();
    return snapshot == nullptr ? AotResult::kNoImage : DecodeIn(*snapshot, pc, out);
  }

  // The functions below are for one thread, the collector's.

  // Appends the methods that were decoded for the first time since the last call, in the order of their first
  // sight. To be called after samples were taken from the rings and before they are written.
  void TakeSeen(std::vector<AotHit>* seen);

  // As Decode, for an image that is known, closed or not; the method is not noted.
  AotResult Find(CodeId image, std::uintptr_t pc, AotHit* out) const;

  // Tells the range of an image that is known, and where it came from. False: unknown image.
  bool DescribeImage(CodeId image, AotHit* range, AotOrigin* origin) const;

  // Names a method that is known. False: unknown image or method.
  bool Describe(CodeId image, std::uint32_t method, AotName* out) const;

  // Frees what was unpublished and forgets closed images. `quiescent` tells that no handler that began before
  // the previous Reclaim returned is still running. No sample that is still to be resolved carries an epoch
  // before `oldest_needed`.
  void Reclaim(bool quiescent, CodeEpoch oldest_needed);

  // Images that are known, closed ones too. Any thread, not for handlers.
  std::size_t image_count() const;
  AotStats stats() const;

 private:
  struct Image;
  struct Snapshot;
  struct Known;
  struct Entry;

  AotResult DecodeIn(const Snapshot& snapshot, std::uintptr_t pc, AotHit* out) const noexcept;
  Image* FindKnown(CodeId image) const;
  void Publish(std::unique_ptr<Snapshot> snapshot);
  void Prune();

  CodeMap& code_;
  const AotImagesOptions options_;

  // Guards all that follows, but not what handlers do. A child of fork finds it free; each change below is
  // therefore made by one store, of a pointer to something complete, so that the child finds the state before
  // or after it.
  mutable internal::ForkSafeLock lock_;

  // The images that handlers can find; null: none. Invariant: what this points to, and the images in it, are
  // constant but for their caches and `closed`, do not overlap, and are freed only by a Reclaim(true) which
  // comes after a Reclaim that came after the snapshot was replaced, or by the destructor. Pairs:
  // RegisterImage and Prune store, Decode loads, once. Sequentially consistent: a handler counts itself
  // before it loads this, and a grace period stores this before it looks at the count.
  std::atomic<const Snapshot*> snapshot_{nullptr};
  static_assert(std::atomic<const Snapshot*>::is_always_lock_free);

  // All images, closed ones too, by id. Null: none.
  std::atomic<const Known*> known_{nullptr};
  // Snapshots that were replaced: since the last Reclaim, and before it.
  std::atomic<const Snapshot*> fresh_{nullptr};
  std::atomic<const Snapshot*> waiting_{nullptr};
  std::uint64_t next_serial_ = 1;   // of snapshots
  std::uint64_t freed_serial_ = 0;  // snapshots up to this one are gone
  bool has_closed_ = false;         // the present snapshot has images that are closed

  // Written by handlers, apart from what they read.
  alignas(64) mutable std::atomic<std::uint32_t> order_{
      0};  // counts first sights; only its own order matters
  mutable std::atomic<std::uint64_t> uncached_{0};
};

}  // namespace stackpipe

#endif  // STACKPIPE_AOT_AOT_IMAGES_H_
