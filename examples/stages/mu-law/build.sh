#!/usr/bin/env bash
# Builds this stage as WebAssembly: clang compiles, the linker of the Rust toolchain links. A C library is not needed.
# Installs clang with Debian's package manager if it is missing, as root or with sudo.
#
# Usage: build.sh OUTPUT.wasm
# Environment: CLANG  clang to call (default: the first of clang, clang-21, ..., clang-14 that supports WebAssembly)
set -euo pipefail
out=$(realpath -m "${1:?usage: build.sh OUTPUT.wasm}")
cd "$(dirname "${BASH_SOURCE[0]}")"

have() { command -v "$1" >/dev/null 2>&1; }
knows_wasm() { have "$1" && "$1" --print-targets 2>/dev/null | grep -q wasm32; }

find_clang() {
  local name
  if [[ -n ${CLANG:-} ]]; then echo "$CLANG"; return; fi
  for name in clang clang-{21..14}; do
    if knows_wasm "$name"; then echo "$name"; return; fi
  done
  return 1
}

install_clang() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends)
  have apt-get || return 1
  if ((EUID != 0)); then
    have sudo && sudo -n true 2>/dev/null || return 1
    apt=(sudo "${apt[@]}")
  fi
  echo "mu-law: installing Debian's clang" >&2
  "${apt[@]}" install clang >&2 || { "${apt[@]}" update >&2 && "${apt[@]}" install clang >&2; }
}

# An old clang is sufficient, with a linker that is at least as new: the Rust toolchain always includes one.
find_linker() {
  local name
  for name in "$(rustc --print sysroot)"/lib/rustlib/*/bin/rust-lld rust-lld wasm-ld; do
    if have "$name"; then echo "$name"; return; fi
  done
  return 1
}

clang=$(find_clang || { install_clang && find_clang; }) || {
  echo "mu-law: no clang with support for WebAssembly: install one (Debian: apt-get install clang), or set CLANG=..." >&2
  exit 1
}
linker=$(find_linker) || {
  echo "mu-law: no linker: found neither rust-lld of the Rust toolchain nor wasm-ld (Debian: apt-get install lld)" >&2
  exit 1
}

objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
kit=../../../guest-sdk/c
for source in *.c "$kit/penstock.c"; do
  $clang --target=wasm32-unknown-unknown -std=c11 -O3 -msimd128 -mbulk-memory -ffreestanding -Wall -Wextra -Werror \
    -I "$kit" -c "$source" -o "$objects/$(basename "$source").o"
done
flavor=()
[[ $linker == *rust-lld ]] && flavor=(-flavor wasm)
mkdir -p "$(dirname "$out")"
# Written to a temporary file and renamed, so that a concurrent reader gets a complete module.
"$linker" "${flavor[@]}" --no-entry --gc-sections --stack-first -z stack-size=65536 "$objects"/*.o -o "$out.part"
mv "$out.part" "$out"
