// SPDX-License-Identifier: MIT
//
// HandlerTables: the tables that handlers read while they walk, of native frames and of AOT images. It brings
// them up to date, and frees what was replaced once no handler can be reading it any more.
#ifndef STACKPIPE_SESSION_HANDLER_TABLES_H_
#define STACKPIPE_SESSION_HANDLER_TABLES_H_

#include <mutex>
#include <utility>

#include "aot/aot_images.h"
#include "sampler/sampler.h"
#include "unwind/native_unwinder.h"

namespace stackpipe {

class HandlerTables {
 public:
  HandlerTables(Sampler& sampler, NativeUnwinder& native, AotImages& images)
      : sampler_(sampler), native_(native), images_(images) {}

  // Brings the unwinder up to date with the objects that are loaded. Cheap where nothing changed. Any thread,
  // not in handlers.
  void Refresh() {
    const std::lock_guard lock(grace_mutex_);
    if (!native_.Stale()) return;
    objects_changed_ |= native_.Refresh(sampler_.GraceOver()).ok();
    sampler_.StartGrace(sampler_.Records());
  }

  // True if objects have come or gone since the last call. Collector thread.
  bool TakeObjectsChanged() {
    const std::lock_guard lock(grace_mutex_);
    return std::exchange(objects_changed_, false);
  }

  // Frees what was replaced of the images' tables, and forgets images that were gone at `oldest_needed`.
  // Collector thread, where images are looked up as well.
  void Reclaim(CodeEpoch oldest_needed) {
    const std::lock_guard lock(grace_mutex_);
    if (images_.image_count() == 0) return;
    images_.Reclaim(sampler_.GraceOver(), oldest_needed);
    sampler_.StartGrace(sampler_.Records());
  }

 private:
  Sampler& sampler_;
  NativeUnwinder& native_;
  AotImages& images_;

  // Guards objects_changed_ and the sampler's grace period. Invariant: the grace period that is under way
  // began after the last Refresh of the unwinder and the last Reclaim of the images. So once it is over, no
  // handler reads what either had replaced by then.
  std::mutex grace_mutex_;
  bool objects_changed_ = false;
};

}  // namespace stackpipe

#endif  // STACKPIPE_SESSION_HANDLER_TABLES_H_
