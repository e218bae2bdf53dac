#!/usr/bin/env bash
# setup.sh [browser|arm]: installs what lily needs on Debian 12, Ubuntu 24.04 or macOS, or the browser in which the tests try
# the page, or the cross compiler and emulator of tools/test_arm.sh. Does nothing when all is there.
set -euo pipefail

if [ "$(uname)" = Darwin ]; then
  if [ "${1:-}" = browser ]; then
    command -v chromedriver >/dev/null || echo "setup: no chromedriver here: the tests of the page will be skipped" >&2
    exit 0
  fi
  command -v brew >/dev/null || { echo "setup: Homebrew is needed on macOS: https://brew.sh" >&2; exit 1; }
  for formula in cmake ninja ccache boost fmt spdlog cli11 tl-expected xxhash googletest google-benchmark; do
    brew list --versions "$formula" >/dev/null 2>&1 || brew install --quiet "$formula"
  done
  exit 0
fi

. /etc/os-release
case "${ID}:${VERSION_ID:-}" in
  debian:12) boost=1.81 ;;
  ubuntu:24.04) boost=1.83 ;;
  *) boost=1.83; echo "setup: ${PRETTY_NAME} is not one of the systems this was made for (Debian 12, Ubuntu 24.04)" >&2 ;;
esac
packages=(g++ clang cmake ninja-build ccache make curl python3 python3-venv
  "libboost${boost}-dev" "libboost-json${boost}-dev" libfmt-dev libspdlog-dev libcli11-dev libexpected-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev)

if [ "${1:-}" = browser ]; then
  # Ubuntu's package of this name is a snap, which the driver cannot start.
  if [ "$ID" != debian ]; then
    command -v chromium >/dev/null && command -v chromedriver >/dev/null ||
      echo "setup: no package of chromium and chromedriver here: the tests of the page will be skipped" >&2
    exit 0
  fi
  packages=(chromium chromium-driver)
fi

if [ "${1:-}" = arm ]; then
  packages=(g++-aarch64-linux-gnu qemu-user)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "setup: installing ${missing[*]}" >&2
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
