// SPDX-License-Identifier: MIT
#include "profile/merge.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "profile/flat_map.h"

namespace stackpipe {
namespace {

bool Heavier(const Cost& a, const Cost& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.samples > b.samples;
}

// Merged nodes in the order of their creation: a parent comes before its children.
std::vector<ProfileNode> MergeSiblings(const CallTree& tree, std::span<const std::uint32_t> frame_of,
                                       std::vector<std::uint32_t>* merged_of) {
  std::vector<ProfileNode> merged;
  FlatMap<std::uint32_t> children;  // parent << 32 | frame
  const auto raw = tree.nodes();
  merged.reserve(raw.size());
  merged_of->resize(raw.size());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const auto next = static_cast<std::uint32_t>(merged.size());
    std::uint32_t at = next;
    if (raw[i].symbol == kNoSymbol) {
      merged.push_back({.frame = kNoFrame, .parent = next});
    } else {
      const std::uint32_t parent = (*merged_of)[raw[i].parent];
      const std::uint32_t frame = frame_of[raw[i].symbol];
      const auto [child, is_new] = children.TryEmplace(std::uint64_t{parent} << 32 | frame, next);
      if (is_new) merged.push_back({.frame = frame, .parent = parent});
      at = *child;
    }
    merged[at].self += raw[i].self;
    (*merged_of)[i] = at;
  }
  for (ProfileNode& node : merged) node.total = node.self;
  for (std::size_t i = merged.size(); i-- > 0;) {
    if (merged[i].parent != i) merged[merged[i].parent].total += merged[i].total;
  }
  return merged;
}

}  // namespace

void MergeTrees(CallTree tree, std::span<const std::uint32_t> frame_of, std::span<const std::uint32_t> roots,
                Profile* profile) {
  std::vector<std::uint32_t> merged_of;
  const std::vector<ProfileNode> merged = MergeSiblings(tree, frame_of, &merged_of);
  tree = {};  // the largest thing here, and done with

  // The children of node i are children[first_child[i] .. first_child[i + 1]), the lightest first: the stack
  // below turns them round.
  std::vector<std::uint32_t> first_child(merged.size() + 1, 0);
  for (std::size_t i = 0; i < merged.size(); ++i) {
    if (merged[i].parent != i) ++first_child[merged[i].parent];
  }
  std::uint32_t children_before = 0;
  for (std::uint32_t& first : first_child) {
    children_before += first;
    first = children_before;  // for now, where they end
  }
  std::vector<std::uint32_t> children(children_before);
  for (std::size_t i = 0; i < merged.size(); ++i) {
    if (merged[i].parent != i) children[--first_child[merged[i].parent]] = static_cast<std::uint32_t>(i);
  }
  const auto children_of = [&](std::uint32_t node) {
    return std::span(children).subspan(first_child[node], first_child[node + 1] - first_child[node]);
  };
  for (std::uint32_t i = 0; i < merged.size(); ++i) {
    const auto siblings = children_of(i);
    std::sort(siblings.begin(), siblings.end(), [&](std::uint32_t one, std::uint32_t other) {
      if (Heavier(merged[one].total, merged[other].total)) return false;
      return Heavier(merged[other].total, merged[one].total) || merged[one].frame > merged[other].frame;
    });
  }

  std::vector<std::size_t> order(roots.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Cost& cost_a = merged[merged_of[roots[a]]].total;
    const Cost& cost_b = merged[merged_of[roots[b]]].total;
    if (Heavier(cost_a, cost_b)) return true;
    return !Heavier(cost_b, cost_a) && profile->threads[a].tid < profile->threads[b].tid;
  });

  std::vector<ProfileThread> threads;
  profile->nodes.reserve(merged.size());
  struct Pending {
    std::uint32_t node, parent;  // of `merged`; of the result
  };
  std::vector<Pending> stack;
  for (const std::size_t i : order) {
    ProfileThread& thread = threads.emplace_back(std::move(profile->threads[i]));
    thread.first_node = static_cast<std::uint32_t>(profile->nodes.size());
    stack.push_back({merged_of[roots[i]], thread.first_node});
    while (!stack.empty()) {
      const Pending next = stack.back();
      stack.pop_back();
      const auto at = static_cast<std::uint32_t>(profile->nodes.size());
      profile->nodes.push_back(merged[next.node]);
      profile->nodes.back().parent = next.parent;
      for (const std::uint32_t child : children_of(next.node)) stack.push_back({child, at});
    }
    thread.node_count = static_cast<std::uint32_t>(profile->nodes.size()) - thread.first_node;
    thread.cost = profile->nodes[thread.first_node].total;
    // Samples were counted as they came; weights are known only now.
    profile->cost.weight += thread.cost.weight;
    profile->cost.external += thread.cost.external;
  }
  profile->threads = std::move(threads);
}

}  // namespace stackpipe
