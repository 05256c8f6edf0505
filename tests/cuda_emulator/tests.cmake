# The tests of the emulator. Each file is one test of CTest.

# Tests that run only on the host need no nvcc.
add_executable(test_cuda_emulator ${emulator_tests})
target_compile_options(test_cuda_emulator PRIVATE -frounding-math -Wall -Wextra -Wpedantic)
target_link_libraries(test_cuda_emulator PRIVATE cuda_emulator_main ${CMAKE_DL_LIBS})
find_library(CUDA_EMULATOR_CUDART cudart HINTS ${CUDAToolkit_LIBRARY_DIR})
find_library(CUDA_EMULATOR_CUBLAS cublas HINTS ${CUDAToolkit_LIBRARY_DIR})
find_library(CUDA_EMULATOR_NCCL nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
target_compile_definitions(test_cuda_emulator PRIVATE CUDA_EMULATOR_CUDART="${CUDA_EMULATOR_CUDART}"
                           CUDA_EMULATOR_CUBLAS="${CUDA_EMULATOR_CUBLAS}" CUDA_EMULATOR_NCCL="${CUDA_EMULATOR_NCCL}")
foreach(source IN LISTS emulator_tests)
  cmake_path(GET source FILENAME file)
  string(REPLACE "_test.cpp" "" name ${file})
  add_test(NAME ${CUDA_EMULATOR_TEST_PREFIX}${name} COMMAND test_cuda_emulator --source-file=*/${file})
  # doctest succeeds if a filter matches no case, but here that is a failure.
  set_tests_properties(${CUDA_EMULATOR_TEST_PREFIX}${name} PROPERTIES LABELS cuda FAIL_REGULAR_EXPRESSION
                       "test cases: *0 \\|;assertions: *0 \\|")
endforeach()

# Errors that no assertion checks must fail a case, too.
foreach(neglect IN ITEMS
        "memory=device allocations: expected 0 alive as before the case, got 1"
        "stream=cuBLAS handles and pinned allocations: expected 0 alive as before the case, got 1"
        "pending_failure=cudaMalloc: expected a call that fails with cudaErrorMemoryAllocation, got none"
        "race=two threads")
  string(REGEX MATCH "^[^=]*" name "${neglect}")
  string(REGEX REPLACE "^[^=]*=" "" message "${neglect}")
  set(test ${CUDA_EMULATOR_TEST_PREFIX}neglect_${name})
  add_test(NAME ${test} COMMAND test_cuda_emulator --no-skip --test-suite=neglect --test-case=${name})
  set_tests_properties(${test} PROPERTIES LABELS cuda PASS_REGULAR_EXPRESSION
                       "ERROR: ${name}: [^\n]*${message}.*0 passed *\\| *1 failed")
endforeach()

# Tests that need nvcc.
if(NOT CMAKE_CUDA_COMPILER)
  if(NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
  enable_language(CUDA)
endif()
foreach(name IN ITEMS devices runtime_kernels mutants tensor_core_mutants tensor_product tensor_tiles)
  set(test ${CUDA_EMULATOR_TEST_PREFIX}${name})
  set(arch 80)
  if(name MATCHES tensor_)
    set(arch 90a)
  endif()
  string(REPLACE a "" compute_capability ${arch})
  add_executable(test_cuda_emulator_${name} ${name}_test.cu)
  # CMake 3.25 does not know that nvcc has C++20.
  target_compile_options(test_cuda_emulator_${name} PRIVATE
                         $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Xcompiler=-Wall,-Wextra>)
  cuda_emulator_program(test_cuda_emulator_${name} ARCH ${arch})
  target_link_libraries(test_cuda_emulator_${name} PRIVATE cuda_emulator_main)
  add_test(NAME ${test} COMMAND test_cuda_emulator_${name})
  set_tests_properties(${test} PROPERTIES LABELS cuda FAIL_REGULAR_EXPRESSION "assertions: *0 \\|"
                       ENVIRONMENT GATEFOLD_EMULATOR_CC=${compute_capability})
endforeach()

# Builds a project as README.md shows it.
if(PROJECT_IS_TOP_LEVEL)
  add_test(NAME ${CUDA_EMULATOR_TEST_PREFIX}example
           COMMAND ${CMAKE_CTEST_COMMAND}
                   --build-and-test ${CMAKE_CURRENT_SOURCE_DIR}/example ${CMAKE_CURRENT_BINARY_DIR}/example
                   --build-generator ${CMAKE_GENERATOR} --build-options -DCMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}
                   --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure)
endif()
