# Libraries of the system: each is found, or all that lack are named at once, with the package of
# Debian that has it. `make` installs them; `pip install .` and CMake alone do not.

set(steep_missing)
set(steep_missing_packages)

# find_package(NAME, further arguments); PACKAGES are Debian's.
macro(steep_require name packages)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND steep_missing ${name})
    list(APPEND steep_missing_packages ${packages})
  endif()
endmacro()

macro(steep_require_end)
  if(steep_missing)
    list(JOIN steep_missing ", " steep_missing)
    list(JOIN steep_missing_packages " " steep_missing_packages)
    message(FATAL_ERROR "Libraries that Steep is built with are missing, or too old:\n"
            "  ${steep_missing}\n"
            "On Debian and Ubuntu: apt-get install ${steep_missing_packages}\n"
            "Elsewhere: their equivalents. One in a folder of yours: -DCMAKE_PREFIX_PATH=FOLDER, "
            "which is CMAKE_ARGS in the environment for pip.")
  endif()
endmacro()
