#!/bin/sh
# The part of the image that is Debian's: Python, the libraries of C++ and OpenMP, the user.
set -eu

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -qy --no-install-recommends libgomp1 libstdc++6 python3
apt-get clean

# Numbers, so that a check such as Kubernetes' runAsNonRoot can see that it is not root.
getent group kazeia >/dev/null || groupadd --gid 10001 kazeia
getent passwd kazeia >/dev/null || useradd --uid 10001 --gid 10001 --home-dir /nonexistent \
    --no-create-home --shell /usr/sbin/nologin kazeia
# A named volume takes over the owner: `kazeia pull` can then write into it.
install -d -m 755 -o 10001 -g 10001 /models

rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/* /usr/share/doc/* \
    /usr/share/man/* /usr/share/locale/* /usr/share/info/*
