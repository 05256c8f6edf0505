# This overlay port has not been run, because vcpkg downloads from hosts that the project's machines cannot reach. Only
# tests/package/vcpkg.sh checks its fields.
#   vcpkg install gatefold --overlay-ports=<repository>/cmake/vcpkg
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../..")
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DGATEFOLD_CUDA=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/gatefold)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
