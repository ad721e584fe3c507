# CMake's toolchain for 64-bit ARM: Debian's cross-compiler, with Debian's libraries for arm64
# (scripts/system_packages arm64).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
