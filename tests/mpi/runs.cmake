# Tests with several processes:
# - the tests of distributed/mpi* with 1 to 4 processes
# - runs in which one process fails
# - training, which must compute the same bits with every number of processes
# - checkpoints of a run in which one process is killed
target_link_libraries(test_distributed PRIVATE gatefold::mpi)
set(runs)
foreach(processes RANGE 1 4)
  add_test(NAME distributed/mpi_${processes} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${processes}
                                              $<TARGET_FILE:test_distributed> --source-file=*/distributed/mpi*_test.cpp)
  set_tests_properties(distributed/mpi_${processes} PROPERTIES LABELS unit FAIL_REGULAR_EXPRESSION
                       "test cases: *0 \\|;assertions: *0 \\|")
  list(APPEND runs distributed/mpi_${processes})
endforeach()

# These tests are left out with sanitizers, which make them slow, unless slow tests run. The tests of
# distributed/expert_parallel, distributed/checkpoint and others check the same code with sanitizers.
if(NOT CMAKE_CXX_FLAGS_DEBUG MATCHES "-fsanitize" OR GATEFOLD_SLOW_TESTS)
  add_executable(mpi_failures mpi/failures.cpp)
  target_link_libraries(mpi_failures PRIVATE gatefold::mpi gatefold_warnings)
  add_test(NAME distributed/failures
           COMMAND ${GATEFOLD_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/mpi/failures.sh $<TARGET_FILE:mpi_failures>
           ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3)
  set(bits_of 1.1 3.2)  # PROCESSES.THREADS: see mpi/bits.sh
  if(GATEFOLD_SLOW_TESTS)
    list(APPEND bits_of 1.2 2.1 2.2 3.1 4.1 4.2)
  endif()
  add_executable(mpi_bits mpi/bits.cpp)
  target_link_libraries(mpi_bits PRIVATE gatefold_test_base ${kernels} gatefold::mpi)
  add_test(NAME distributed/bits
           COMMAND ${GATEFOLD_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/mpi/bits.sh $<TARGET_FILE:mpi_bits>
           ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${bits_of})
  add_executable(mpi_checkpoints mpi/checkpoints.cpp)
  target_link_libraries(mpi_checkpoints PRIVATE gatefold_test_base ${kernels} gatefold::mpi)
  add_test(NAME distributed/checkpoints
           COMMAND ${GATEFOLD_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/mpi/checkpoints.sh $<TARGET_FILE:mpi_checkpoints>
           ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG})
  if("mpi" IN_LIST by_clang)
    compile_by_clang(mpi_bits)
    compile_by_clang(mpi_checkpoints)
  endif()
  list(APPEND runs distributed/failures distributed/bits distributed/checkpoints)
endif()
set_tests_properties(${runs} PROPERTIES PROCESSORS 2 TIMEOUT 300)

gatefold_listed(alone mpi.hpp)  # the tests of this header also run as one process, without a launcher
list(TRANSFORM alone REPLACE "\\.hpp$" "")
set_tests_properties(${runs} ${alone} PROPERTIES ENVIRONMENT "${gatefold_mpi_environment}" RESOURCE_LOCK mpi)
