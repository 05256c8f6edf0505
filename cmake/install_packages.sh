# Sourced by the run scripts. install_packages NAME... installs the missing Debian packages and prints their names.
install_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    { echo "this is not a Debian system; these packages are needed: $*"; return 0; }
  local package missing=() as_root=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  echo "installing with apt-get: ${missing[*]}"
  ((EUID == 0)) || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
