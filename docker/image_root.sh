# shellcheck shell=sh
# Sourced by check_image.sh and test_in_image.sh: the tree of an image, used
# as its user would be let: read-only, without a network, as the image's user.
#
# They call themselves a second time, as `inside ROOT WORK ...`, in namespaces of their own: whatever
# they mount and start there ends with them.

# enter_image ROOT ARGUMENT...: call the script as `inside`, remove WORK after it, end as it ended.
enter_image() {
    [ $# -ge 1 ] && [ -n "$1" ] || fail "usage: $0 ROOT, the tree of an image"
    [ -x "$1/usr/local/bin/kazeia" ] || fail "$1 holds no usr/local/bin/kazeia: expected OUT/image"
    [ "$(id -u)" = 0 ] || fail "expected root: chroot and mount need it"
    for program in chroot curl ip unshare; do
        command -v "$program" >/dev/null || fail "no $program: apt install curl iproute2 util-linux"
    done
    image=$(realpath "$1")
    shift
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    prepare
    code=0
    # In the background, since a shell hears no signal while it waits for one in the foreground.
    unshare --mount --net --pid --fork --kill-child --mount-proc \
        sh "$0" inside "$image" "$work" "$@" &
    entered=$!
    trap 'kill -KILL $entered; exit 130' INT
    trap 'kill -KILL $entered; exit 143' TERM
    wait $entered || code=$?
    exit $code
}

# What a script puts into $work for $image before the network is gone.
prepare() { :; }

fail() {
    echo "$*" >&2
    exit 2
}

# mount_image ROOT WORK: WORK becomes the volume, the only place that can be written.
mount_image() {
    root=$1
    work=$2
    ip link set lo up
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    # Not the /sys of another kind of processor, over which ONNX Runtime fails under qemu.
    if [ "$(chroot "$root" uname -m)" = "$(uname -m)" ]; then
        mount -t sysfs -o ro sysfs "$root/sys"
    fi
    mount --bind /dev "$root/dev"
    chmod 777 "$work"
    mount --rbind "$work" "$root/models"
    mount -o remount,bind,ro "$root"
}

# Become a command in the image, which may begin with variables: with the image's ENV, its USER and
# the home of that, and no other variable but that of the emulation.
become_in_image() {
    exec chroot --userspec=10001:10001 "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin \
        HOME=/nonexistent KZTTS_HOST=0.0.0.0 LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
        ${QEMU_CPU:+"QEMU_CPU=$QEMU_CPU"} "$@"
}

in_image() { (become_in_image "$@"); }

say() { printf '==== %s\n' "$*"; }
