# What clang++ -O0 compiles where g++ compiles the rest: its time is less than half of g++ -Og's, and what many
# compositions of policies and the programs of examples/ take longer to run is less than that. (Not the loops of
# bitwise/ over thousands of items, which take three times as long.) Where both compilers see the same processor:
# objects of the two are linked together. Sets by_clang.
set(GATEFOLD_TEST_FOLDERS_BY_CLANG "" CACHE STRING
    "Where g++ compiles the rest, compile the tests of these top folders of tests/ by clang++ -O0 (and the programs of \
folders of examples/, `examples`, in a unity build)")

set(by_clang)
if(GATEFOLD_CLANG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CROSSCOMPILING)
  function(same_instruction_set out)
    gatefold_instruction_set(of_gnu)
    set(CMAKE_CXX_COMPILER ${GATEFOLD_CLANG})
    gatefold_instruction_set(of_clang)
    string(COMPARE EQUAL "${of_gnu}" "${of_clang}" same)
    set(${out} ${same} PARENT_SCOPE)
  endfunction()
  same_instruction_set(same)
  if(same)
    set(by_clang ${GATEFOLD_TEST_FOLDERS_BY_CLANG})
  endif()
endif()
# compile_by_clang(<target>)
function(compile_by_clang target)
  set(launcher ${GATEFOLD_BASH} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/by_clang.sh ${CMAKE_CXX_COMPILER_LAUNCHER})
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${launcher};${GATEFOLD_CLANG};instead_of")
  target_compile_options(${target} PRIVATE -O0 -Qunused-arguments)  # what g++ alone knows
endfunction()
