# The toolchain of the preset aarch64: Debian's cross compiler, and qemu's user mode to run what it makes.
#
# What runs so is made for a weakly ordered processor: a missing barrier that the compiler would have to emit is not
# hidden by x86's. But the host that qemu translates for orders loads and stores more strictly than an aarch64 does, and
# runs a translated block's accesses in program order, so a reordering that only the hardware would make may never be
# seen here. It is a test of the code that is generated and of the algorithm, not a proof for every core.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
