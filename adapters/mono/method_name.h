// SPDX-License-Identifier: MIT
//
// Takes apart what mono_method_full_name(method, TRUE) says of a method.
#ifndef STACKPIPE_ADAPTERS_MONO_METHOD_NAME_H_
#define STACKPIPE_ADAPTERS_MONO_METHOD_NAME_H_

#include <string_view>

namespace stackpipe::mono {

struct MethodName {
  std::string_view wrapper;     // "runtime-invoke"; empty = no wrapper
  std::string_view type;        // "System.Collections.Generic.List`1<int>"
  std::string_view method;      // "Add"
  std::string_view parameters;  // "(int)"
};

// "(wrapper runtime-invoke) System.Foo`1<int>:Bar<T> (int,string)". What has another form is all method.
// The parts point into `full_name`.
MethodName SplitMethodName(std::string_view full_name);

}  // namespace stackpipe::mono

#endif  // STACKPIPE_ADAPTERS_MONO_METHOD_NAME_H_
