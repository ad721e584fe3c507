# What `pip install` puts where:
#
#   steep/_steep.*.so, steep/_steep.pyi   the extension
#   steep/bin/steep                       the program; bin/steep of the environment starts it
#   steep.libs/                           shared libraries that no system has
#
# oneDNN comes from a wheel that is there only while this one is built, so that it goes along, under
# a name of its own (cmake/dependencies.cmake). The libraries of the build's system (protobuf,
# Highway, fmt) are put beside it by auditwheel (scripts/wheel): a wheel that stays on this machine
# needs no copies.
#
# libgomp keeps its name, which auditwheel would change. PyTorch brings one of that name, and the
# loader takes the one that is there already: with two of them in a process, the threads of one
# spin while the other's compute.

install(FILES ${dnnl_own} DESTINATION steep.libs)

execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.so.1
                OUTPUT_VARIABLE gomp_file OUTPUT_STRIP_TRAILING_WHITESPACE)
if(IS_ABSOLUTE "${gomp_file}")  # else the compiler has none of its own, and the system's is used
  file(REAL_PATH ${gomp_file} gomp_file)
  install(FILES ${gomp_file} DESTINATION steep.libs RENAME libgomp.so.1)
endif()

# What the binaries link and contain (PEP 770), and the licence of each part.
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/sbom.py
          ${PROJECT_BINARY_DIR}/sbom.cdx.json ${PROJECT_BINARY_DIR}/licenses
          COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${PROJECT_BINARY_DIR}/sbom.cdx.json DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
install(DIRECTORY ${PROJECT_BINARY_DIR}/licenses/ DESTINATION ${SKBUILD_METADATA_DIR}/licenses)

if(TARGET _steep)
  install(TARGETS _steep LIBRARY DESTINATION steep)
  install(FILES ${extension_stub} DESTINATION steep)
  set_target_properties(_steep PROPERTIES INSTALL_RPATH "$ORIGIN/../steep.libs")
endif()
if(TARGET steep)
  install(TARGETS steep RUNTIME DESTINATION steep/bin)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/packaging/steep DESTINATION ${SKBUILD_SCRIPTS_DIR})
  set_target_properties(steep PROPERTIES INSTALL_RPATH "$ORIGIN/../../steep.libs")
endif()
