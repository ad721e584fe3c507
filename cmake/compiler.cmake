# How our own code is compiled. Dependencies see only the language standard, -fPIC and visibility.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g -DNDEBUG")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Nothing leaves our objects by default; python/exports.map has the last word on the extension.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Every target of ours links this.
add_library(steep_flags INTERFACE)
target_compile_options(steep_flags INTERFACE -Wall -Wextra)
# Another compiler may warn of what these do not, and a project around ours asks for warnings of its
# own: nobody's build should end there.
set(tested FALSE)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(tested ${PROJECT_IS_TOP_LEVEL})
elseif(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20)
  set(tested ${PROJECT_IS_TOP_LEVEL})
endif()
option(STEEP_WERROR "Warnings are errors" ${tested})
if(STEEP_WERROR)
  target_compile_options(steep_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # Under sanitizers it leaves some loops marked `omp simd` as they are, and says so; newer ones find
  # a deprecated call in the standard library's own std::stable_sort.
  target_compile_options(steep_flags INTERFACE -Wno-pass-failed -Wno-deprecated-declarations)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # It suspects moves of the standard library's own std::variant.
  target_compile_options(steep_flags INTERFACE -Wno-maybe-uninitialized)
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  # Kernels hold vectors in arrays and lambdas, which those of SVE may not be in: their size is not
  # known when they are compiled. What remains is NEON, which each of these processors has.
  # HWY_COMPILE_ONLY_STATIC does the same with Debian's Highway 1.0, but chooses SVE if -march allows
  # it, and later versions have several kinds of NEON to choose from at run time.
  target_compile_definitions(
    steep_flags INTERFACE "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
  # Without it GCC makes one operation of each product and sum. Plain loops round as on x86-64, where
  # not every processor has such an operation; kernels call it by its name.
  target_compile_options(steep_flags INTERFACE -ffp-contract=off)
endif()

# Dependencies stay uninstrumented: their findings are not ours to fix, and the object files are
# those of the plain build, which the compiler cache has.
if(STEEP_SANITIZE)
  target_compile_options(steep_flags INTERFACE -fsanitize=${STEEP_SANITIZE} -O1 -g1 -UNDEBUG
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(steep_flags INTERFACE -fsanitize=${STEEP_SANITIZE})
endif()

# Paths relative to the checkout let every checkout share one cache.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=time_macros ${CCACHE})
endif()
