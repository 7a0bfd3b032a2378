// SPDX-License-Identifier: MIT
//
// CallTree: the call trees of all threads while a trace is read, as one growing array of nodes.
//
// Not thread-safe.
#ifndef STACKPIPE_PROFILE_CALL_TREE_H_
#define STACKPIPE_PROFILE_CALL_TREE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "profile/flat_map.h"
#include "profile/profile.h"

namespace stackpipe {

// What a node stands for; given out by Symbolizer.
using SymbolId = std::uint32_t;
inline constexpr SymbolId kNoSymbol = ~SymbolId{0};

class CallTree {
 public:
  using NodeId = std::uint32_t;
  struct Node {
    NodeId parent;  // a root is its own parent; otherwise smaller than the node's own id
    SymbolId symbol;
    Cost self;
  };
  // The nodes of the last stack, root first: consecutive stacks of a thread mostly share their outer frames.
  using Path = std::vector<NodeId>;

  NodeId AddRoot();

  // Finds or makes the node that a stack leads to and leaves its path in `*path`, which must be the path of
  // an earlier stack of the same root, or empty. `stack` is root first and does not hold the root.
  NodeId Walk(NodeId root, std::span<const SymbolId> stack, Path* path);

  void Charge(NodeId node, const Cost& cost) { nodes_[node].self += cost; }
  std::span<const Node> nodes() const { return nodes_; }
  // Frees what only Walk needs. Walk must not be called afterwards.
  void Freeze() { children_ = {}; }

 private:
  NodeId Child(NodeId parent, SymbolId symbol);

  std::vector<Node> nodes_;
  FlatMap<NodeId>
      children_;  // parent << 32 | symbol; kNoSymbol is no child, so FlatMap::kNoKey does not occur
};

}  // namespace stackpipe

#endif  // STACKPIPE_PROFILE_CALL_TREE_H_
