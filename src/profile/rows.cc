// SPDX-License-Identifier: MIT
#include "profile/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace stackpipe {
namespace {

// Adds up the nodes of all threads by the row that each frame belongs to.
void AddNodes(const Profile& profile, const std::vector<std::uint32_t>& row_of_frame,
              std::vector<ProfileRow>* rows) {
  std::vector<std::uint32_t> on_path(rows->size(),
                                     0);  // how often each row is on the path to the node at hand
  std::vector<std::uint32_t> path;        // nodes, the root of the thread first
  for (std::size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfileNode& node = profile.nodes[i];
    const bool is_root = node.frame == kNoFrame;
    // Preorder: leave everything that is not above this node.
    while (!path.empty() && (is_root || path.back() != node.parent)) {
      const std::uint32_t left = profile.nodes[path.back()].frame;
      if (left != kNoFrame) --on_path[row_of_frame[left]];
      path.pop_back();
    }
    path.push_back(static_cast<std::uint32_t>(i));
    if (is_root) continue;
    const std::uint32_t at = row_of_frame[node.frame];
    (*rows)[at].self += node.self;
    if (on_path[at]++ == 0) (*rows)[at].total += node.total;
  }
}

std::vector<ProfileRow> FunctionRows(const Profile& profile) {
  std::vector<ProfileRow> rows;
  std::vector<std::uint32_t> row_of_frame;
  std::map<std::tuple<std::string, std::string, CodeKind>, std::uint32_t> index;
  for (const ProfileFrame& frame : profile.frame_table) {
    const std::string& module = profile.modules[frame.module].name;
    const auto [at, is_new] =
        index.try_emplace({frame.name, module, frame.kind}, static_cast<std::uint32_t>(rows.size()));
    if (is_new) rows.push_back({.name = frame.name, .module = module, .kind = frame.kind});
    row_of_frame.push_back(at->second);
  }
  AddNodes(profile, row_of_frame, &rows);
  return rows;
}

std::vector<ProfileRow> ModuleRows(const Profile& profile) {
  std::vector<ProfileRow> rows;
  std::vector<std::uint32_t> row_of_frame;
  std::map<std::pair<std::string, bool>, std::uint32_t> index;  // marks apart from code of no known module
  for (const ProfileFrame& frame : profile.frame_table) {
    const std::string& module = profile.modules[frame.module].name;
    const std::string name = frame.pseudo ? frame.name : module.empty() ? "[unknown]" : module;
    const auto [at, is_new] =
        index.try_emplace({name, frame.pseudo}, static_cast<std::uint32_t>(rows.size()));
    if (is_new) rows.push_back({.name = name, .module = module});
    row_of_frame.push_back(at->second);
  }
  AddNodes(profile, row_of_frame, &rows);

  std::vector<std::map<CodeKind, std::uint64_t>> samples(rows.size());
  for (const ProfileNode& node : profile.nodes) {
    if (node.frame == kNoFrame) continue;
    samples[row_of_frame[node.frame]][profile.frame_table[node.frame].kind] += node.total.samples;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto most = std::max_element(samples[i].begin(), samples[i].end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != samples[i].end()) rows[i].kind = most->first;
  }
  return rows;
}

std::vector<ProfileRow> ThreadRows(const Profile& profile) {
  std::vector<ProfileRow> rows;
  for (const ProfileThread& thread : profile.threads) {
    rows.push_back({.name = thread.name, .tid = thread.tid, .self = thread.cost, .total = thread.cost});
  }
  return rows;
}

}  // namespace

std::string ThreadLabel(const std::string& name, std::uint64_t tid) {
  return name.empty() ? fmt::format("Thread {}", tid) : fmt::format("{} ({})", name, tid);
}

std::vector<ProfileRow> MakeRows(const Profile& profile, GroupBy by) {
  std::vector<ProfileRow> rows;
  switch (by) {
    case GroupBy::kFunction:
      rows = FunctionRows(profile);
      break;
    case GroupBy::kThread:
      rows = ThreadRows(profile);
      break;
    case GroupBy::kModule:
      rows = ModuleRows(profile);
      break;
  }
  std::sort(rows.begin(), rows.end(), [](const ProfileRow& a, const ProfileRow& b) {
    const auto key = [](const ProfileRow& row) {
      return std::tuple(row.self.weight, row.self.samples, row.total.weight, row.total.samples);
    };
    if (key(a) != key(b)) return key(a) > key(b);
    return std::tie(a.name, a.module, a.kind, a.tid) < std::tie(b.name, b.module, b.kind, b.tid);
  });
  return rows;
}

}  // namespace stackpipe
