# What `pip install` puts where. oneDNN's wheel has its library in the environment's lib/. The
# shared libraries that come from the system go to lib/steep, so that the wheel runs where they are
# not installed.

foreach(library protobuf::libprotobuf-lite hwy::hwy)
  # libNAME.so → libNAME.so.32.0.12, which the loader looks up as libNAME.so.32.
  get_target_property(file ${library} LOCATION)
  file(REAL_PATH ${file} file)
  string(REGEX MATCH "lib[^/]+\\.so\\.[0-9]+" name ${file})
  install(FILES ${file} DESTINATION ${SKBUILD_DATA_DIR}/lib/steep RENAME ${name})
endforeach()

# What the binaries link and contain (PEP 770).
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/sbom.py
          ${PROJECT_BINARY_DIR}/sbom.cdx.json COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${PROJECT_BINARY_DIR}/sbom.cdx.json DESTINATION ${SKBUILD_METADATA_DIR}/sboms)

if(TARGET _steep)
  install(TARGETS _steep LIBRARY DESTINATION steep)
  install(FILES ${extension_stub} DESTINATION steep)
  # From lib/pythonX.Y/site-packages/steep to lib; the last one is for `pip install --target`.
  set_target_properties(
    _steep PROPERTIES INSTALL_RPATH
                      "$ORIGIN/../../../steep;$ORIGIN/../../..;$ORIGIN/../lib/steep;$ORIGIN/../lib")
endif()
if(TARGET steep)
  install(TARGETS steep RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  set_target_properties(steep PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/steep;$ORIGIN/../lib")
endif()
