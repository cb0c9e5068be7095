#!/bin/bash
# The README's commands in a Debian 12 that has the packages of tools/demo and nothing else, without variables: tools/demo trains, then
# mezzo is installed, and the README's program is built and run by pkg-config and by CMake. As root, with mmdebstrap. apt fetches the
# packages, with this machine's sources and settings. Objects of BUILD_FOLDER are taken over where ninja finds them up to date.
# Usage: tests/package/bare_root_test.sh BUILD_FOLDER
set -euo pipefail
source=$(realpath "$(dirname "$0")/../..")
build=$(realpath "$1")
work=$(mktemp -d)
root=$work/root
trap 'rm -rf "$work"' EXIT

# The commands of the README's n-th ```sh block.
block() { awk -v n="$1" '/^```sh$/ { inside = ++block == n; next } /^```$/ { inside = 0 } inside' "$source/README.md"; }
packages=$(sed -n 's|^tools/install_packages ||p' "$source/tools/demo" | tr '\n' ' ')
[ -n "$packages" ] || { echo 'bare root: tools/demo names no packages'; exit 1; }

# The entries of this machine's sources for Debian with all their options: lines of *.list, paragraphs of *.sources.
# shellcheck disable=SC2016
apt-get indextargets --format '$(SOURCESENTRY)|$(ORIGIN)' 'Created-By: Packages' | sed -n 's/|Debian$//p' | sort -u >"$work/entries"
while IFS=: read -r file number; do
    case $file in
        *.sources) awk -v n="$number" -v RS= '/(^|\n)Types:/ && ++i == n { print $0 "\n" }' "$file" >>"$work/debian.sources" ;;
        *) sed -n "${number}p" "$file" >>"$work/debian.list" ;;
    esac
done <"$work/entries"
sources=$(find "$work" -maxdepth 1 -name 'debian.*')
[ -n "$sources" ] || { echo 'bare root: apt lists no Debian source; run apt-get update'; exit 1; }
apt-config dump | grep '^Acquire::' >"$work/apt.conf" || true
# Names and passwords for the sources.
# shellcheck disable=SC2016
credentials='for file in /etc/apt/auth.conf /etc/apt/auth.conf.d; do if [ -e "$file" ]; then cp -a "$file" "$1/etc/apt/"; fi; done'
# CMake is what CMake's users have besides. With Catch2, tests are configured, which nothing here may build.
# shellcheck disable=SC2086
mmdebstrap --quiet --setup-hook="$credentials" --variant=apt --aptopt="$work/apt.conf" --aptopt='Acquire::Retries "5"' --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --include="$packages cmake catch2" '' "$root" $sources

# The tree at its own path, so that ninja's commands are those of this machine; without git, which the build does not need.
mkdir -p "$root$source"
tar -C "$source" --exclude='./build*' --exclude=./.git --format=posix -cf - . | tar -C "$root$source" -xf -
in_root() { chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root /bin/bash -euc "cd '$source'; $1"; }
in_root 'meson setup build'
if [ "$build" = "$source/build" ] && [ -f "$build/.ninja_deps" ]; then
    (cd "$build" && find . \( -path '*.p/*.o' -o -name '*.gch' -o -name .ninja_log -o -name .ninja_deps \) ! -path './tests/*' -print0 | tar --null -T - --format=posix -cf -) |
        tar -C "$root$build" -xf -
fi
in_root "$(block 1 | sed -n 1p)"

version=$(sed -n "s/^project('mezzo'.*version: '\([^']*\)', license.*/\1/p" "$source/meson.build")
mkdir "$root/readme" "$root/cmake"
python3 "$source/tests/docs/extract_program.py" "$source/README.md" >"$root/readme/program.cpp"
cp "$source/tests/package/installed/"{CMakeLists.txt,program.cpp} "$root/cmake"
in_root "$(block 2 | sed -n '/^meson install/p')"
tests=$(find "$root$source/build/tests" -name '*.o' -print -quit)
[ -z "$tests" ] || { echo "bare root: meson install has compiled tests: $tests"; exit 1; }
in_root "cd /readme; $(block 2 | sed '/^meson install/d')"
in_root "cd /cmake; { cmake -S . -B build -DVERSION=$version -DCORE_ONLY=ON && cmake --build build; } >log || { cat log; exit 1; }; build/shared $version; build/static $version"
echo 'bare root: the programs of pkg-config and CMake ran'
