#!/usr/bin/env bash
# build.sh: builds the API reference as a site, build/docs/html/index.html, from the doc comments of include/ and the
# pages of docs/. Fails if a public name has no documentation, a reference has no target, or a link is broken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/install_packages.sh
install_packages doxygen python3
export OUT=build/docs GROUPS_MD=build/docs/groups.dox MAIN_MD=build/docs/gatefold.md
rm -rf "$OUT"
mkdir -p "$OUT"
cp README.md "$MAIN_MD"  # Doxygen would use every README.md as the main page
VERSION=$(sed -nE 's/^#define GATEFOLD_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/gatefold/version.hpp |
  paste -sd.)
export VERSION
python3 docs/site/groups.py >"$GROUPS_MD"
doxygen -l "$OUT/layout.xml"
# The page of a class begins with its equation and description, followed by its members.
sed -i -e '/<detaileddescription/d' -e 's/<briefdescription visible="yes"\/>/<detaileddescription title=""\/>/' \
  "$OUT/layout.xml"
doxygen docs/site/Doxyfile
python3 docs/site/check.py "$OUT"
echo "build/docs/html/index.html"
