// SPDX-License-Identifier: MIT
//
// The last step of building a profile: from trees of symbols to trees of frames.
#ifndef STACKPIPE_PROFILE_MERGE_H_
#define STACKPIPE_PROFILE_MERGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "profile/call_tree.h"
#include "profile/profile.h"

namespace stackpipe {

// Uses up `tree`: fills the nodes of `profile`, and the costs and node ranges of its threads, from it.
// `frame_of` gives the frame of each symbol: siblings that turned out to be the same function become one
// node. `roots[i]` is the root of profile->threads[i]; afterwards the threads are sorted, heaviest first.
void MergeTrees(CallTree tree, std::span<const std::uint32_t> frame_of, std::span<const std::uint32_t> roots,
                Profile* profile);

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_MERGE_H_
