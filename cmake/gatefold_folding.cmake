# Links our programs with lld, which gives functions and constants with identical bytes one address. Release builds of
# other projects can do the same, for example with link.exe, whose default is /OPT:ICF. Code that identifies an object
# by the address of a constant or a function fails in these programs.
include(CheckCXXSourceCompiles)
set(options -fuse-ld=lld LINKER:--icf=all LINKER:--ignore-data-address-equality)
set(CMAKE_REQUIRED_LINK_OPTIONS ${options})
check_cxx_source_compiles("int main() {}" GATEFOLD_LINKER_FOLDS)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(GATEFOLD_LINKER_FOLDS)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections> $<$<COMPILE_LANGUAGE:CXX>:-fdata-sections>)
  add_link_options(${options})
else()
  message(STATUS "gatefold: lld was not found, so identical functions and constants are not merged")
endif()
