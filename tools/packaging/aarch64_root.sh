#!/bin/bash
# Unpacks Debian's arm64 packages that mezzo, its samples and its tests are built with into a folder, and writes FOLDER/root.ini, which tells
# Meson where they are. apt-get keeps lists and packages of its own there: what is installed on this machine, and for which architectures,
# stays as it is, so that root's rights are not needed. Usage: aarch64_root.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?aarch64_root.sh: which folder?}")
packages=(catch2 libcli11-dev nlohmann-json3-dev libfmt-dev libfmt9 libutf8proc-dev libutf8proc2 zlib1g-dev zlib1g
          libpng-dev libpng16-16 libjpeg62-turbo-dev libjpeg62-turbo libpcre2-dev libpcre2-8-0
          libgloo-dev libgloo0 libhiredis0.14 libibverbs1 libnl-3-200 libnl-route-3-200)

mkdir -p "$folder"/{lists,cache/archives,packages}/partial "$folder/root"
cat >"$folder/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures {"arm64";};
APT::Sandbox::User "";
Dir::State::lists "$folder/lists";
Dir::State::status "/dev/null";
Dir::Cache "$folder/cache";
END
export APT_CONFIG=$folder/apt.conf
apt-get -q update
(cd "$folder/packages" && apt-get -q download "${packages[@]}")
for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/root"; done
# Some lie in /lib, which is /usr/lib on an installed system, and the linker would follow this link to the machine's own /lib.
if [ -d "$folder/root/lib" ]; then cp -a "$folder/root/lib/." "$folder/root/usr/lib/" && rm -r "$folder/root/lib"; fi
ln -sf libz.so.1 "$folder/root/usr/lib/aarch64-linux-gnu/libz.so"
printf "[constants]\nroot = '%s'\n" "$folder/root" >"$folder/root.ini"
