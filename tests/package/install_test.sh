#!/bin/bash
# Installs a build into an empty folder and builds a program from outside against it: with pkg-config and with CMake, shared and
# static, with each compiler that is there. Usage: tests/package/install_test.sh BUILD_FOLDER
set -euo pipefail
here=$(realpath "$(dirname "$0")")
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "install: $*"
    exit 1
}

meson install -C "$build" --no-rebuild --quiet --destdir "$work/root"
# mezzo.pc alone: a program that links the shared library needs no other package's development files.
PKG_CONFIG_LIBDIR=$(dirname "$(find "$work/root" -name mezzo.pc)")
export PKG_CONFIG_LIBDIR
prefix=$work/root$(sed -n 's/^prefix=//p' "$PKG_CONFIG_LIBDIR/mezzo.pc")
flags() { pkg-config "--define-variable=prefix=$prefix" "$@" mezzo; }
version=$(flags --modversion)
libdir=$(flags --variable=libdir)
export LD_LIBRARY_PATH=$libdir
cp "$here"/installed/* "$work"

# built_with COMPILER: the program over the shared library, over the static one, and without any shared library.
built_with() {
    local object=$work/$1.o
    # shellcheck disable=SC2046
    "$1" $(flags --cflags) -c "$work/program.cpp" -o "$object"
    # shellcheck disable=SC2046
    "$1" "$object" -o "$work/shared" $(flags --libs)
    "$work/shared" "$version" || fail "$1, shared: exit code $?"
    # The whole archive, so that nothing which the library needs besides is left out because this program does without it.
    # shellcheck disable=SC2046
    "$1" "$object" -o "$work/static" \
        $(flags --static --libs | sed 's/-lmezzo\b/-Wl,--whole-archive -l:libmezzo.a -Wl,--no-whole-archive/')
    "$work/static" "$version" || fail "$1, static: exit code $?"
    # Without any shared library: what the library needs besides has static ones, on Debian, too.
    # shellcheck disable=SC2046
    "$1" -static "$object" -o "$work/all_static" $(flags --static --libs) 2>"$work/warnings" || fail "$(cat "$work/warnings")"
    "$work/all_static" "$version" || fail "$1, all static: exit code $?"
    ldd "$work/shared" | grep -E 'png|jpeg|utf8proc|libz|pcre|gloo|mezzo_' && fail "$1: the core's program needs these"
    # shellcheck disable=SC2046
    "$1" $(flags --cflags) -c "$work/components.cpp" -o "$object"
    for_components "$1" "$object"
}

# for_components COMPILER OBJECT: the program that uses all of them, by their own pkg-config files.
for_components() {
    local all
    all=$(cd "$PKG_CONFIG_LIBDIR" && ls mezzo-*.pc)
    all=${all//.pc/}
    components() { pkg-config "--define-variable=prefix=$prefix" "$@" $all; }
    # shellcheck disable=SC2046
    "$1" "$2" -o "$work/with_shared" $(components --libs)
    "$work/with_shared" || fail "$1, components, shared: exit code $?"
    # shellcheck disable=SC2046
    "$1" -static "$2" -o "$work/with_static" $(components --static --libs) 2>"$work/warnings" || fail "$(cat "$work/warnings")"
    "$work/with_static" || fail "$1, components, static: exit code $?"
}

# found_by_cmake COMPILER: the same program, by the targets of mezzoConfig.cmake.
found_by_cmake() {
    cmake -S "$work" -B "$work/cmake-$1" "-DCMAKE_CXX_COMPILER=$1" "-DCMAKE_PREFIX_PATH=$prefix" "-DVERSION=$version" >"$work/log" &&
        cmake --build "$work/cmake-$1" >>"$work/log" || fail "$(cat "$work/log")"
    "$work/cmake-$1/shared" "$version" || fail "$1, CMake, shared: exit code $?"
    "$work/cmake-$1/static" "$version" || fail "$1, CMake, static: exit code $?"
    "$work/cmake-$1/with_shared" || fail "$1, CMake, components, shared: exit code $?"
    "$work/cmake-$1/with_static" || fail "$1, CMake, components, static: exit code $?"
}

compilers=(g++)
if command -v clang++-14 >/dev/null; then compilers+=(clang++-14); fi
for compiler in "${compilers[@]}"; do
    built_with "$compiler"
    if command -v cmake >/dev/null; then found_by_cmake "$compiler"; fi
done
if command -v cmake >/dev/null; then
    (cd "$work" && cmake "-DTEMPLATE=$here/../../tools/packaging/mezzoConfigVersion.cmake.in" -P versions.cmake)
    grep -rl -e "${libdir#"$work/root"}" "$libdir/cmake" && fail "these files do not bear being moved"
fi

# The name that programs ask for at run time carries the interface: 0.1 of 0.1.0, 1 of 1.2.3.
interface=$(sed -E 's/^(0\.[0-9]+|[0-9]+).*/\1/' <<<"$version")
readelf -d "$libdir/libmezzo.so" | grep "SONAME.*\[libmezzo\.so\.$interface\]" >/dev/null || fail "the soname is not that of version $version"
[ "$(readlink "$libdir/libmezzo.so")" = "libmezzo.so.$interface" ] || fail "libmezzo.so is no link to libmezzo.so.$interface"
[ "$(readlink "$libdir/libmezzo.so.$interface")" = "libmezzo.so.$version" ] || fail "libmezzo.so.$interface is no link to libmezzo.so.$version"
readelf -d "$libdir/libmezzo.so" | grep -E 'RPATH|RUNPATH' && fail "the installed library has a run path"
readelf -d "$libdir/libmezzo.so" | grep 'NEEDED.*libfmt' && fail "the library needs libfmt"
readelf -n "$libdir/libmezzo.so" | grep 'Build ID' >/dev/null || fail "no build ID, whatever LDFLAGS say"

doc=$prefix/share/doc/mezzo
cmp "$here/../../LICENSE" "$doc/LICENSE"
for file in README.md docs samples; do diff -r "$here/../../$file" "$doc/$file"; done
# A sample is built from where it was installed.
# shellcheck disable=SC2046
g++ $(flags --cflags) -fsyntax-only "$doc/samples/gallery/csv_regression.cpp"
echo "install: shared and static programs of ${compilers[*]} ran"
