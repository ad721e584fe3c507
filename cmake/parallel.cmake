# Communication between processes: plug-ins that are loaded when they are asked for, so that nothing
# else links gloo or MPI.
#
#   STEEP_GLOO, STEEP_MPI   AUTO: built if the library is found; ON: required; OFF: not built

include(GNUInstallDirs)
foreach(way GLOO MPI)
  set(STEEP_${way} AUTO CACHE STRING "Communication by ${way}: AUTO, ON or OFF")
endforeach()
# A wheel has neither: it is to run where their libraries are not.
if(SKBUILD)
  set(STEEP_GLOO OFF)
  set(STEEP_MPI OFF)
endif()

function(steep_add_comm way)
  add_library(steep_comm_${way} MODULE ${PROJECT_SOURCE_DIR}/src/parallel/plugins/${way}.cc)
  target_include_directories(steep_comm_${way} PRIVATE src)
  target_link_libraries(steep_comm_${way} PRIVATE ${ARGN} steep_flags)
  # Beside the program, which looks there first.
  set_target_properties(
    steep_comm_${way} PROPERTIES CXX_VISIBILITY_PRESET hidden
                                 LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  # And beside the extension of a development build, which looks there.
  if(STEEP_BUILD_PYTHON)
    add_custom_command(
      TARGET steep_comm_${way}
      POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE:steep_comm_${way}>
              ${PROJECT_SOURCE_DIR}/python/steep/$<TARGET_FILE_NAME:steep_comm_${way}>)
  endif()
  install(TARGETS steep_comm_${way} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/steep)
endfunction()

if(NOT STEEP_GLOO STREQUAL OFF)
  find_path(GLOO_INCLUDE gloo/rendezvous/file_store.h)
  find_library(GLOO_LIBRARY gloo)
  if(GLOO_INCLUDE AND GLOO_LIBRARY)
    steep_add_comm(gloo ${GLOO_LIBRARY})
    target_include_directories(steep_comm_gloo SYSTEM PRIVATE ${GLOO_INCLUDE})
  elseif(STEEP_GLOO STREQUAL ON)
    message(FATAL_ERROR "STEEP_GLOO=ON: gloo is not found; install libgloo-dev")
  endif()
endif()

if(NOT STEEP_MPI STREQUAL OFF)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    steep_add_comm(mpi MPI::MPI_CXX)
  elseif(STEEP_MPI STREQUAL ON)
    message(FATAL_ERROR "STEEP_MPI=ON: MPI is not found; install libopenmpi-dev")
  endif()
endif()
