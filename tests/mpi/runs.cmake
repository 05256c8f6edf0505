# What takes several processes: the tests of dist/mpi* under 1 to 4 of them, and runs of which one fails. Variables of
# Open MPI's, which others do not read: as root, more processes than processors, none bound to one, all on this machine,
# and nothing that a container may forbid. It leaves memory that it has allocated.
set(environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
                OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_plm=isolated OMPI_MCA_ess_singleton_isolated=1
                OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none
                ASAN_OPTIONS=detect_leaks=0)

target_link_libraries(test_dist PRIVATE gatefold::mpi)
set(runs)
foreach(processes RANGE 1 4)
  add_test(NAME dist/mpi_${processes} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${processes}
                                              $<TARGET_FILE:test_dist> --source-file=*/tests/dist/mpi*_test.cpp)
  set_tests_properties(dist/mpi_${processes} PROPERTIES LABELS unit FAIL_REGULAR_EXPRESSION
                       "test cases: *0 \\|;assertions: *0 \\|")
  list(APPEND runs dist/mpi_${processes})
endforeach()

add_executable(mpi_failures mpi/failures.cpp)
target_link_libraries(mpi_failures PRIVATE gatefold::mpi gatefold_warnings)
add_test(NAME dist/failures
         COMMAND ${GATEFOLD_BASH} ${CMAKE_CURRENT_SOURCE_DIR}/mpi/failures.sh $<TARGET_FILE:mpi_failures>
         ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3)
list(APPEND runs dist/failures)
set_tests_properties(${runs} PROPERTIES PROCESSORS 2 TIMEOUT 120)

gatefold_listed(alone mpi.hpp)  # whose tests are also run as one process, without a launcher
list(TRANSFORM alone REPLACE "\\.hpp$" "")
set_tests_properties(${runs} ${alone} PROPERTIES ENVIRONMENT "${environment}")
