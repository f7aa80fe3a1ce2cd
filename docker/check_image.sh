#!/bin/sh
# check_image.sh ROOT: use the tree of an image (docker/build_in_chroot.py) as its user would be let.
#
# Without a network, with a read-only root, as process 1, as the image's user: the command, the
# server, its health check, speech, and the end on SIGTERM. Needs root, ip and curl. QEMU_CPU names
# the processor that an emulated image meets.
set -eu
. "$(dirname "$0")/image_root.sh"
[ "${1:-}" = inside ] || enter_image "$@"
[ "$(stat -c %u:%g "$2/models")" = 10001:10001 ] || fail "/models is not the user's"
mount_image "$2" "$3"

say "nothing can be written but the volume, and there is no network"
# shellcheck disable=SC2016 # the shell inside expands it
written=$(in_image sh -c 'for d in / /tmp /var/tmp /usr/local/lib /models; do
    if touch "$d/x" 2>/dev/null; then echo "$d"; fi; done')
[ "$written" = /models ] || fail "written: $written; expected only /models"
in_image python3 - <<'NETWORK'
import errno
import socket

try:
    socket.create_connection(("192.0.2.1", 80), 2)
except OSError as error:
    assert error.errno == errno.ENETUNREACH, error
else:
    raise SystemExit("there is a network")
NETWORK

say "kazeia doctor, and ggml's code for this processor"
in_image kazeia doctor | tee "$work/doctor"
grep -q 'libggml-cpu-.*: .*[A-Z]' "$work/doctor" || fail "no CPU variant of ggml was loaded"
say "kazeia say, built-in voice"
in_image kazeia say "Hello from the image." -o /models/hello.wav
say "kazeia synth and say, tiny models: the engine's own kernels, and ggml's"
for type in q8_0 q4_k; do
    in_image kazeia synth --size tiny --type $type -o /models/$type 2>"$work/log" \
        || { cat "$work/log"; exit 1; }
    in_image kazeia say "Hello." --model /models/$type --max-frames 12 -o /models/$type.wav
done
for file in hello.wav q8_0.wav q4_k.wav; do
    [ "$(wc -c <"$work/$file")" -gt 10000 ] || fail "$file is too short"
done

say "kazeia serve as process 1, its health check, speech, SIGTERM while it speaks"
cat >"$work/server.sh" <<'SERVER'
set -eu
. "$1"
root=$2
mount -t proc proc "$root/proc"
become_in_image KZTTS_SHUTDOWN_TIMEOUT_S=300 kazeia serve
SERVER
unshare --mount --pid --fork sh "$work/server.sh" "$(dirname "$0")/image_root.sh" "$root" \
    2>"$work/log" &
forked=$!
tries=0
until in_image kazeia-healthcheck; do
    echo
    kill -0 $forked 2>/dev/null || { cat "$work/log"; fail "the server ended"; }
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat "$work/log"; fail "the server is not ready"; }
    sleep 1
done
echo
server=$(cat "/proc/$forked/task/$forked/children")
server=${server% }
grep -q '^NSpid:.*\b1$' "/proc/$server/status" || fail "the server is not process 1"
grep -q '^Uid:\s10001\s10001\s10001\s10001$' "/proc/$server/status" || fail "not user 10001"
ask() { curl -sS --fail-with-body -H 'Content-Type: application/json' "$@"; }
ask -d '{"text": "Speech from the image."}' -o "$work/asked.wav" http://127.0.0.1:8080/synthesize
[ "$(wc -c <"$work/asked.wav")" -gt 10000 ] || fail "the speech is too short"
long=$(printf 'This sentence is one of many. %.0s' $(seq 12))
ask -d "{\"text\": \"$long\"}" -o "$work/drained.wav" http://127.0.0.1:8080/synthesize &
speaking=$!
until ask http://127.0.0.1:8080/health | grep -q '"running":1'; do
    kill -0 $speaking || fail "the speech ended before the signal"
    sleep 0.1
done
kill -TERM "$server"
until ask http://127.0.0.1:8080/health 2>/dev/null | grep -q draining; do
    kill -0 $forked 2>/dev/null || break
    sleep 0.1
done
if in_image kazeia-healthcheck >/dev/null; then fail "healthy while it drains"; fi
wait $speaking || fail "what was being spoken was cut off"
[ "$(wc -c <"$work/drained.wav")" -gt 100000 ] || fail "what was being spoken was cut off"
code=0
wait $forked || code=$?
cat "$work/log"
# 143 elsewhere; but process 1 cannot end itself by a signal.
[ "$code" = 0 ] || fail "the server ended with $code, expected 0"

say "all of it works"
