# steep_onnx: the ONNX project's own C++ library (schemas, checker, shape inference, function
# bodies, opset converter), built from the sources that its wheel ships.
#
# Messages are generated for protobuf's lite runtime: it keeps no process-wide registry of
# descriptors, so the `onnx` Python package (or anything else that registers onnx-ml.proto) can be
# loaded beside us. Debian's static protobuf is not position-independent; hence the shared one.

steep_ask_python(onnx_package "
import importlib.util as u
print(u.find_spec('onnx').submodule_search_locations[0])")
if(NOT EXISTS "${onnx_package}/defs/schema.cc")
  message(FATAL_ERROR "${Python_EXECUTABLE} has no `onnx` package with C++ sources: "
                      "pip install onnx, or give another interpreter with -DPython_EXECUTABLE=…")
endif()

get_target_property(protobuf_file protobuf::libprotobuf-lite IMPORTED_LOCATION)
if(NOT protobuf_file)
  get_target_property(protobuf_file protobuf::libprotobuf-lite IMPORTED_LOCATION_RELEASE)
endif()
set(protobuf_version)  # that of the shared library's name (src/model/read/protobuf.cc)
if(EXISTS "${protobuf_file}")
  file(REAL_PATH ${protobuf_file} protobuf_file)
  if(protobuf_file MATCHES "\\.so\\.([0-9]+)")
    set(protobuf_version ${CMAKE_MATCH_1})
  endif()
endif()

# One level of indirection makes "onnx/…" includes work without putting all of site-packages on
# the include path, and keeps compile commands equal between checkouts.
set(onnx_root ${PROJECT_BINARY_DIR}/onnx)
file(MAKE_DIRECTORY ${onnx_root}/include ${onnx_root}/generated)
file(CREATE_LINK ${onnx_package} ${onnx_root}/include/onnx SYMBOLIC)

set(onnx_generated)
foreach(proto onnx-ml onnx-operators-ml onnx-data)
  set(stem ${onnx_root}/generated/onnx/${proto}.pb)
  add_custom_command(
    OUTPUT ${stem}.cc ${stem}.h
    COMMAND protobuf::protoc --proto_path=${onnx_root}/include
            --cpp_out=lite:${onnx_root}/generated onnx/${proto}.proto
    DEPENDS ${onnx_package}/${proto}.proto
    VERBATIM)
  list(APPEND onnx_generated ${stem}.cc)
endforeach()

file(GLOB_RECURSE onnx_sources FOLLOW_SYMLINKS ${onnx_root}/include/onnx/*.cc)
list(FILTER onnx_sources EXCLUDE REGEX "/cpp2py_export\\.cc$|/fuzz/|/test/|/backend/")

add_library(steep_onnx STATIC ${onnx_sources} ${onnx_generated})
target_include_directories(steep_onnx SYSTEM PUBLIC ${onnx_root}/include ${onnx_root}/generated)
target_compile_definitions(
  steep_onnx PUBLIC ONNX_NAMESPACE=onnx ONNX_ML=1 ONNX_USE_LITE_PROTO=1 __ONNX_NO_DOC_STRINGS)
# Reading a model is no inner loop: the optimiser would take half of the time to compile.
target_compile_options(steep_onnx PRIVATE -w -O1)
target_link_libraries(steep_onnx PUBLIC protobuf::libprotobuf-lite Threads::Threads)
