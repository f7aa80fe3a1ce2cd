#!/bin/sh
# The part of the image that is Debian's: Python, the libraries of C++ and OpenMP, the user.
set -eu

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -qy --no-install-recommends libgomp1 libstdc++6 python3
apt-get clean

# Numbers, so that a check such as Kubernetes' runAsNonRoot can see that it is not root.
groupadd --gid 10001 kazeia
useradd --uid 10001 --gid 10001 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin kazeia
install -d -m 755 /models

rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/* /usr/share/doc/* \
    /usr/share/man/* /usr/share/locale/* /usr/share/info/*
