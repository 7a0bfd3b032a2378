// SPDX-License-Identifier: MIT
#include "unwind/testdata/shapes.h"

#include <alloca.h>

#include <cstdarg>
#include <cstring>
#include <functional>

namespace stackpipe::testing {
namespace {

#define NOINLINE __attribute__((noinline))

// Keeps the compiler from knowing `value`, and from turning a call before it into a jump.
template <typename T>
T Opaque(T value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

NOINLINE void Plain(ShapeCallback callback, void* context) {
  callback(context);
  Opaque(0);
}

// More values live across the call than the callee-saved registers hold.
NOINLINE void ManyValues(ShapeCallback callback, void* context) {
  long a = Opaque(1), b = Opaque(2), c = Opaque(3), d = Opaque(4), e = Opaque(5), f = Opaque(6),
       g = Opaque(7);
  callback(context);
  Opaque(a), Opaque(b), Opaque(c), Opaque(d), Opaque(e), Opaque(f), Opaque(g);
}

NOINLINE void Alloca(ShapeCallback callback, void* context) {
  void* block = alloca(static_cast<std::size_t>(Opaque(100)));
  std::memset(block, 1, 100);
  Opaque(block);
  callback(context);
  Opaque(block);
}

// More than a plain row has room for.
NOINLINE void LargeFrame(ShapeCallback callback, void* context) {
  char block[200 * 1024];
  Opaque(&block);
  callback(context);
  Opaque(&block);
}

NOINLINE void Realigned(ShapeCallback callback, void* context) {
  alignas(64) char block[64];
  Opaque(&block);
  callback(context);
  Opaque(&block);
}

NOINLINE void RealignedWithAlloca(ShapeCallback callback, void* context) {
  alignas(64) char block[64];
  Opaque(&block);
  void* more = alloca(static_cast<std::size_t>(Opaque(33)));
  Opaque(more);
  long a = Opaque(1), b = Opaque(2), c = Opaque(3);
  callback(context);
  Opaque(a), Opaque(b), Opaque(c);
  Opaque(&block);
  Opaque(more);
}

NOINLINE void WithArguments(ShapeCallback callback, void* context, int count, ...) {
  va_list arguments;
  va_start(arguments, count);
  for (int i = 0; i < count; ++i) Opaque(va_arg(arguments, double));
  callback(context);
  va_end(arguments);
  Opaque(0);
}
NOINLINE void Variadic(ShapeCallback callback, void* context) {
  WithArguments(callback, context, 3, 1.0, 2.0, 3.0);
  Opaque(0);
}

// Arguments on the stack: the compiler may push them one by one.
NOINLINE void TakesTen(ShapeCallback callback, void* context, long a, long b, long c, long d, long e, long f,
                       long g, long h) {
  callback(context);
  Opaque(a + b + c + d + e + f + g + h);
}
NOINLINE void StackArguments(ShapeCallback callback, void* context) {
  TakesTen(callback, context, Opaque(1), Opaque(2), Opaque(3), Opaque(4), Opaque(5), Opaque(6), Opaque(7),
           Opaque(8));
  TakesTen(callback, context, Opaque(1), Opaque(2), Opaque(3), Opaque(4), Opaque(5), Opaque(6), Opaque(7),
           Opaque(8));
}

NOINLINE void Recurse(ShapeCallback callback, void* context, int depth) {
  if (depth == 0) {
    callback(context);
  } else {
    Recurse(callback, context, depth - 1);
  }
  Opaque(depth);
}
NOINLINE void Recursion(ShapeCallback callback, void* context) {
  Recurse(callback, context, Opaque(60));
  Opaque(0);
}

// The call is in the part that optimisation moves elsewhere ("[clone .cold]").
__attribute__((cold)) NOINLINE void Complain(ShapeCallback callback, void* context) {
  callback(context);
  Opaque(0);
}
NOINLINE void ColdPart(ShapeCallback callback, void* context) {
  long a = Opaque(1), b = Opaque(2);
  if (__builtin_expect(Opaque(1) == 1, 0)) {
    Complain(callback, context);
    Complain(callback, context);
  }
  Opaque(a), Opaque(b);
}

// Returns early before the frame is set up, and restores from several places.
NOINLINE void ManyExits(ShapeCallback callback, void* context) {
  const int way = Opaque(3);
  if (way == 0) return;
  long a = Opaque(1), b = Opaque(2), c = Opaque(3);
  if (way == 1) {
    callback(context);
    Opaque(a), Opaque(b);
    return;
  }
  for (int i = 0; i < Opaque(2); ++i) callback(context);
  if (way == 2) return;
  Opaque(a), Opaque(b), Opaque(c);
}

struct First {
  virtual void Run(ShapeCallback callback, void* context) = 0;
  long first = 1;
};
struct Second {
  virtual void Go(ShapeCallback callback, void* context) = 0;
  long second = 2;
};
struct Both : First, Second {
  NOINLINE void Run(ShapeCallback callback, void* context) override { Plain(callback, context), Opaque(0); }
  NOINLINE void Go(ShapeCallback callback, void* context) override { Run(callback, context), Opaque(0); }
};
NOINLINE void Thunk(ShapeCallback callback, void* context) {
  Both both;
  Opaque(static_cast<Second*>(&both))->Go(callback, context);
  Opaque(0);
}

NOINLINE void Lambda(ShapeCallback callback, void* context) {
  const std::function<void()> inner = [&] { callback(context), Opaque(0); };
  const std::function<void()> outer = [&] { inner(), Opaque(0); };
  outer();
  Opaque(0);
}

#ifdef __cpp_exceptions
NOINLINE void Throws(int value) { throw Opaque(value); }

struct CallsWhenDestroyed {
  ShapeCallback callback;
  void* context;
  NOINLINE ~CallsWhenDestroyed() { callback(context), Opaque(0); }
};
NOINLINE void Holder(ShapeCallback callback, void* context) {
  CallsWhenDestroyed holder = {callback, context};
  Opaque(&holder);
  Throws(1);
}
// Calls back from a destructor during unwinding, and from the handler.
NOINLINE void Exception(ShapeCallback callback, void* context) {
  try {
    Holder(callback, context);
  } catch (int value) {
    callback(context);
    Opaque(value);
  }
}
#endif

constexpr Shape kShapes[] = {
    {"Plain", Plain},         {"ManyValues", ManyValues},
    {"Alloca", Alloca},       {"LargeFrame", LargeFrame},
    {"Realigned", Realigned}, {"RealignedWithAlloca", RealignedWithAlloca},
    {"Variadic", Variadic},   {"StackArguments", StackArguments},
    {"Recursion", Recursion}, {"ColdPart", ColdPart},
    {"ManyExits", ManyExits}, {"Thunk", Thunk},
    {"Lambda", Lambda},
#ifdef __cpp_exceptions
    {"Exception", Exception},
#endif
};

}  // namespace

#define AS_TEXT(x) #x
#define TEXT_OF(x) AS_TEXT(x)
ShapeList STACKPIPE_SHAPES() {
  return {TEXT_OF(STACKPIPE_SHAPES), kShapes, sizeof kShapes / sizeof kShapes[0]};
}

}  // namespace stackpipe::testing
