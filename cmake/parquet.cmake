# libsteep_parquet.so: the module by which the program reads Parquet, with Apache Arrow. Debian has no
# Arrow; the wheel of pyarrow has its headers and libraries, for the machine that builds.

if(NOT STEEP_PARQUET)
  return()
endif()

find_package(Arrow CONFIG QUIET)
find_package(Parquet CONFIG QUIET)
if(TARGET Arrow::arrow_shared AND TARGET Parquet::parquet_shared)
  set(arrow_libraries Parquet::parquet_shared Arrow::arrow_shared)
else()
  # Its libraries have the names of their versions alone.
  set(pyarrow)
  if(NOT CMAKE_CROSSCOMPILING)
    steep_ask_python(pyarrow "
import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec('pyarrow').origin).resolve().parent)")
  endif()
  foreach(name parquet arrow)
    file(GLOB library "${pyarrow}/lib${name}.so.*")
    list(LENGTH library count)
    if(count EQUAL 1 AND EXISTS "${pyarrow}/include/${name}")
      add_library(steep_found_${name} SHARED IMPORTED)
      set_target_properties(
        steep_found_${name} PROPERTIES IMPORTED_LOCATION "${library}"
                                       INTERFACE_INCLUDE_DIRECTORIES "${pyarrow}/include")
      list(APPEND arrow_libraries steep_found_${name})
    endif()
  endforeach()
  list(LENGTH arrow_libraries count)
  if(NOT count EQUAL 2)
    if(NOT STEEP_PARQUET STREQUAL AUTO)
      message(FATAL_ERROR "STEEP_PARQUET=ON needs Apache Arrow: pip install pyarrow, or Arrow's own packages")
    endif()
    message(STATUS "No Apache Arrow: the program will not read Parquet (pip install pyarrow)")
    return()
  endif()
endif()

add_library(steep_parquet MODULE src/tables/parquet_module.cc)
target_include_directories(steep_parquet PRIVATE include src)
target_link_libraries(steep_parquet PRIVATE ${arrow_libraries} steep_flags)
# It lies beside the program, and is found when the program runs.
set_target_properties(steep_parquet PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
add_dependencies(steep steep_parquet)
