# gatefold_find_package(<argument of find_package>...): find_package, of the CUDA toolkit too. The module that CMake
# 3.25 has for it stops at CUDA 13, which has no nvToolsExt any more, where a project asks for that CMake or a newer
# one.
macro(gatefold_find_package)
  set(gatefold_cmake_asked_for ${CMAKE_MINIMUM_REQUIRED_VERSION})
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(${ARGN})
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${gatefold_cmake_asked_for})
endmacro()
