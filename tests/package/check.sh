#!/usr/bin/env bash
# One check of what is installed: check.sh NAME BUILD_FOLDER. `install` comes first and leaves the prefix for the others.
# Exit code 77: skipped, a tool is missing.
set -euo pipefail

name=$1
build=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$build/tests/package_work
prefix=$work/moved

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
needs() {
  for tool in "$@"; do
    if ! command -v "$tool" >/dev/null; then
      echo "SKIPPED: $name: there is no $tool here" >&2
      exit 77
    fi
  done
}
holds() { grep -qF -- "$2" <<<"$1" || fail "no '$2' in: $1"; }

case $name in
  install)
    rm -rf "$work"
    cmake --install "$build" --prefix "$work/first" >/dev/null
    mv "$work/first" "$prefix"  # what is installed must not know where
    for file in bin/sluice libsluice_sim.a sluiceConfig.cmake include/sluice/sim/simulator.h \
        share/sluice/examples/gpt3-175b-a100.json share/doc/sluice/formats.md; do
      [ -n "$(find "$prefix" -path "*/$file")" ] || fail "no $file"
    done
    for header in sim/predict.h sim/planner/plan.h kernels exec; do
      [ ! -e "$prefix/include/sluice/$header" ] || fail "$header is not public and is installed"
    done
    if grep -rIlF -e "$source" -e "$work/first" "$prefix"; then fail "these files name folders of the build"; fi
    ;;

  command)
    out=$("$prefix/bin/sluice" simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1)
    holds "$out" "makespan 33 s"  # (8 + 3) x (1 + 1 + 1)
    "$prefix/bin/sluice" simulate "$prefix/share/sluice/examples/gpt3-175b-a100.json" >/dev/null
    ;;

  headers)
    # Each public header compiles alone, with its own folder tree the only one of ours that the compiler sees.
    needs g++
    cd "$prefix/include"
    while read -r header; do
      [ "$(head -n 1 "$header")" = "// Public header." ] || fail "$header has no mark"
      g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I. -x c++ - <<<"#include \"$header\"" || fail "$header"
    done < <(find sluice -name '*.h')
    [ "$(find sluice -name '*.h' | wc -l)" -lt 50 ] || fail "public headers are few"
    ;;

  cmake)
    cmake -S "$source/tests/package/consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
      -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" >/dev/null
    cmake --build "$work/cmake" --verbose >"$work/cmake.log" || {
      cat "$work/cmake.log"
      exit 1
    }
    if grep -e -Wshadow "$work/cmake.log"; then fail "our warnings reach the consumer"; fi
    "$work/cmake/predict"
    "$work/cmake/own_schedule" "$work/own_schedule.json"
    holds "$(cat "$work/own_schedule.json")" traceEvents
    ;;

  pkg_config)
    needs pkg-config g++
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name sluice.pc)")
    export PKG_CONFIG_PATH
    read -r -a flags <<<"$(pkg-config --cflags --libs sluice)"
    # The flags in one go, as Makefiles have them: the libraries must stand in the right order.
    g++ "$source/tests/package/consumer/predict.cc" -o "$work/by_pkg_config" "${flags[@]}"
    "$work/by_pkg_config"
    ;;

  man)
    page=$(compgen -G "$prefix/share/man/man1/sluice.1*") || fail "no manual page"
    text=$(case $page in *.gz) gzip -dc "$page" ;; *) cat "$page" ;; esac)
    for command in schedules schedule simulate completion; do holds "$text" ".SS sluice $command"; done
    holds "$text" '\fB\-\-microbatches\fR'
    checked=
    if command -v mandoc >/dev/null; then
      said=$(mandoc -T lint -W warning <<<"$text" 2>&1) || fail "mandoc: $said"
      checked+=" mandoc"
    fi
    if command -v man >/dev/null && said=$(LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -l "$page" 2>&1 >/dev/null); then
      [ -z "$said" ] || fail "man: $said"
      checked+=" man"
    fi
    if [ -z "$checked" ] && command -v groff >/dev/null; then
      said=$(groff -ww -man -Tutf8 <<<"$text" 2>&1 >/dev/null)
      [ -z "$said" ] || fail "groff: $said"
      checked+=" groff"
    fi
    if [ -z "$checked" ]; then needs mandoc; fi
    echo "checked by$checked"
    ;;

  bash)
    # Completes as bash would: the words so far, the last of them unfinished.
    completed() {
      bash --norc -c 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; echo "${COMPREPLY[*]}"' \
        "$prefix/share/bash-completion/completions/sluice" "$@"
    }
    expect() {
      local expected=$1
      shift
      [ "$(completed "$@")" = "$expected" ] || fail "'$*' completes to '$(completed "$@")', not '$expected'"
    }
    cd "$work" && rm -rf folder && mkdir folder && touch folder/mine.json
    expect "schedules schedule" sluice sched
    expect "--gantt" sluice simulate --ga
    expect "auto always" sluice simulate --color a
    expect "always" sluice simulate --color = al
    expect "zb-h1 zb-h2" sluice simulate --json --schedule zb-h
    expect "zb-v" sluice schedule zb-v
    expect "dgx-a100-40gb dgx-a100-80gb" sluice simulate --cluster dgx-a
    expect "folder/mine.json" sluice simulate folder/
    expect "folder/mine.json" sluice simulate --trace folder/m
    expect "" sluice simulate --pp ""
    expect "bash" sluice completion b
    ;;

  zsh)
    needs zsh
    functions=$prefix/share/zsh/site-functions
    zsh -n "$functions/_sluice"
    for row in "sluice schedule --microb|--microbatches" "sluice simulate --schedule=seq1f1b-zb1|seq1f1b-zb1p" \
        "sluice comp|completion" "sluice simulate --color=n|never" "sluice simulate --cluster=dgx-h1|dgx-h100"; do
      zsh -f "$source/tests/package/zsh_completes.zsh" "$functions" "${row%|*}" "${row#*|}" || fail "$row"
    done
    ;;

  fish)
    needs fish
    completed() {
      HOME=$work fish --no-config -c 'source $argv[1]; complete -C $argv[2] | string replace -r "\t.*" "" | string join " "' \
        "$prefix/share/fish/vendor_completions.d/sluice.fish" "$1"
    }
    expect() { [ "$(completed "$2")" = "$1" ] || fail "'$2' completes to '$(completed "$2")', not '$1'"; }
    expect "schedule schedules" "sluice sched"
    expect "--gantt" "sluice simulate --gan"
    expect "always auto never" "sluice simulate --color "
    expect "zb-h1 zb-h2" "sluice simulate --schedule zb-h"
    expect "" "sluice schedules --gan"
    ;;

  deb)
    needs cpack dpkg-deb dpkg-shlibdeps file
    (cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work/deb") >"$work/cpack.log" 2>&1 || {
      cat "$work/cpack.log"
      exit 1
    }
    package=$(compgen -G "$work/deb/sluice_*.deb") || fail "no package"
    info=$(dpkg-deb --info "$package")
    echo "$info"
    for line in "Package: sluice" "Section: science" "Maintainer: Sluice developers <sluice@example.org>"; do holds "$info" "$line"; done
    grep -qE '^ Depends: .*libc6 .*libfmt' <<<"$info" || fail "no dependencies on libc6 and libfmt"
    contents=$(dpkg-deb --contents "$package")
    for file in ./usr/bin/sluice ./usr/share/man/man1/sluice.1 ./usr/include/sluice/sim/simulator.h \
        ./usr/share/doc/sluice/copyright ./usr/share/bash-completion/completions/sluice; do
      holds "$contents" "$file"
    done
    # As a checker of packages would ask: owners, modes, nothing outside /usr.
    odd=$(grep -vE '^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) root/root +[0-9]+ [^ ]+ [^ ]+ \./(usr/.*)?$' <<<"$contents" || true)
    [ -z "$odd" ] || fail "modes, owners or places: $odd"
    dpkg-deb --extract "$package" "$work/extracted"
    "$work/extracted/usr/bin/sluice" --version
    ;;

  *) fail "there is no check $name" ;;
esac
