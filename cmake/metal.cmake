# The Metal backend: kernel sources as text in the program, and, for development, the emulator that executes them.

# lily_metal_text(FUNCTION name OUT variable FILES file.metal ...): joins each file with its headers into
# ${CMAKE_BINARY_DIR}/metal/NAME.metal; OUT gets a C++ file with a function of lily::metal that returns them all.
function(lily_metal_text)
  cmake_parse_arguments(ARG "" "FUNCTION;OUT" "FILES" ${ARGN})
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backends/metal/*.h
       ${CMAKE_SOURCE_DIR}/src/backends/metal/kernels/*.h)
  set(joined "")
  foreach(file IN LISTS ARG_FILES)
    get_filename_component(name ${file} NAME_WE)
    set(text ${CMAKE_BINARY_DIR}/metal/${name}.metal)
    add_custom_command(
      OUTPUT ${text}
      COMMAND ${CMAKE_COMMAND} -D IN=${file} -D ROOT=${CMAKE_SOURCE_DIR}/src -D OUT=${text} -P
              ${CMAKE_SOURCE_DIR}/cmake/join_metal.cmake
      DEPENDS ${file} ${headers} ${CMAKE_SOURCE_DIR}/cmake/join_metal.cmake
      VERBATIM)
    list(APPEND joined ${text})
  endforeach()
  list(JOIN joined "," files)
  set(source ${CMAKE_BINARY_DIR}/metal/${ARG_FUNCTION}.cpp)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -D OUT=${source} -D FUNCTION=${ARG_FUNCTION} -D FILES=${files} -P
            ${CMAKE_SOURCE_DIR}/cmake/embed_metal.cmake
    DEPENDS ${joined} ${CMAKE_SOURCE_DIR}/cmake/embed_metal.cmake
    VERBATIM)
  set(${ARG_OUT} ${source} PARENT_SCOPE)
endfunction()

file(GLOB LILY_METAL_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backends/metal/kernels/*.metal)

# The device of a Mac.
set(LILY_WITH_METAL OFF)
if(APPLE AND CMAKE_SYSTEM_PROCESSOR STREQUAL "arm64")
  enable_language(OBJCXX)
  set(CMAKE_OBJCXX_STANDARD 20)
  find_library(METAL_FRAMEWORK Metal REQUIRED)
  find_library(FOUNDATION_FRAMEWORK Foundation REQUIRED)
  set(LILY_WITH_METAL ON)
endif()

# The emulator needs a clang++ (g++ cannot report accesses in a way that a program may answer itself) and the ELF and
# the processors of Linux. Sanitizers want the names of its hooks for themselves.
set(LILY_METAL_EMULATOR AUTO CACHE STRING "Build the emulated Metal device for development: AUTO (where clang++ is), ON or OFF")
set(LILY_WITH_METAL_EMULATOR OFF)
if(NOT LILY_METAL_EMULATOR STREQUAL "OFF" AND LILY_BUILD_TESTS AND NOT LILY_SANITIZE AND NOT LILY_FUZZ
   AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  find_program(LILY_METAL_CLANG NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
  if(LILY_METAL_CLANG)
    set(LILY_WITH_METAL_EMULATOR ON)
    message(STATUS "Metal emulator: kernels compiled by ${LILY_METAL_CLANG}")
  elseif(LILY_METAL_EMULATOR STREQUAL "ON")
    message(FATAL_ERROR "LILY_METAL_EMULATOR is ON, but no clang++ was found")
  else()
    message(STATUS "Metal emulator: not built, no clang++ was found")
  endif()
endif()
