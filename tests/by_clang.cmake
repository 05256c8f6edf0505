# Selects the tests that clang++ -O0 compiles in a build in which g++ compiles all other code. Sets the list by_clang.
# clang++ -O0 takes less than half of the time of g++ -Og. Tests of many compositions of policies and the programs of
# examples/ then run longer, but compiling them saves more time than that. For example, bitwise/ takes 40 s instead of
# 149 s to compile, and 23 s instead of 16 s to run. It does not run even longer, because gatefold::kernels is compiled
# separately and optimised. Both compilers must use the same instruction set, because their objects are linked together.
set(GATEFOLD_TEST_FOLDERS_BY_CLANG "" CACHE STRING
    "In builds with g++: compile the tests of these top folders of tests/ with clang++ -O0 (`examples`: in a unity \
build, the programs in the folders of examples/)")

set(by_clang)
if(GATEFOLD_CLANG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CROSSCOMPILING)
  # instruction_set(<out> <compiler>): sets <out> to the name that the CPU backend has for the compiler's instruction
  # set.
  function(instruction_set out compiler)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
    separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
    get_target_property(eigen Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/instruction_set.cpp)
    file(WRITE ${source} "#include <gatefold/backend/cpu/instruction_set.hpp>\nGATEFOLD_CPU_ABI\n")
    execute_process(COMMAND ${compiler} -std=c++20 ${flags} -I ${PROJECT_SOURCE_DIR}/include -isystem ${eigen} -E -P
                            ${source} OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCH "[a-z0-9_]+[ \n]*$" name "${text}")
    set(${out} "${name}" PARENT_SCOPE)
  endfunction()
  instruction_set(of_gnu ${CMAKE_CXX_COMPILER})
  instruction_set(of_clang ${GATEFOLD_CLANG})
  if(of_gnu AND of_gnu STREQUAL of_clang)
    set(by_clang ${GATEFOLD_TEST_FOLDERS_BY_CLANG})
  endif()
endif()
# compile_by_clang(<target>): compiles the sources of the target with clang++ -O0.
function(compile_by_clang target)
  set(launcher ${GATEFOLD_BASH} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/by_clang.sh ${CMAKE_CXX_COMPILER_LAUNCHER})
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${launcher};${GATEFOLD_CLANG};instead_of")
  target_compile_options(${target} PRIVATE -O0 -Qunused-arguments)  # clang++ does not know some options of g++
endfunction()
