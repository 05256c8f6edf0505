#!/usr/bin/env bash
# bare.sh SOURCE WORK: makes a bare Debian 12 with debootstrap and runs the commands of README.md in it: the first
# commands, which install the needed packages, build and train, and the commands that install gatefold and use it
# (readme.sh). Runs without nvcc and, if this machine has a CUDA toolkit, also with it. Exits with 77 without root,
# debootstrap or the Debian archive.
set -euo pipefail
source=$1 work=$2
[[ $(id -u) == 0 ]] && command -v debootstrap >/dev/null || { echo "skipped: needs root and debootstrap"; exit 77; }
if [[ -z ${GATEFOLD_BARE_MOUNTS:-} ]]; then  # the mounts end with this process
  GATEFOLD_BARE_MOUNTS=1 exec unshare --mount bash "$0" "$@"
fi
rm -rf "$work"
mkdir -p "$work"
root=$work/root
debootstrap --variant=minbase bookworm "$root" http://deb.debian.org/debian >"$work/log" 2>&1 ||
  { tail -n 3 "$work/log"; echo "skipped: no archive of Debian"; exit 77; }
cp /etc/resolv.conf "$root/etc/"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir "$root/gatefold"
for entry in CMakeLists.txt CMakePresets.json README.md LICENSE bench cmake examples include tests; do
  cp -r "$source/$entry" "$root/gatefold/"
done
# typed WHAT LINE: runs the line in the bare system, without the environment of this script.
typed() {
  echo "$1"
  chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    TERM=dumb DEBIAN_FRONTEND=noninteractive ${3:+"$3"} bash -c "cd /gatefold && $2" >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log"; exit 1; }
}
typed "bash examples/run.sh" "bash examples/run.sh --epochs 1"
grep -q "^test accuracy" "$work/log" || { tail -n 20 "$work/log"; exit 1; }
typed "what README.md names" "apt-get install -y pkg-config make"
typed "installed and used without nvcc" "bash tests/package/readme.sh /gatefold /readme && ! command -v nvcc"
if [[ -x /usr/local/cuda/bin/nvcc ]]; then
  mkdir -p "$root/usr/local/cuda"
  mount --rbind "$(readlink -f /usr/local/cuda)" "$root/usr/local/cuda"
  typed "installed and used with nvcc" \
    "export PATH=\$PATH:/usr/local/cuda/bin && bash tests/package/readme.sh /gatefold /readme"
  grep -q "without a CUDA toolkit" "$work/log"
fi
