# The runtime for browsers and node: steep_runtime.mjs and steep_runtime.wasm, by emscripten
# (emcmake cmake -DSTEEP_RUNTIME=ON). One thread computes, with SIMD of 128 bits. Memory ends at 2 GiB:
# src/c_api/handles.cc tells handles from addresses by that.

# Of these libraries only headers are used, which are the same for each processor. The system's
# folder of headers must not be searched as a whole: it has those of another C library.
set(headers ${PROJECT_BINARY_DIR}/headers)
file(MAKE_DIRECTORY ${headers})
foreach(header hwy/highway.h fmt/format.h nlohmann/json.hpp)
  cmake_path(GET header PARENT_PATH folder)
  find_path(STEEP_${folder}_HEADERS ${header} PATHS /usr/local/include /usr/include
            NO_CMAKE_FIND_ROOT_PATH DOC "The folder that has ${header}" REQUIRED)
  file(CREATE_LINK ${STEEP_${folder}_HEADERS}/${folder} ${headers}/${folder} SYMBOLIC)
endforeach()

# The C API's functions that are part of the runtime.
set(exported _malloc _free)
foreach(header steep_artifact steep_c)
  file(STRINGS include/${header}.h lines REGEX "^STEEP_API")
  list(FILTER lines EXCLUDE REGEX "steep_training_save_artifact")
  list(FILTER lines INCLUDE REGEX
       " [*]?steep_(artifact|error|tensors|bytes|strings|version|code|dtype)(_[a-z_]+)?\\(")
  foreach(line ${lines})
    string(REGEX REPLACE ".* [*]?(steep_[a-z_]+)\\(.*" "_\\1" name "${line}")
    list(APPEND exported ${name})
  endforeach()
endforeach()
list(JOIN exported "," exported)

set(wasm_flags -msimd128 -fwasm-exceptions)
add_library(steep_wasm OBJECT ${runtime_sources} ${kernel_sources})
target_include_directories(steep_wasm PUBLIC include src ${PROJECT_SOURCE_DIR}
                                             src/runtime/one_thread)
target_include_directories(steep_wasm SYSTEM PUBLIC ${headers})
target_compile_definitions(steep_wasm PUBLIC FMT_HEADER_ONLY)
# -ffp-contract=off: WebAssembly has no operation for a product and a sum.
target_compile_options(steep_wasm PRIVATE ${wasm_flags} -fopenmp-simd -ffp-contract=off)
target_link_libraries(steep_wasm PRIVATE steep_flags)
set_target_properties(steep_wasm PROPERTIES POSITION_INDEPENDENT_CODE OFF)
if(NOT CCACHE)  # as in the whole library
  target_precompile_headers(
    steep_wasm PRIVATE <fmt/format.h> <algorithm> <functional> <map> <memory> <optional> <set>
    <span> <string> <unordered_map> <variant> <vector>)
endif()

add_executable(steep_runtime $<TARGET_OBJECTS:steep_wasm>)
set(memory_flags -sALLOW_MEMORY_GROWTH=1 -sMAXIMUM_MEMORY=2GB -sSTACK_SIZE=1MB)
target_link_options(
  steep_runtime PRIVATE ${wasm_flags} ${memory_flags} --no-entry -sMODULARIZE=1 -sEXPORT_ES6=1
  -sEXPORT_NAME=steepRuntime -sWASM_BIGINT=1 -sENVIRONMENT=web,worker,node -sFORCE_FILESYSTEM=1
  -sEXPORTED_RUNTIME_METHODS=FS,HEAPU8,UTF8ToString,stringToUTF8,lengthBytesUTF8
  -sEXPORTED_FUNCTIONS=${exported})
set_target_properties(steep_runtime PROPERTIES SUFFIX .mjs LINKER_LANGUAGE CXX)

# Programs in C for tests, which node runs with the files of this machine.
if(STEEP_BUILD_TESTS)
  enable_language(C)
  foreach(name device replay)
    add_executable(${name} tests/consumer/${name}.c $<TARGET_OBJECTS:steep_wasm>)
    target_include_directories(${name} PRIVATE include)
    target_link_options(${name} PRIVATE ${wasm_flags} ${memory_flags} -O1 -sENVIRONMENT=node
                        -sNODERAWFS=1 -sEXIT_RUNTIME=1)
    set_target_properties(${name} PROPERTIES SUFFIX .cjs LINKER_LANGUAGE CXX)
  endforeach()
endif()

# The wrapper lies beside the module that it imports, also in the build folder.
configure_file(packaging/wasm/steep_artifact.mjs steep_artifact.mjs COPYONLY)

include(GNUInstallDirs)
install(FILES ${PROJECT_BINARY_DIR}/steep_runtime.mjs ${PROJECT_BINARY_DIR}/steep_runtime.wasm
              packaging/wasm/steep_artifact.mjs DESTINATION ${CMAKE_INSTALL_LIBDIR}/steep)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
