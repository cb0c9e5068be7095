#!/bin/bash
# Installs a build into an empty folder and builds a program from outside against it with pkg-config, shared and static.
# Usage: tests/install_test.sh BUILD_FOLDER
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$work/root"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/root" -name mezzo.pc)")
prefix=$work/root$(sed -n 's/^prefix=//p' "$PKG_CONFIG_PATH/mezzo.pc")

cat >"$work/program.cpp" <<'CPP'
#include <mezzo/mezzo.h>

#include <cstring>

// Uses type information, virtual functions and templates of the library from outside.
struct Halving : mezzo::optim::CustomOptimizer {
    explicit Halving(const mezzo::Tensor& w)
        : CustomOptimizer({.name = "Halving", .options = {{"lr", 1}}}, {{.params = {w}}}) {}
    void update(mezzo::optim::ParameterUpdate& p) override { p.value = p.value * 0.5; }
};

bool crosses_the_border() {
    const mezzo::Tensor w = mezzo::ones({2}).set_requires_grad();
    Halving halving(w);
    w.set_grad(mezzo::ones({2}));
    halving.step();
    const mezzo::optim::Optimizer& base = halving;
    if (dynamic_cast<const Halving*>(&base) == nullptr || w.to_vector<double>() != std::vector<double>{0.5, 0.5}) return false;
    try {
        static_cast<void>(mezzo::matmul(mezzo::ones({2, 3}), w));
    } catch (const mezzo::Error& error) {
        return error.kind() == mezzo::ErrorKind::shape;
    }
    return false;
}

int main(int, char** argv) {
    if (std::strcmp(mezzo::version(), argv[1]) != 0) return 2;  // that of mezzo.pc
    if (!crosses_the_border()) return 3;
    mezzo::nn::Linear layer(3, 2);
    mezzo::sum(layer(mezzo::ones({4, 3}))).backward();
    return layer.bias.grad().to_vector<float>() == std::vector<float>{4, 4} ? 0 : 1;
}
CPP
flags() { pkg-config "--define-variable=prefix=$prefix" "$@" mezzo; }
# shellcheck disable=SC2046
c++ $(flags --cflags) "$work/program.cpp" -o "$work/shared" $(flags --libs)
version=$(flags --modversion)
LD_LIBRARY_PATH=$(flags --variable=libdir) "$work/shared" "$version"
libdir=$(flags --variable=libdir)
# shellcheck disable=SC2046
c++ $(flags --cflags) "$work/program.cpp" -o "$work/static" "$libdir/libmezzo.a" \
    $(flags --static --libs | sed 's/-lmezzo\b//')
"$work/static" "$version"
readelf -d "$libdir/libmezzo.so" | grep -q 'SONAME.*libmezzo\.so\.0' || { echo "install: no soname"; exit 1; }
if readelf -d "$libdir/libmezzo.so" | grep -E 'RPATH|RUNPATH'; then
    echo "install: the installed library has a run path"
    exit 1
fi
echo "install: shared and static programs ran"
