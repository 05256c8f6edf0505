# Unity builds. Most of the time to compile a test file goes into templates that other files of its folder instantiate,
# too, so files of a folder are compiled together. Each file is in a separate namespace, after all headers that the
# files include, so its own include directives do nothing. A file with a definition that must be unique in a program or
# outside of namespaces is compiled separately.
set(GATEFOLD_UNITY_BYTES 0 CACHE STRING
    "Compile test files of a folder together, up to this number of bytes (0: each file separately)")
set(alone "counted_allocations|operator (new|delete)|^(namespace [a-z_:]+ {|template <>|extern|#error)")
set(made_at_once 9)
# In a release build, files with these names are compiled separately and with -O2, because their loops take longer than
# their compilation.
set(optimised "backend/cpu/differential_test\\.cpp$")

# unity(<out> <target> <source>...): sets <out> to translation units of at most GATEFOLD_UNITY_BYTES that contain the
# sources of a target.
function(unity out target)
  set(units)
  set(batch)
  set(bytes 0)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} global REGEX "${alone}" LIMIT_COUNT 1)
    if(source MATCHES "${optimised}" AND CMAKE_BUILD_TYPE STREQUAL "Release")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
      set(global ON)
    endif()
    if(global OR NOT GATEFOLD_UNITY_BYTES)
      list(APPEND units ${source})
      continue()
    endif()
    file(SIZE ${source} size)
    cmake_path(IS_PREFIX CMAKE_BINARY_DIR ${source} made)
    if(made)  # files generated from descriptors/ are short, but instantiate many templates
      math(EXPR size "${GATEFOLD_UNITY_BYTES} / ${made_at_once}")
    endif()
    math(EXPR bytes "${bytes} + ${size}")
    if(batch AND bytes GREATER GATEFOLD_UNITY_BYTES)
      unity_source(units ${target} ${batch})
      set(batch)
      set(bytes ${size})
    endif()
    list(APPEND batch ${source})
  endforeach()
  if(batch)
    unity_source(units ${target} ${batch})
  endif()
  set(${out} ${units} PARENT_SCOPE)
endfunction()

# Appends to the list <list> a file that includes the sources <source>...
function(unity_source list target)
  set(includes)
  set(text)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} directives REGEX "^#include ")
    list(APPEND includes ${directives})
    cmake_path(GET source STEM name)
    string(APPEND text "namespace ${target}_${name} {\n#include \"${source}\"\n}\n")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  list(REMOVE_DUPLICATES includes)
  list(SORT includes)
  # System headers that a file includes only after an #if may be missing.
  list(TRANSFORM includes REPLACE "^#include (<.*>)" "#if __has_include(\\1)\n#include \\1\n#endif")
  list(JOIN includes "\n" includes)
  list(LENGTH ${list} number)
  list(GET ARGN 0 source)
  cmake_path(GET source EXTENSION LAST_ONLY extension)
  set(path ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}_${number}${extension})
  file(CONFIGURE OUTPUT ${path} CONTENT "${includes}\n${text}" @ONLY)
  set(${list} ${${list}} ${path} PARENT_SCOPE)
endfunction()
