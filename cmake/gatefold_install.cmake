# Installs the headers, the CMake package and the pkg-config file. The package and the pkg-config file do not depend on
# the architecture, so they are in share/ instead of lib/.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/gatefold)

# One export per component, so that a consumer without the component io does not need nlohmann-json.
install(TARGETS gatefold_policies gatefold EXPORT gatefoldTargets FILE_SET HEADERS)
install(EXPORT gatefoldTargets NAMESPACE gatefold:: DESTINATION ${package_dir})
foreach(component io data mpi cuda nccl)
  if(NOT TARGET gatefold_${component})
    continue()
  endif()
  install(TARGETS gatefold_${component} EXPORT gatefold_${component}Targets FILE_SET HEADERS)
  install(EXPORT gatefold_${component}Targets NAMESPACE gatefold:: DESTINATION ${package_dir})
endforeach()

# Before version 1.0, a new minor version can be incompatible.
write_basic_package_version_file(gatefoldConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
configure_file(${PROJECT_SOURCE_DIR}/cmake/gatefold.pc.in gatefold.pc @ONLY)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/gatefoldConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gatefoldConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/gatefold_dependencies.cmake ${PROJECT_SOURCE_DIR}/cmake/gatefold_nccl.cmake
        DESTINATION ${package_dir})
# The sources of gatefold::kernels are installed, because the project that uses it builds it.
install(FILES ${PROJECT_SOURCE_DIR}/cmake/gatefold_kernels.cmake ${PROJECT_SOURCE_DIR}/cmake/gatefold_kernels.cpp
              ${PROJECT_SOURCE_DIR}/cmake/gatefold_kernels_io.cpp
        DESTINATION ${package_dir})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gatefold.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)

# `cpack` in the build folder makes a Debian package of the headers.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME libgatefold-dev)
  set(CPACK_PACKAGE_CONTACT "The gatefold authors")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libeigen3-dev (>= 3.4)")
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "nlohmann-json3-dev, zlib1g-dev")  # components io and data
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenmpi-dev")  # component mpi
  include(CPack)
endif()
