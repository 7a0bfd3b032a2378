// SPDX-License-Identifier: MIT
#include "method_name.h"

#include <gtest/gtest.h>

namespace stackpipe::mono {
namespace {

void Expect(std::string_view full, std::string_view wrapper, std::string_view type, std::string_view method,
            std::string_view parameters) {
  const MethodName name = SplitMethodName(full);
  EXPECT_EQ(name.wrapper, wrapper) << full;
  EXPECT_EQ(name.type, type) << full;
  EXPECT_EQ(name.method, method) << full;
  EXPECT_EQ(name.parameters, parameters) << full;
}

// The names on the left were printed by Mono 6.8.
TEST(MethodNameTest, SplitsWhatMonoPrints) {
  Expect("Demo:leaf (int)", "", "Demo", "leaf", "(int)");
  Expect(
      "System.Collections.Generic.Dictionary`2<string, int>:TryInsert "
      "(string,int,System.Collections.Generic.InsertionBehavior)",
      "", "System.Collections.Generic.Dictionary`2<string, int>", "TryInsert",
      "(string,int,System.Collections.Generic.InsertionBehavior)");
  Expect("P/<>c:<Main>b__0_0 ()", "", "P/<>c", "<Main>b__0_0", "()");
  Expect("System.Array:InternalArray__IEnumerable_GetEnumerator<int> ()", "", "System.Array",
         "InternalArray__IEnumerable_GetEnumerator<int>", "()");
}

TEST(MethodNameTest, TellsWrappers) {
  Expect("(wrapper runtime-invoke) object:runtime_invoke_void (object,intptr,intptr,intptr)",
         "runtime-invoke", "object", "runtime_invoke_void", "(object,intptr,intptr,intptr)");
  Expect("(wrapper managed-to-native) System.Threading.Thread:SleepInternal (int,bool)", "managed-to-native",
         "System.Threading.Thread", "SleepInternal", "(int,bool)");
}

TEST(MethodNameTest, KeepsWhatHasAnotherForm) {
  Expect("", "", "", "", "");
  Expect("name", "", "", "name", "");
  Expect("(wrapper broken", "", "", "(wrapper broken", "");
  Expect("Type:method", "", "Type", "method", "");
  Expect("lonely (int)", "", "", "lonely", "(int)");
}

}  // namespace
}  // namespace stackpipe::mono
