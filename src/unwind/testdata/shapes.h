// SPDX-License-Identifier: MIT
//
// Functions with all kinds of frames, each of which calls back from its middle. shapes.cc is compiled several
// times, with different options: see CMakeLists.txt.
#ifndef STACKPIPE_UNWIND_TESTDATA_SHAPES_H_
#define STACKPIPE_UNWIND_TESTDATA_SHAPES_H_

#include <cstddef>

namespace stackpipe::testing {

using ShapeCallback = void (*)(void* context);

struct Shape {
  const char* name;
  void (*run)(ShapeCallback callback, void* context);
};

struct ShapeList {
  const char* options;
  const Shape* shapes;
  std::size_t count;
};

ShapeList ShapesO0();
ShapeList ShapesO2();
ShapeList ShapesOs();
ShapeList ShapesFramePointer();
ShapeList ShapesNoTables();

}  // namespace stackpipe::testing

#endif  // STACKPIPE_UNWIND_TESTDATA_SHAPES_H_
