# The project's own compile rules, and the functions that the folders' CMakeLists.txt use.

add_library(stackpipe_flags INTERFACE)
target_compile_options(stackpipe_flags INTERFACE -Wall -Wextra -Wconversion -Wshadow)
if(STACKPIPE_WERROR)
  target_compile_options(stackpipe_flags INTERFACE -Werror)
endif()
target_include_directories(stackpipe_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)

# True in the presets asan and tsan: programs that bring their own malloc, or other people's programs, make no sense there.
string(FIND "${CMAKE_CXX_FLAGS}" "-fsanitize=" sanitize_at)
if(sanitize_at EQUAL -1)
  set(STACKPIPE_SANITIZED OFF)
else()
  set(STACKPIPE_SANITIZED ON)
endif()

# stackpipe_library(NAME SOURCE... [LIBS lib...]): one folder of src/ as a static library.
# Code that is embedded in other programs (EMBEDDED) has no exceptions and no RTTI, and uses libc and libstdc++ alone.
function(stackpipe_library name)
  cmake_parse_arguments(arg "EMBEDDED" "" "LIBS" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC stackpipe_flags ${arg_LIBS})
  if(arg_EMBEDDED)
    target_compile_options(${name} PRIVATE -fno-exceptions -fno-rtti -ftls-model=initial-exec)
  endif()
endfunction()

# stackpipe_adapter(NAME SOURCE...): what is loaded into other people's programs, to lib/stackpipe/. It sees include/ and
# adapters/common/, and exports only what it marks.
function(stackpipe_adapter name)
  add_library(${name} MODULE ${ARGN} ${PROJECT_SOURCE_DIR}/adapters/common/options.cc)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/adapters)
  target_compile_options(${name} PRIVATE -fno-exceptions -fno-rtti -ftls-model=initial-exec)
  target_link_libraries(${name} PRIVATE stackpipe_session)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/stackpipe)
endfunction()

# stackpipe_test(NAME SOURCE... [LIBS lib...] [LABELS label...]): a GoogleTest program, run by ctest as one test.
function(stackpipe_test name)
  cmake_parse_arguments(arg "" "" "LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stackpipe_flags ${arg_LIBS} GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS "unit;${arg_LABELS}")
endfunction()

# stackpipe_bench(NAME SOURCE... [LIBS lib...]): a Google Benchmark program.
function(stackpipe_bench name)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stackpipe_flags ${arg_LIBS} benchmark::benchmark benchmark::benchmark_main)
endfunction()

# stackpipe_fuzzer(NAME SOURCE... [LIBS lib...]): a libFuzzer target; its corpus is fuzz/corpus/NAME.
function(stackpipe_fuzzer name)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stackpipe_flags ${arg_LIBS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
