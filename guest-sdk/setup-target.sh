#!/usr/bin/env bash
# Installs what building stages needs: a Rust toolchain for wasm32-unknown-unknown.
#
# Ways to install it, tried in order until a module builds:
#   1. the toolchain can already build one: nothing is installed;
#   2. rustup: `rustup target add`;
#   3. debian: Debian's own compiler, and a standard library built once from its sources (about a minute), in a
#      separate toolchain folder.
# Prints the command for cargo on standard output, for use in a script:
#   cargo=$(guest-sdk/setup-target.sh --quiet)
#   $cargo build --profile guest --target wasm32-unknown-unknown -p image
#
# Usage: setup-target.sh [--toolchain NAME] [--way auto|rustup|debian] [--quiet]
#   --toolchain  rustup toolchain to extend (default: the active one of the folder it is called in)
#   --way        try only this way (default: auto)
#   --quiet      print only the command, unless it fails
# Environment: WASM_RUSTUP_TIMEOUT  seconds for `rustup target add` (default 120)
#              WASM_SYSROOT_DIR     folder of the toolchain of way 3 (default: ${XDG_CACHE_HOME:-~/.cache}/penstock)
set -euo pipefail

readonly target=wasm32-unknown-unknown
readonly linked=penstock-wasm # name of way 3's toolchain in rustup

toolchain='' way=auto quiet=0
while (($#)); do
  case $1 in
    --toolchain) toolchain=${2:?--toolchain needs a name}; shift 2 ;;
    --way) way=${2:?--way needs auto, rustup or debian}; shift 2 ;;
    --quiet) quiet=1; shift ;;
    -h|--help) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "setup-target: unknown argument: $1 (see --help)" >&2; exit 2 ;;
  esac
done
case $way in
  auto|rustup|debian) ;;
  *) echo "setup-target: --way is auto, rustup or debian, not $way" >&2; exit 2 ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log
: >"$log"

say() { ((quiet)) || echo "setup-target: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a step; with --quiet its output is kept and printed only if every way fails.
step() {
  if ((quiet)); then "$@" >>"$log" 2>&1; else "$@" 2>&1 | tee -a "$log" >&2; fi
}

as_root() {
  if ((EUID == 0)); then "$@"
  elif have sudo; then sudo "$@"
  else echo "needs root (or sudo) for: $*" >&2; return 1
  fi
}

# builds RUSTC...: succeeds if this compiler can build a module with link-time optimisation.
builds() {
  printf '%s\n' '#[unsafe(no_mangle)]' \
    'pub extern "C" fn probe(n: u32) -> u32 { vec![1_u8; n as usize].iter().map(|b| u32::from(*b)).sum() }' \
    >"$scratch/probe.rs"
  rm -f "$scratch/probe.wasm"
  env -u RUSTC_BOOTSTRAP "$@" --edition 2024 --crate-type cdylib --target "$target" -C opt-level=1 -C lto=fat \
    -C panic=abort -o "$scratch/probe.wasm" "$scratch/probe.rs" >>"$log" 2>&1 && [[ -s $scratch/probe.wasm ]]
}

# The compiler and the cargo of a rustup toolchain; of the active one for an empty name, with or without rustup.
rustc_of() { if [[ -n $1 ]]; then echo "rustc +$1"; else echo rustc; fi; }
cargo_of() { if [[ -n $1 ]]; then echo "cargo +$1"; else echo cargo; fi; }

# Each way sets `command` to the command for cargo.
command=''

already() {
  local name
  for name in "$toolchain" "$linked"; do
    if [[ $name == "$linked" ]] && ! { have rustup && rustup toolchain list | grep -q "^$linked\b"; }; then continue; fi
    # Two words are two arguments.
    # shellcheck disable=SC2046
    if have rustc && have cargo && builds $(rustc_of "$name"); then command=$(cargo_of "$name"); return 0; fi
  done
  return 1
}

by_rustup() {
  have rustup || return 1
  local name=$toolchain
  [[ -n $name ]] || name=$(rustup show active-toolchain 2>/dev/null | awk '{print $1; exit}')
  [[ -n $name ]] || return 1
  say "rustup target add $target --toolchain $name"
  step timeout "${WASM_RUSTUP_TIMEOUT:-120}" rustup target add "$target" --toolchain "$name" || return 1
  builds rustc "+$name" || return 1
  command=$(cargo_of "$toolchain")
}

by_debian() {
  have apt-get || return 1
  install_debian || return 1
  local version dir
  version=$(/usr/bin/rustc --version --verbose | sed -n 's/^release: //p')
  dir=${WASM_SYSROOT_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock}/wasm-toolchain-$version
  [[ -e $dir/.complete ]] || build_sysroot "$version" "$dir" || return 1
  if have rustup; then
    step rustup toolchain link "$linked" "$dir" || return 1
    command="cargo +$linked"
  else
    command="env RUSTC=$dir/bin/rustc $dir/bin/cargo"
  fi
  builds "$dir/bin/rustc"
}

install_debian() {
  local apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends)
  local packages=(rustc-web cargo-web rust-web-src rust-web-llvm gcc libc6-dev)
  if ! [[ -x /usr/bin/rustc && -x /usr/bin/cargo && -L /usr/bin/rust-lld ]] || ! dpkg -s rust-web-src >/dev/null 2>&1; then
    say "installing Debian's ${packages[*]}"
    step "${apt[@]}" install "${packages[@]}" ||
      { step "${apt[@]}" update && step "${apt[@]}" install "${packages[@]}"; } || return 1
  fi
  # rust-lld is a link to the linker of the compiler's own LLVM release, which the packages do not pull in. An older
  # wasm-ld would link too, but knows fewer target features.
  if [[ ! -x /usr/bin/rust-lld ]]; then
    step "${apt[@]}" install "$(basename "$(readlink /usr/bin/rust-lld)")" || return 1
  fi
}

# build_sysroot VERSION DIR: a toolchain in DIR that is Debian's compiler plus a library for the target.
build_sysroot() {
  local version=$1 dir=$2 new=$2.new.$$ crate=$scratch/std src=/usr/src/rustc-$1 host tool
  [[ -d $src/library ]] || { say "no sources of the standard library at $src"; return 1; }
  host=$(/usr/bin/rustc --version --verbose | sed -n 's/^host: //p')
  say "building the standard library of $version for $target (once; about a minute)"
  rm -rf "$new"
  mkdir -p "$new/bin" "$new/lib/rustlib/$target/lib" "$new/lib/rustlib/src" "$crate/src"
  ln -s /usr/bin/cargo "$new/bin/cargo"
  # Debian's rustc looks for libraries beside its real path, not beside a link to it: hence scripts.
  for tool in rustc rustdoc; do
    printf '#!/bin/sh\nexec /usr/bin/%s --sysroot "${0%%/bin/*}" "$@"\n' "$tool" >"$new/bin/$tool"
    chmod +x "$new/bin/$tool"
  done
  ln -s "/usr/lib/rustlib/$host" "$new/lib/rustlib/$host"
  ln -s "$src" "$new/lib/rustlib/src/rust"
  printf '[package]\nname = "stdholder"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n' >"$crate/Cargo.toml"
  printf '#![no_std]\n' >"$crate/src/lib.rs"
  # Of the same shape as a distributed library: optimised, one unit a crate, object code and bitcode both present, so
  # that stages may or may not be optimised at link time.
  (cd "$crate" && step env -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET \
    RUSTC="$new/bin/rustc" RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Cembed-bitcode=yes' \
    CARGO_PROFILE_RELEASE_OPT_LEVEL=3 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
    CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_TARGET_DIR="$scratch/stdtarget" \
    /usr/bin/cargo build -q --release --target "$target" -Zbuild-std=std,panic_abort) || { rm -rf "$new"; return 1; }
  find "$scratch/stdtarget/$target/release/deps" -name '*.rlib' ! -name 'libstdholder-*' \
    -exec cp -t "$new/lib/rustlib/$target/lib" {} +
  touch "$new/.complete"
  rm -rf "$dir"
  mv "$new" "$dir"
}

how=''
case $way in
  auto)
    if already; then how='already there'
    elif by_rustup; then how='added by rustup'
    elif by_debian; then how="Debian's compiler, library built here"
    fi ;;
  rustup) by_rustup && how='added by rustup' ;;
  debian) by_debian && how="Debian's compiler, library built here" ;;
esac || true

if [[ -z $how ]]; then
  echo "setup-target: no way to build for $target worked; last lines of the output:" >&2
  tail -n 20 "$log" >&2
  echo "setup-target: install Rust by https://rustup.rs, or run this on Debian as root" >&2
  exit 1
fi
say "$target: $how"
echo "$command"
