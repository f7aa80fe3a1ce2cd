#!/bin/sh
# kazeia.sh ARCH SOURCE WHEELS: Kazeia as a wheel for ARCH, against the llama-cpp-python in WHEELS.
set -eu
. "$(dirname "$0")/target.sh"
source=$(realpath "$2")
wheels=$(realpath "$3")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Unpacked, not installed: it may be for another processor.
/opt/build/bin/python - "$wheels"/llama_cpp_python-*_"$machine".whl "$work/site" <<'UNPACK'
import sys
import zipfile

zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])
UNPACK

export CMAKE_ARGS="$cmake_target -DCMAKE_PREFIX_PATH=$work/site"
/opt/build/bin/pip wheel -v --no-deps --no-build-isolation -C "build-dir=$work/build" -w "$work" "$source"
/opt/build/bin/wheel tags --remove --platform-tag "linux_$machine" "$work"/kazeia-*.whl
rm -f "$wheels"/kazeia-*_"$machine".whl # of another version
mv "$work"/kazeia-*.whl "$wheels"
