# Calls cover.sh, which generates tests and lists from the descriptor rows in this folder.
set(descriptors ${CMAKE_CURRENT_LIST_DIR})
find_program(GATEFOLD_BASH bash REQUIRED)
file(GLOB rows CONFIGURE_DEPENDS ${descriptors}/*)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${rows})

# cover(KIND OUT [MOST]): generates the tests of a kind, with at most MOST compositions in a file, and sets OUT to the
# paths of the files. cover.sh lists the kinds.
function(cover kind out)
  set(folder ${CMAKE_BINARY_DIR}/tests/${kind})
  make_from_rows(${kind} ${folder} ${ARGN})
  file(GLOB made ${folder}/*_test.c*)
  set(${out} ${made} PARENT_SCOPE)
endfunction()

# list_rows(FOLDER): writes FOLDER/<family>.inc for each family, with a line ROW(row) for each row.
function(list_rows folder)
  make_from_rows(list ${folder})
endfunction()

function(make_from_rows kind folder)
  execute_process(COMMAND ${GATEFOLD_BASH} ${descriptors}/cover.sh ${kind} ${folder} ${ARGN}
                  OUTPUT_VARIABLE said RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  message(STATUS "rows of tests/descriptors: ${said}")
  if(failed)
    message(FATAL_ERROR "tests/descriptors/cover.sh ${kind} failed")
  endif()
endfunction()
