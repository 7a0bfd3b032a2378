// SPDX-License-Identifier: MIT
#include "method_name.h"

namespace stackpipe::mono {

MethodName SplitMethodName(std::string_view full_name) {
  MethodName name;
  constexpr std::string_view kWrapper = "(wrapper ";
  if (full_name.substr(0, kWrapper.size()) == kWrapper) {
    const std::size_t end = full_name.find(") ");
    if (end != std::string_view::npos) {
      name.wrapper = full_name.substr(kWrapper.size(), end - kWrapper.size());
      full_name.remove_prefix(end + 2);
    }
  }
  std::size_t end = full_name.find(" (");
  if (end == std::string_view::npos) {
    end = full_name.size();
  } else {
    name.parameters = full_name.substr(end + 1);
  }
  const std::string_view head = full_name.substr(0, end);
  const std::size_t colon = head.rfind(':');
  if (colon == std::string_view::npos) {
    name.method = head;
  } else {
    name.type = head.substr(0, colon);
    name.method = head.substr(colon + 1);
  }
  return name;
}

}  // namespace stackpipe::mono
