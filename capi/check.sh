#!/bin/sh
# Installs the library in homes of two users, one with a space in its path, and builds and starts the example of README.md
# there, by the commands of README.md. Usage: LIBRARY_DIR=FOLDER check.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Nothing but the installed files may tell where the library is.
unset LD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH RANK MAKEFLAGS MAKELEVEL

# block LANGUAGE: prints the only block of README.md in that language.
block() {
    sed -n '/^```'"$1"'$/,/^```$/{/^```/!p;}' "$here/README.md"
}

# home FOLDER: makes a home with a project beside a checkout, and enters the project.
home() {
    rm -rf "$1"
    mkdir -p "$1/first"
    HOME=$1
    export HOME
    ln -s "$(dirname "$here")" "$1/unisono"
    cd "$1/first"
    block c >sum.c
    block cmake >CMakeLists.txt
}

# expect PROGRAM: runs the example, and compares what it prints.
expect() {
    printed=$("$1")
    [ "$printed" = "sum 10" ] || { echo "error: $1 printed '$printed', not 'sum 10'"; exit 1; }
    echo "$1: $printed"
}

home "$1/home"
block console >commands
grep -v '^cmake ' commands >without_cmake
sh -eu without_cmake
expect "$PWD/sum"
# The name that programs look for is that of the interface: the link for compilers is not needed to start one.
rm "$HOME/.local/lib/libunisono.so"
expect "$PWD/sum"

home "$1/home of a user"
make -C ../unisono/capi install PREFIX="$HOME/.local"
PKG_CONFIG_PATH="$HOME/.local/lib/pkgconfig"
export PKG_CONFIG_PATH
eval "${CC:-cc} -pthread sum.c -o sum $(pkg-config --cflags --libs unisono)"
expect "$PWD/sum"

if ! command -v cmake >/dev/null; then
    echo "SKIPPED: the files for CMake are not checked, because cmake is not installed"
    exit 0
fi
block console | grep '^cmake ' >commands
sh -eu commands
expect "$PWD/build/sum"
# refused VERSION: fails if CMake takes the library for that version.
refused() {
    sed "s/find_package(unisono [0-9.]*/find_package(unisono $1/" CMakeLists.txt >"$1.cmake"
    mkdir "$1"
    mv "$1.cmake" "$1/CMakeLists.txt"
    cp sum.c "$1"
    if cmake -S "$1" -B "$1/build" -DCMAKE_PREFIX_PATH="$HOME/.local" >"$1/log" 2>&1; then
        echo "error: CMake takes the library for version $1"
        exit 1
    fi
    grep -q 'compatible with requested version' "$1/log" || { cat "$1/log"; exit 1; }
}
refused 0.0
refused 0.2
refused 1.0
