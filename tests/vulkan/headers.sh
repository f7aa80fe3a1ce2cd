#!/usr/bin/env bash
# Prints the folder whose include/ has Vulkan headers that ggml can use: /usr where they are new
# enough, otherwise DIR, into which those of a later Debian are unpacked.  Headers only: loader,
# compiler (glslc) and drivers stay this system's.
#
#     headers.sh DIR
set -euo pipefail

dir=$1
wanted=1.3.272 # VK_EXT_layer_settings
later=trixie

command -v glslc > /dev/null || { echo "glslc is missing: apt install glslc libvulkan-dev" >&2; exit 1; }
if pkg-config --atleast-version=$wanted vulkan 2> /dev/null \
    && [ -e /usr/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake ]; then
  echo /usr
  exit
fi
if [ ! -e "$dir/usr/include/vulkan/vulkan.hpp" ]; then
  mirror=$(grep -rhoE 'https?://[^ ]+/debian/?($| )' /etc/apt/sources.list /etc/apt/sources.list.d \
    2> /dev/null | head -n 1 | tr -d ' ') || true
  [ -n "$mirror" ] || { echo "Vulkan headers $wanted or newer are missing" >&2; exit 1; }
  dir=$(realpath -m "$dir")
  mkdir -p "$dir"/{lists/partial,archives/partial,usr}
  echo "deb $mirror $later main" > "$dir/sources.list"
  options=(-qq -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update >&2
  (cd "$dir" && apt-get "${options[@]}" download libvulkan-dev spirv-headers >&2)
  for package in "$dir"/*.deb; do dpkg-deb -x "$package" "$dir"; done
fi
echo "$(realpath "$dir")/usr"
