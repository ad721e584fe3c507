# -DSTEEP_RUNTIME=ON: libsteep.so for devices that train from artifacts (docs/runtime.md), and nothing
# else. For browsers it is steep_runtime.wasm (cmake/wasm.cmake). Without ONNX, protobuf, oneDNN and
# Python: what it is built of are the rooms that run a plan.
# src/ops/without_operators.cc and providers/cpu/without_onednn.cc stand for the rest.

file(GLOB runtime_sources CONFIGURE_DEPENDS src/runtime/*.cc src/ir/*.cc src/device/*.cc
     src/artifact/*.cc)
list(APPEND runtime_sources
  src/c_api/arrays.cc
  src/c_api/artifact.cc
  src/c_api/call.cc
  src/c_api/handles.cc
  src/c_api/library.cc
  src/data/files.cc
  src/ops/op_def.cc
  src/ops/without_operators.cc
  src/plan/assign_devices.cc
  src/plan/executable.cc
  src/plan/kernel_graph.cc
  src/plan/layout.cc
  src/plan/place_buffers.cc
  src/plan/plan.cc
  src/plan/schedule.cc
  src/train/finite.cc
  src/train/name_suggestions.cc
  src/train/schedule.cc
  src/train/tensor_info.cc)
set(kernel_sources
  providers/linked.cc
  providers/cpu/adam.cc
  providers/cpu/cast.cc
  providers/cpu/convert.cc
  providers/cpu/cpu.cc
  providers/cpu/elementwise.cc
  providers/cpu/elementwise_build.cc
  providers/cpu/elementwise_int.cc
  providers/cpu/elementwise_loops.cc
  providers/cpu/elementwise_simd.cc
  providers/cpu/elementwise_slots.cc
  providers/cpu/global_norm.cc
  providers/cpu/isa.cc
  providers/cpu/matmul.cc
  providers/cpu/matmul_blocked.cc
  providers/cpu/matmul_problem.cc
  providers/cpu/matmul_small.cc
  providers/cpu/matmul_widened.cc
  providers/cpu/narrow_float.cc
  providers/cpu/narrow_moments.cc
  providers/cpu/plugin.cc
  providers/cpu/reduce.cc
  providers/cpu/reduce_loops.cc
  providers/cpu/sgd.cc
  providers/cpu/softmax.cc
  providers/cpu/softmax_cross_entropy.cc
  providers/cpu/strided_copy.cc
  providers/cpu/transpose.cc
  providers/cpu/without_onednn.cc)

set_source_files_properties(src/c_api/library.cc src/device/boundary.cc PROPERTIES
                            COMPILE_DEFINITIONS STEEP_VERSION="${PROJECT_VERSION}")
set_source_files_properties(providers/cpu/cpu.cc PROPERTIES COMPILE_DEFINITIONS STEEP_RUNTIME)
set_source_files_properties(providers/cpu/adam.cc providers/cpu/sgd.cc PROPERTIES
                            COMPILE_OPTIONS -ffp-contract=off)

if(EMSCRIPTEN)
  include(wasm)
  return()
endif()

include(require)
steep_require(hwy libhwy-dev 1.0 CONFIG)
steep_require(fmt libfmt-dev CONFIG)
steep_require(nlohmann_json nlohmann-json3-dev 3 CONFIG)
steep_require(OpenMP g++ COMPONENTS CXX)
steep_require(Threads g++)
steep_require_end()

set(exports ${PROJECT_SOURCE_DIR}/src/c_api/exports.map)
# The files are compiled as they are for the whole library, so that the compiler's cache has them.
add_library(steep_runtime SHARED ${runtime_sources} ${kernel_sources})
target_include_directories(steep_runtime PUBLIC include src ${PROJECT_SOURCE_DIR})
target_link_libraries(
  steep_runtime PUBLIC hwy::hwy fmt::fmt nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX
                       Threads::Threads ${CMAKE_DL_LIBS} PRIVATE steep_flags)
# It stays once it is loaded: threads of OpenMP may run its code at any time.
target_link_options(steep_runtime PRIVATE LINKER:--version-script=${exports} LINKER:-z,nodelete
                    LINKER:--gc-sections LINKER:--no-undefined)
set_target_properties(
  steep_runtime PROPERTIES OUTPUT_NAME steep VERSION ${PROJECT_VERSION} SOVERSION 0
                           LINK_DEPENDS ${exports})

include(GNUInstallDirs)
install(TARGETS steep_runtime LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/steep_c.h include/steep_c_models.h include/steep_c_parallel.h
              include/steep_artifact.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
