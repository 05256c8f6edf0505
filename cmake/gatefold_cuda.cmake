# Finds the CUDA toolkit, for gatefold::cuda and for our own programs of device code. Sets CUDAToolkit_FOUND.

option(GATEFOLD_CUDA_HARDWARE "Build our CUDA programs for a GPU instead of the emulator of tests/cuda_emulator" OFF)
set(GATEFOLD_CUDA_ARCHITECTURES native CACHE STRING "CUDA architectures of our programs that run on a GPU")

set(CUDAToolkit_FOUND FALSE)
if(GATEFOLD_CUDA STREQUAL "AUTO")
  gatefold_find_package(CUDAToolkit 13.0 QUIET GLOBAL)
elseif(GATEFOLD_CUDA)
  gatefold_find_package(CUDAToolkit 13.0 GLOBAL)
  if(NOT CUDAToolkit_FOUND)
    message(FATAL_ERROR
            "GATEFOLD_CUDA is ON, but there is no CUDA toolkit 13.0 or newer: put nvcc into PATH, or name it with "
                        "-DCUDAToolkit_ROOT=folder.")
  endif()
endif()
if(CUDAToolkit_FOUND AND NOT (CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cublas))
  message(STATUS
          "gatefold: the CUDA toolkit in ${CUDAToolkit_LIBRARY_DIR} lacks nvcc or cuBLAS; gatefold::cuda is left out")
  set(CUDAToolkit_FOUND FALSE)
endif()

# gatefold::cuda enables no language, because its users compile with nvcc themselves. Our programs need the language.
if(CUDAToolkit_FOUND AND (GATEFOLD_BUILD_TESTS OR GATEFOLD_BUILD_EXAMPLES OR GATEFOLD_BUILD_BENCH))
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    if(GATEFOLD_CUDA_HARDWARE OR NOT GATEFOLD_BUILD_TESTS)
      set(CMAKE_CUDA_ARCHITECTURES ${GATEFOLD_CUDA_ARCHITECTURES})
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
    endif()
  endif()
  # CMake 3.25.1 does not know that nvcc supports C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  enable_language(CUDA)
  # CMake would stop without a GPU, because there is then no native architecture. Our programs then contain PTX for
  # compute_80, which a driver compiles for its GPU.
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND NOT CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]")
    message(STATUS "gatefold: no GPU was found, so our CUDA programs are compiled for compute_80")
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
  endif()
endif()

# Prepares a program of ours with .cu files: it uses the emulator if the tests built one, otherwise NVIDIA's libraries.
function(gatefold_cuda_program target)
  target_link_libraries(${target} PRIVATE gatefold_warnings)
  if(NOT TARGET cuda_emulator)
    target_link_libraries(${target} PRIVATE gatefold_cuda)
    return()
  endif()
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20)
  cuda_emulator_program(${target})
  target_link_libraries(${target} PRIVATE gatefold_policies)
endfunction()

# Everyday tests skip nvcc's slowest optimisations of device code, which are half of its time. Alternatives that were
# tried: `mid` takes the full time; `max` takes a third less, but the emulator then takes four times as long.
function(gatefold_fast_device_code target)
  if(NOT GATEFOLD_CUDA_HARDWARE AND NOT GATEFOLD_SLOW_TESTS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=min>)
  endif()
endfunction()

# gatefold_cuda_example_test(<program> COMMAND <command>...): adds cuda/examples/<program>, the test of an example.
function(gatefold_cuda_example_test program)
  if(GATEFOLD_BUILD_TESTS)
    add_test(NAME cuda/examples/${program} ${ARGN})
    set_tests_properties(cuda/examples/${program} PROPERTIES LABELS cuda)
    add_dependencies(cuda_tests ${program})
    gatefold_fast_device_code(${program})
  endif()
endfunction()
