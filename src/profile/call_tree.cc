// SPDX-License-Identifier: MIT
#include "profile/call_tree.h"

namespace stackpipe {

CallTree::NodeId CallTree::AddRoot() {
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back({.parent = id, .symbol = kNoSymbol, .self = {}});
  return id;
}

CallTree::NodeId CallTree::Child(NodeId parent, SymbolId symbol) {
  const auto next = static_cast<NodeId>(nodes_.size());
  const auto [child, is_new] = children_.TryEmplace(std::uint64_t{parent} << 32 | symbol, next);
  if (is_new) nodes_.push_back({.parent = parent, .symbol = symbol, .self = {}});
  return *child;
}

CallTree::NodeId CallTree::Walk(NodeId root, std::span<const SymbolId> stack, Path* path) {
  std::size_t shared = 0;
  while (shared < stack.size() && shared < path->size() && nodes_[(*path)[shared]].symbol == stack[shared]) {
    ++shared;
  }
  path->resize(shared);
  NodeId node = shared == 0 ? root : path->back();
  for (const SymbolId symbol : stack.subspan(shared)) {
    node = Child(node, symbol);
    path->push_back(node);
  }
  return node;
}

}  // namespace stackpipe
