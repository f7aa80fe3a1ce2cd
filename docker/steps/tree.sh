#!/bin/sh
# tree.sh ARCH WHEELS OUT: everything that the image adds to Debian and Python, laid out below OUT.
#
# Nothing made for ARCH is run here, so this needs no emulation; the Python that runs this must be
# of the image's version.
set -eu
. "$(dirname "$0")/target.sh"
wheels=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
rm -rf "${out:?}/usr/local" # of an earlier call

version=$(/opt/build/bin/python -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
site=$out/usr/local/lib/python$version/dist-packages
mkdir -p "$site" "$out/usr/local/bin"

platforms="--platform linux_$machine"
for minor in $(seq 17 41); do # up to the glibc of Debian 13
    platforms="--platform manylinux_2_${minor}_$machine $platforms"
done
# shellcheck disable=SC2086 # one word an option
/opt/build/bin/pip install --no-cache-dir --no-compile --only-binary=:all: $platforms \
    --python-version "$version" --target "$site" --find-links "$wheels" "$wheels"/kazeia-*_"$machine".whl

# The command for the image's Python, instead of the one that ran pip.
sed '1s|.*|#!/usr/bin/python3|' "$site/bin/kazeia" >"$out/usr/local/bin/kazeia"
install -m 755 "$(dirname "$0")/../healthcheck.py" "$out/usr/local/bin/kazeia-healthcheck"
chmod 755 "$out/usr/local/bin/kazeia"

# What is for building against these packages, or for testing or typing them, and what nobody calls.
for folder in bin include lib share llama_cpp/server onnxruntime/backend onnxruntime/datasets \
    onnxruntime/quantization onnxruntime/tools onnxruntime/transformers; do
    rm -rf "${site:?}/$folder"
done
find "$site" \( -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' -o -name '*.[ch]' -o -name '*.cpp' \
    -o -name '*.a' -o -name '*.cmake' \) -type f -delete
find "$site/numpy" -type d -name tests -prune -exec rm -rf {} +
rm -f "$site"/onnxruntime/capi/libonnxruntime.so.* # for C programs; Python's module has its own

# What only a debugger reads. Wheels with a folder of libraries were edited after they were linked, which
# not every strip survives: those libraries stay as they are, and their modules keep their symbols.
for package in "$site"/*/; do
    package=${package%/}
    case $package in *.libs) continue ;; esac
    what=--strip-unneeded
    [ ! -e "$package.libs" ] || what=--strip-debug
    find "$package" -name '*.so*' -type f -exec "$triplet-strip" $what {} +
done

# A wheel holds no links, so each library is in it once a name. One copy stays: the process must
# not hold two.
for library in "$site"/llama_cpp/lib/*.so; do
    for copy in "$library".*; do
        [ -e "$copy" ] || continue
        rm "$copy"
        ln -s "$(basename "$library")" "$copy"
    done
done

# A read-only image could not keep what Python compiles; hashes instead of times let the layers
# be the same for the same sources.
/opt/build/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$out" "$site"
