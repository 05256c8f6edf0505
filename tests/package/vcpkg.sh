#!/usr/bin/env bash
# vcpkg.sh ROOT: checks that the vcpkg port agrees with the library in version, licence and the packages that CMake
# looks for.
cd "$1" || exit 2
bad=0
expect() { [[ $2 == "$3" ]] || { echo "cmake/vcpkg: $1: expected $3, got $2"; bad=1; }; }
field() { sed -nE "s/^ *\"$1\": \"([^\"]*)\".*/\1/p" cmake/vcpkg/vcpkg.json | head -n 1; }
version=$(sed -nE 's/^#define GATEFOLD_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/gatefold/version.hpp |
  paste -sd.)
expect name "$(field name)" gatefold
expect version-semver "$(field version-semver)" "$version"
expect description "$(field description)" "$(sed -nE 's/^ *DESCRIPTION "(.*)"\)$/\1/p' CMakeLists.txt)"
expect license "$(field license)" "$(sed -nE 's/^license: (.*)/\1/p' CITATION.cff)"
expect "CITATION.cff version" "$(sed -nE 's/^version: (.*)/\1/p' CITATION.cff)" "$version"
head -n 3 LICENSE | grep -q "Apache License" || { echo "LICENSE: not Apache's"; bad=1; }
for dependency in eigen3 nlohmann-json zlib mpi; do
  grep -q "\"$dependency\"" cmake/vcpkg/vcpkg.json || { echo "cmake/vcpkg: no dependency $dependency"; bad=1; }
done
exit $bad
