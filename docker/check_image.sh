#!/bin/sh
# check_image.sh ROOT: use the tree of an image (docker/build_in_chroot.py) as its user would be let.
#
# Without a network, with a read-only root, as process 1, as the image's user: the command, the
# server, its health check, speech, and the end on SIGTERM. Needs root, ip and curl.
set -eu

if [ "${1:-}" != inside ]; then
    root=$(realpath "$1")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    unshare -m -n -p -f --mount-proc sh "$0" inside "$root" "$work"
    exit 0
fi

root=$2
work=$3
say() { printf '==== %s\n' "$*"; }
ip link set lo up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
chmod 777 "$work"
mount --bind "$work" "$root/models" # the volume, and the only place that can be written
mount -o remount,bind,ro "$root"

# The image's ENV and USER.
in_image() {
    chroot --userspec=10001:10001 "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin \
        LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 KZTTS_HOST=0.0.0.0 \
        ${QEMU_CPU:+"QEMU_CPU=$QEMU_CPU"} "$@"
}

say "nothing can be written but the volume, and there is no network"
# shellcheck disable=SC2016 # the shell inside expands it
if in_image sh -c 'for d in / /tmp /var/tmp /usr/local/lib; do if touch "$d/x"; then exit 1; fi; done' 2>/dev/null
then :; else echo "the root can be written" >&2; exit 1; fi
if in_image python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), 2)' 2>/dev/null
then echo "there is a network" >&2; exit 1; fi

say "kazeia doctor"
in_image kazeia doctor
say "kazeia say, built-in voice"
in_image kazeia say "Hello from the image." -o /models/hello.wav
say "kazeia synth and say, a tiny model"
in_image kazeia synth --size tiny -o /models/tiny
in_image kazeia say "Hello." --model /models/tiny --max-frames 12 -o /models/tiny.wav
for file in hello.wav tiny.wav; do
    [ "$(wc -c <"$work/$file")" -gt 10000 ] || { echo "$file is too short" >&2; exit 1; }
done

say "kazeia serve as process 1, its health check, speech, SIGTERM while it speaks"
cat >"$work/server.sh" <<'SERVER'
set -eu
mount -t proc proc "$1/proc"
exec chroot --userspec=10001:10001 "$1" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 KZTTS_HOST=0.0.0.0 \
    KZTTS_SHUTDOWN_TIMEOUT_S=300 ${QEMU_CPU:+"QEMU_CPU=$QEMU_CPU"} kazeia serve
SERVER
unshare -m -p -f sh "$work/server.sh" "$root" 2>"$work/log" &
forked=$!
until in_image kazeia-healthcheck; do
    kill -0 $forked || { cat "$work/log"; exit 1; }
    sleep 1
done
echo
server=$(cat "/proc/$forked/task/$forked/children")
grep -q '^NSpid:.*\b1$' "/proc/${server% }/status" || { echo "not process 1" >&2; exit 1; }
ask() { curl -sS --fail-with-body -H 'Content-Type: application/json' "$@"; }
ask -d '{"text": "Speech from the image."}' -o "$work/asked.wav" http://127.0.0.1:8080/synthesize
[ "$(wc -c <"$work/asked.wav")" -gt 10000 ]
long=$(printf 'This sentence is one of many. %.0s' $(seq 12))
ask -d "{\"text\": \"$long\"}" -o "$work/drained.wav" http://127.0.0.1:8080/synthesize &
speaking=$!
until ask http://127.0.0.1:8080/health | grep -q '"running":1'; do
    kill -0 $speaking || { echo "the speech ended before the signal" >&2; exit 1; }
    sleep 0.1
done
kill -TERM "${server% }"
until ask http://127.0.0.1:8080/health 2>/dev/null | grep -q draining; do
    kill -0 $forked 2>/dev/null || break
    sleep 0.1
done
wait $speaking
[ "$(wc -c <"$work/drained.wav")" -gt 100000 ]
code=0
wait $forked || code=$?
cat "$work/log"
echo "the server ended with $code"
[ "$code" = 0 ] || [ "$code" = 143 ]

say "all of it works"
