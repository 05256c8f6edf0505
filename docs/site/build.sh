#!/usr/bin/env bash
# build.sh: builds the site, build/docs/html/index.html, from the doc comments of include/ and the pages of docs/. Fails
# if a public name has no documentation, a reference has no target, or a link is broken. Needs no network and no
# JavaScript package: the theme is Debian's doxygen-awesome-css, and equations are MathML.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/install_packages.sh
install_packages doxygen doxygen-awesome-css python3
export OUT=build/docs GROUPS_MD=build/docs/groups.dox MAIN_MD=build/docs/gatefold.md PYTHONDONTWRITEBYTECODE=1
THEME=/usr/share/doxygen-awesome-css
rm -rf "$OUT"
mkdir -p "$OUT"
cp README.md "$MAIN_MD"  # Doxygen would use every README.md as the main page
VERSION=$(sed -nE 's/^#define GATEFOLD_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/gatefold/version.hpp |
  paste -sd.)
export VERSION
python3 docs/site/groups.py >"$GROUPS_MD"
python3 docs/site/examples.py "$OUT/examples.json"
doxygen -l "$OUT/layout.xml"
python3 docs/site/pages.py "$OUT/layout.xml"
{
  cat docs/site/Doxyfile
  if [[ -d $THEME ]]; then  # without the theme, Doxygen's own style is used below site.css
    echo "HTML_EXTRA_STYLESHEET = $THEME/doxygen-awesome.css $THEME/doxygen-awesome-sidebar-only.css docs/site/site.css"
  fi
  if [[ $(printf '%s\n' 1.9.5 "$(doxygen --version)" | sort -V | head -n 1) == 1.9.5 ]]; then
    echo "HTML_COLORSTYLE = LIGHT"  # the theme has a dark mode of its own
  fi
} >"$OUT/Doxyfile"
nice doxygen "$OUT/Doxyfile"
python3 docs/site/check.py "$OUT"
echo "build/docs/html/index.html"
