#!/bin/sh
# llama.sh ARCH PYPROJECT WHEELS: the pinned llama-cpp-python as a wheel for any processor of ARCH.
#
# ggml's CPU code is compiled several times and the fitting one is loaded at run time. libmtmd is
# left out: only `kazeia bench --compare` needs it.
set -eu
. "$(dirname "$0")/target.sh"
pyproject=$(realpath "$2")
mkdir -p "$3"
wheels=$(realpath "$3")

# Few of ggml's variants, because Kazeia's own kernels, which choose for themselves, do most of the
# work: the baseline, and the sets of instructions that change the speed of products.
case $machine in
    x86_64) variants='x64|haswell|cascadelake|zen4' ;;
    aarch64) variants='armv8.0_1|armv8.2_2|armv8.6_1' ;;
esac

pin=$(sed -nE 's/^ +"(llama-cpp-python==[0-9.]+)",$/\1/p' "$pyproject")
[ -n "$pin" ] || { echo "$pyproject pins no llama-cpp-python" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/opt/build/bin/pip download --no-deps --no-binary :all: --no-build-isolation -d "$work" "$pin"
mkdir "$work/source"
tar -xzf "$work"/*.tar.gz --strip-components=1 -C "$work/source"

# Neither has an option: the package forces llama.cpp's "common" library on, ggml all its variants.
common='set\(LLAMA_BUILD_COMMON ON CACHE BOOL "[^"]*" FORCE\)'
grep -qE "$common" "$work/source/CMakeLists.txt"
sed -i -E "s/$common/set(LLAMA_BUILD_COMMON OFF)/" "$work/source/CMakeLists.txt"
ggml=$work/source/vendor/llama.cpp/ggml/src/CMakeLists.txt
call='^ +ggml_add_cpu_backend_variant\('
for variant in $(echo "$variants" | tr '|' ' '); do
    grep -qE "${call}${variant}[ )]" "$ggml" || { echo "ggml has no variant $variant" >&2; exit 1; }
done
sed -i -E "/$call($variants)[ )]/!{/$call/d}" "$ggml"

# Of libllama Kazeia uses the tokenizer alone: it may be small rather than fast.
echo 'target_compile_options(llama PRIVATE -Os)' >>"$work/source/CMakeLists.txt"

# The variants go where bin would be: beside the libggml that looks for them.
export CMAKE_ARGS="$cmake_target -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON \
-DCMAKE_INSTALL_BINDIR=llama_cpp/lib -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF \
-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF"
/opt/build/bin/pip wheel -v --no-deps --no-build-isolation -w "$work" "$work/source"
/opt/build/bin/wheel tags --remove --platform-tag "linux_$machine" "$work"/*.whl
mv "$work"/*.whl "$wheels"
