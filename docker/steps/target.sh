# shellcheck shell=sh
# Sourced by the other steps: what Debian, the compiler and Python call the processor $1.
# shellcheck disable=SC2034 # every step uses some of these
case ${1:-} in
    amd64) machine=x86_64 package_suffix=x86-64-linux-gnu ;;
    arm64) machine=aarch64 package_suffix=aarch64-linux-gnu ;;
    *)
        echo "expected amd64 or arm64, got '${1:-}'" >&2
        exit 2
        ;;
esac
triplet=$machine-linux-gnu

# CMake's options for a compiler that runs here and makes code for $machine.
cmake_target="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine \
-DCMAKE_C_COMPILER=$triplet-gcc -DCMAKE_CXX_COMPILER=$triplet-g++ \
-DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER"

# scikit-build-core gives cmake five seconds to name its version, on what it takes for a CI twenty. A
# busy machine that has yet to read cmake from its disk needs more than five.
export CI=1
