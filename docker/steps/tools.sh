#!/bin/sh
# What builds the wheels for the processor $1 (amd64 or arm64), on a Debian of any of the two.
set -eu
. "$(dirname "$0")/target.sh"

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# binutils: the compiler for the processor at hand calls `as` and `ld` by these names.
apt-get install -qy --no-install-recommends \
    "g++-$package_suffix" binutils ca-certificates cmake ninja-build python3 python3-pip python3-venv
apt-get clean
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/build
/opt/build/bin/pip install --no-cache-dir 'scikit-build-core>=0.11,<2' wheel
