# What `cmake --install` puts where: the C library, what a consumer needs to build against it, the
# program. It may be moved afterwards, as a whole: nothing in it names the prefix.

include(CMakePackageConfigHelpers)

# oneDNN, when it is the wheel's: there is no archive in it to link, and nobody's system has the
# library. It goes to a folder of ours, so that it is in nobody's way; a system's own stays there.
set(private_libraries ${CMAKE_INSTALL_LIBDIR}/steep)
set(dnnl_item)
set(dnnl_flags)
if(dnnl_own)
  install(FILES ${dnnl_own} DESTINATION ${private_libraries})
  set(dnnl_item "\${_prefix}/${private_libraries}/${dnnl_name}")
  set(dnnl_flags "-L\${libdir}/steep -l:${dnnl_name} -Wl,-rpath,\${libdir}/steep")
  cmake_path(GET dnnl_file PARENT_PATH dnnl_root)
  install(DIRECTORY ${dnnl_root}/../share/doc/onednn DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL
          FILES_MATCHING PATTERN LICENSE PATTERN THIRD-PARTY-PROGRAMS)
elseif(onednn)
  set(dnnl_item dnnl)
  set(dnnl_flags -ldnnl)
endif()

install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# provider.h is C, too: what a plug-in implements (docs/providers.md).
install(FILES include/steep_c.h include/steep_c_models.h include/steep_c_parallel.h
              include/steep_artifact.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/steep/provider.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/steep)

# The program lies beside the libraries; bin/steep starts it, or says which of them is missing.
install(TARGETS steep RUNTIME DESTINATION ${private_libraries})
install(PROGRAMS packaging/steep DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET steep_parquet)
  install(TARGETS steep_parquet LIBRARY DESTINATION ${private_libraries})
endif()
set_target_properties(steep PROPERTIES INSTALL_RPATH "$ORIGIN")

install(TARGETS steep_c EXPORT steep LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set_target_properties(steep_c PROPERTIES EXPORT_NAME steep INSTALL_RPATH "$ORIGIN/steep")

# The static library needs what the shared one was linked with, by the names of this system.
set(static_libraries protobuf-lite hwy fmt z ${OpenMP_CXX_LIB_NAMES} dl stdc++ m)
list(REMOVE_DUPLICATES static_libraries)
set(static_items ${dnnl_item} ${static_libraries})
install(FILES $<TARGET_FILE:steep_static> DESTINATION ${CMAKE_INSTALL_LIBDIR})

# find_package(steep): the targets steep::steep and steep::static.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/steep)
install(EXPORT steep NAMESPACE steep:: DESTINATION ${package} FILE steepTargets.cmake)
file(RELATIVE_PATH from_package /${package} /)
configure_file(cmake/steepConfig.cmake.in steepConfig.cmake @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/steepConfig.cmake DESTINATION ${package})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/steepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/steepConfigVersion.cmake DESTINATION ${package})

file(RELATIVE_PATH from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
list(TRANSFORM static_libraries PREPEND -l OUTPUT_VARIABLE static_flags)
list(JOIN static_flags " " static_flags)
foreach(name steep steep-static)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
