# Finds the packages that the targets of gatefold link. Our CMakeLists.txt and gatefoldConfig.cmake include this file.
# If the project already has a target, for example from FetchContent, gatefold uses that target.
include_guard(GLOBAL)

# gatefold_find_package(<argument of find_package>...)
# Calls find_package as if the project required CMake 3.24. If it requires CMake 3.25 or newer, the module
# FindCUDAToolkit of CMake 3.25 stops at CUDA 13, because CUDA 13 does not contain nvToolsExt any more.
macro(gatefold_find_package)
  set(gatefold_cmake_asked_for ${CMAKE_MINIMUM_REQUIRED_VERSION})
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(${ARGN})
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${gatefold_cmake_asked_for})
endmacro()

# gatefold_find_target(<target> <argument of find_package>...)
# Finds the package that defines <target>, unless the project has <target>. Returns without a message if there is none.
function(gatefold_find_target target)
  if(NOT TARGET ${target})
    gatefold_find_package(${ARGN} QUIET)
  endif()
endfunction()

# gatefold_find_eigen(<reason> [<argument of find_package>...])
# Finds Eigen 3.4 or 5, unless the project has Eigen3::Eigen. Sets <reason> to one sentence if there is no such target.
function(gatefold_find_eigen reason)
  set(${reason} "" PARENT_SCOPE)
  if(TARGET Eigen3::Eigen)
    return()
  endif()
  # No request finds both versions: the version file of Eigen 5 refuses 3.4, and the version file of Eigen 3.4.0 refuses
  # every range that includes 5. So we request a version that does not exist. find_package then lists the packages in
  # the order of its search and loads none of them.
  set(CMAKE_REQUIRE_FIND_PACKAGE_Eigen3 FALSE)
  find_package(Eigen3 0.0.0.1 EXACT QUIET NO_MODULE ${ARGN})
  if(TARGET Eigen3::Eigen)  # FetchContent or a dependency provider answers every request
    return()
  endif()
  set(refused)
  foreach(config version IN ZIP_LISTS Eigen3_CONSIDERED_CONFIGS Eigen3_CONSIDERED_VERSIONS)
    if(version VERSION_GREATER_EQUAL 3.4 AND version VERSION_LESS 6)
      cmake_path(GET config PARENT_PATH folder)
      find_package(Eigen3 QUIET NO_MODULE ${ARGN} PATHS ${folder} NO_DEFAULT_PATH)
      if(TARGET Eigen3::Eigen)
        return()
      endif()
    endif()
    string(APPEND refused ", found ${version} (${config})")
  endforeach()
  if(NOT refused)
    set(refused ", found none")
  endif()
  set(${reason} "gatefold: Eigen: expected version 3.4 or 5${refused}; install it (Debian: libeigen3-dev), name its \
folder with -DEigen3_DIR=folder, or define the target Eigen3::Eigen first" PARENT_SCOPE)
endfunction()
