# The header list of gatefold is the list of headers that its umbrella headers (the files directly in include/gatefold)
# include. There is no other list: targets, installation, tests and checks are derived from it.

set(gatefold_include_dir ${CMAKE_CURRENT_LIST_DIR}/../include/gatefold)
cmake_path(NORMAL_PATH gatefold_include_dir)

# Sets <out> to the headers that one umbrella header lists, relative to include/gatefold: "gate/selection/top_k.hpp".
# Does not list other umbrella headers that it includes.
function(gatefold_listed out umbrella)
  set(header "[a-z0-9_]+/[a-z0-9_/]+\\.(hpp|cuh)")
  file(STRINGS ${gatefold_include_dir}/${umbrella} lines REGEX "^ *# *include +[\"<](gatefold/)?${header}[\">]")
  list(TRANSFORM lines REPLACE "^[^\"<]*[\"<](gatefold/)?([a-z0-9_/]+\\.(hpp|cuh)).*" "\\2")
  list(FILTER lines INCLUDE REGEX /)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               ${gatefold_include_dir}/${umbrella})
  set(${out} ${lines} PARENT_SCOPE)
endfunction()

# Sets <out> to the absolute paths of the umbrella headers <umbrella>... and of all headers they list. An umbrella that
# does not exist yet counts as empty.
function(gatefold_headers out)
  set(headers)
  foreach(umbrella IN LISTS ARGN)
    if(EXISTS ${gatefold_include_dir}/${umbrella})
      gatefold_listed(listed ${umbrella})
      list(APPEND headers ${umbrella} ${listed})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES headers)
  list(TRANSFORM headers PREPEND ${gatefold_include_dir}/)
  set(${out} ${headers} PARENT_SCOPE)
endfunction()

# Stops unless the umbrella headers list exactly the headers of the tree and, if tests are built, each header has a
# test.
function(gatefold_check_header_list)
  file(GLOB umbrellas RELATIVE ${gatefold_include_dir} CONFIGURE_DEPENDS
       ${gatefold_include_dir}/*.hpp ${gatefold_include_dir}/*.cuh)
  file(GLOB_RECURSE present RELATIVE ${gatefold_include_dir} CONFIGURE_DEPENDS
       ${gatefold_include_dir}/*.hpp ${gatefold_include_dir}/*.cuh)
  list(REMOVE_ITEM present ${umbrellas})
  set(all)
  set(errors)
  foreach(umbrella IN LISTS umbrellas)
    gatefold_listed(listed ${umbrella})
    list(APPEND all ${listed})
    foreach(header IN LISTS listed)
      if(NOT header IN_LIST present)
        string(APPEND errors "\n  include/gatefold/${umbrella} lists ${header}, which does not exist")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES all)
  foreach(header IN LISTS present)
    if(NOT header IN_LIST all)
      string(APPEND errors "\n  include/gatefold/${header} is in no umbrella header: add it to policies.hpp (or to "
                           "gatefold.hpp, gatefold.cuh, papers.hpp, check.hpp, distributed.hpp, io.hpp, "
                           "decoders.hpp, data.hpp, mpi.hpp, nccl.cuh)")
    endif()
  endforeach()
  if(GATEFOLD_BUILD_TESTS)
    foreach(header IN LISTS all)
      string(REGEX REPLACE "\\.hpp$" "_test.cpp" test ${header})
      string(REGEX REPLACE "\\.cuh$" "_test.cu" test ${test})
      if(NOT EXISTS ${PROJECT_SOURCE_DIR}/tests/${test})
        string(APPEND errors "\n  include/gatefold/${header} has no test: write tests/${test}")
        continue()
      endif()
      file(STRINGS ${PROJECT_SOURCE_DIR}/tests/${test} first REGEX "^#include" LIMIT_COUNT 1)
      if(NOT first STREQUAL "#include \"gatefold/${header}\"")
        string(APPEND errors
               "\n  tests/${test}: the first include must be \"gatefold/${header}\", which shows that the "
                             "header compiles alone")
      endif()
    endforeach()
  endif()
  if(errors)
    message(FATAL_ERROR "The header list and the tree disagree:${errors}\n")
  endif()
endfunction()
