#!/usr/bin/env bash
# check.sh NAME BUILD_FOLDER: runs one check of the installed files. `install` runs first and creates the prefix that the
# other checks use. Exit code 77: skipped, because a program is missing.
set -euo pipefail

name=$1
build=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/package/rpath.sh
. "$source/tests/package/rpath.sh"
work=$build/tests/package_work
prefix=$work/moved

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
needs() {
  for tool in "$@"; do
    if ! command -v "$tool" >/dev/null; then
      echo "SKIPPED: $name: $tool is not installed" >&2
      exit 77
    fi
  done
}
holds() { grep -qF -- "$2" <<<"$1" || fail "no '$2' in: $1"; }

case $name in
  install)
    rm -rf "$work"
    cmake --install "$build" --prefix "$work/first" >/dev/null
    mv "$work/first" "$prefix"  # installed files must not depend on the prefix
    for file in bin/sluice bin/sluice-args libsluice_sim.a sluiceConfig.cmake include/sluice/sim/simulator.h \
        share/sluice/examples/gpt3-175b-a100.json share/doc/sluice/formats.md; do
      [ -n "$(find "$prefix" -path "*/$file")" ] || fail "no $file"
    done
    for header in sim/engine/predict.h sim/planner/plan.h kernels exec; do
      [ ! -e "$prefix/include/sluice/$header" ] || fail "$header is not public and is installed"
    done
    if grep -rIlF -e "$source" -e "$work/first" "$prefix"; then fail "these files contain paths of the build"; fi
    ;;

  quickstart)
    # What `cmake --install` copies from the build folder is either written by the configure step or an output of the
    # target that tools/quickstart.sh builds.
    needs ninja
    [ -f "$build/build.ninja" ] || {
      echo "SKIPPED: $name: this build does not use Ninja" >&2
      exit 77
    }
    # Without it, the install step stops before it copies anything, and reports what to build.
    sed "s|$build/generated|$build/never_built|g" "$build/cmake_install.cmake" >"$build/tests/nothing_built.cmake"
    out=$(cmake -DCMAKE_INSTALL_PREFIX="$build/tests/nothing_installed" -P "$build/tests/nothing_built.cmake" 2>&1) && fail "installed without a manual page"
    holds "$out" "--target sluice_install"
    [ ! -e "$build/tests/nothing_installed" ] || fail "installed half of it"
    target=$(sed -nE 's/^cmake --build .*--target ([a-z_]+)$/\1/p' "$source/tools/quickstart.sh")
    [ -n "$target" ] || fail "tools/quickstart.sh builds no target"
    missing_from() {  # missing_from TARGET: installed files that TARGET does not build
      local file inputs
      inputs=$(ninja -C "$build" -t inputs "$1" && ninja -C "$build" -t query "$1" | sed 's/^ *|* *//')
      # Other tests create and remove folders below the two that are left out.
      find "$build" \( -path "$build/tests" -o -path "$build/Testing" \) -prune -o -name cmake_install.cmake -exec grep -hoE "\"$build/[^\"]+\"" {} + | tr -d '"' | sort -u |
        while IFS= read -r file; do
          case $file in *.cmake | *.txt | *.pc | *MANIFEST*) continue ;; esac
          grep -qxF -- "${file#"$build/"}" <<<"$inputs" || echo "$file"
        done
    }
    missing=$(missing_from "$target")
    [ -z "$missing" ] || fail "after tools/quickstart.sh, cmake --install lacks $missing"
    missing=$(missing_from sluice_model)
    holds "$missing" tools/sluice  # the check finds what is missing
    ;;

  rpath)
    needs readelf c++
    mapfile -t files < <(elf_files "$build" | grep -vF "$work/")
    mapfile -t -O ${#files[@]} files < <(elf_files "$prefix")
    grep -qxF "$build/tools/sluice" <<<"$(printf '%s\n' "${files[@]}")" || fail "the command is not among the files checked"
    unsafe=$(unsafe_rpaths "${files[@]}")
    [ -z "$unsafe" ] || fail "empty or relative RUNPATH entries: $unsafe"
    echo "${#files[@]} files checked"
    # The same for programs that have such entries.
    for row in '/usr/lib:|1' ':/usr/lib|1' '/usr/lib::/lib|1' 'lib|1' './lib:../lib|2' '/usr/lib:/lib|0' '$ORIGIN/../lib:$ORIGIN|0'; do
      echo 'int main() {}' | c++ -x c++ - -Wl,-rpath,"${row%|*}" -o "$work/with_rpath"
      [ "$(unsafe_rpaths "$work/with_rpath" | wc -l)" -eq "${row#*|}" ] || fail "not found: the unsafe entries of '${row%|*}'"
    done
    # Files in the current folder that are named like the libraries that the command needs are not loaded.
    rm -rf "$work/current" && mkdir "$work/current" && cd "$work/current"
    for file in "$build/tools/sluice" "$prefix/bin/sluice"; do
      readelf -d "$file" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]$/\1/p' | xargs touch
      "$file" --version >/dev/null || fail "$file loads libraries from the current folder"
    done
    ;;

  bundle)
    # The checks of tools/bundle.sh, on a library that passes and on programs that do not. tests/package/chroot.sh runs a
    # whole bundle.
    needs readelf objdump c++
    bundle=$source/tools/bundle.sh
    echo '#include <cstdio>
      int one() { return std::puts(""); }' | c++ -x c++ - -shared -fPIC -Wl,--as-needed -o "$work/plain.so"
    holds "$("$bundle" --check "$work/plain.so")" "needs glibc 2."
    rejects() {  # rejects WHY PROGRAM
      out=$("$bundle" --check "$2" 2>&1) && fail "accepted $2"
      holds "$out" "$1"
    }
    echo '#include <iostream>
      int main() { std::cout << 1; }' | c++ -x c++ - -o "$work/with_library"
    rejects "other than the C library: libstdc++.so.6" "$work/with_library"
    echo 'int main() {}' | c++ -x c++ - -Wl,--as-needed -Wl,-rpath,/usr/lib -o "$work/with_path"
    rejects "has a library search path" "$work/with_path"
    echo 'int main() {}' | c++ -x c++ - -Wl,--as-needed -o "$work/newer"  # __libc_start_main of glibc 2.34
    rejects "newer than 2.28" "$work/newer"
    # The functions that packed programs have instead of those of a newer glibc.
    c++ -std=c++20 -O2 -fvisibility=hidden -static-libstdc++ -static-libgcc "$source"/tools/glibc/newer_functions.cc \
      "$source/tests/package/newer_functions_test.cc" -o "$work/newer_functions"
    "$work/newer_functions" || fail "tools/glibc/newer_functions.cc"
    out=$("$source/tools/wheel.sh" --python /bin/false 2>&1) && fail "built a wheel for /bin/false"
    holds "$out" "/bin/false is not CPython 3.9 or newer"
    ;;

  command)
    out=$("$prefix/bin/sluice" simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1)
    holds "$out" "makespan 33 s"  # (8 + 3) x (1 + 1 + 1)
    "$prefix/bin/sluice" simulate "$prefix/share/sluice/examples/gpt3-175b-a100.json" >/dev/null
    ;;

  headers)
    # Each public header compiles alone, and all together, with their own folder tree the only one of ours that the
    # compiler sees. tools/tidy.sh compiles those that a source includes first alone, when they change.
    needs g++
    cd "$prefix/include"
    compiles() { g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I. -x c++ - || fail "$1"; }
    all=
    while read -r header; do
      [ "$(head -n 1 "$header")" = "// Public header." ] || fail "$header has no mark"
      all+="#include \"$header\""$'\n'
      own=${header#sluice/}
      [ "$(grep -m 1 '^#include' "$source/${own%.h}.cc" 2>/dev/null)" = "#include \"$own\"" ] ||
        compiles "$header" <<<"#include \"$header\""
    done < <(find sluice -name '*.h')
    compiles "all public headers" <<<"$all"
    [ "$(find sluice -name '*.h' | wc -l)" -lt 50 ] || fail "public headers are few"
    ;;

  cmake)
    cmake -S "$source/tests/package/consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
      -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" >/dev/null
    cmake --build "$work/cmake" --verbose >"$work/cmake.log" || {
      cat "$work/cmake.log"
      exit 1
    }
    if grep -e -Wshadow "$work/cmake.log"; then fail "the consumer is compiled with our warning options"; fi
    "$work/cmake/predict"
    "$work/cmake/own_schedule" "$work/own_schedule.json"
    holds "$(cat "$work/own_schedule.json")" traceEvents
    ;;

  pkg_config)
    needs pkg-config g++
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name sluice.pc)")
    export PKG_CONFIG_PATH
    read -r -a flags <<<"$(pkg-config --cflags --libs sluice)"
    # All flags in one command, as in a Makefile: this needs the libraries in the right order.
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
      output=$(mandoc -T lint -W warning <<<"$text" 2>&1) || fail "mandoc: $output"
      checked+=" mandoc"
    fi
    if command -v man >/dev/null && output=$(LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -l "$page" 2>&1 >/dev/null); then
      [ -z "$output" ] || fail "man: $output"
      checked+=" man"
    fi
    if [ -z "$checked" ] && command -v groff >/dev/null; then
      output=$(groff -ww -man -Tutf8 <<<"$text" 2>&1 >/dev/null)
      [ -z "$output" ] || fail "groff: $output"
      checked+=" groff"
    fi
    if [ -z "$checked" ]; then needs mandoc; fi
    echo "checked by$checked"
    ;;

  bash)
    # Completes the last word, as bash does.
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
    expect "--gantt" sluice simulate --gan
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
    # Uncompressed: compressing takes 15 s of CPU time.
    (cd "$work" && cpack --config "$build/CPackConfig.cmake" -D CPACK_DEBIAN_COMPRESSION_TYPE=none -B "$work/deb") >"$work/cpack.log" 2>&1 || {
      cat "$work/cpack.log"
      exit 1
    }
    package=$(compgen -G "$work/deb/sluice_*.deb") || fail "no package"
    info=$(dpkg-deb --info "$package")
    echo "$info"
    for line in "Package: sluice" "Section: science" "Maintainer: Sluice developers <sluice@example.org>"; do holds "$info" "$line"; done
    grep -qE '^ Depends: .*libc6 .*libfmt' <<<"$info" || fail "no dependencies on libc6 and libfmt"
    ! grep -q '^SLUICE_OPENBLAS_LIBRARY.*libopenblas' "$build/CMakeCache.txt" || grep -qE '^ Depends: .*libopenblas' <<<"$info" ||
      fail "no dependency on OpenBLAS"
    contents=$(dpkg-deb --contents "$package")
    for file in ./usr/bin/sluice ./usr/share/man/man1/sluice.1 ./usr/include/sluice/sim/simulator.h \
        ./usr/share/doc/sluice/copyright ./usr/share/bash-completion/completions/sluice; do
      holds "$contents" "$file"
    done
    # Owners and modes are those of Debian packages, and nothing is outside /usr.
    odd=$(grep -vE '^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) root/root +[0-9]+ [^ ]+ [^ ]+ \./(usr/.*)?$' <<<"$contents" || true)
    [ -z "$odd" ] || fail "unexpected modes, owners or folders: $odd"
    dpkg-deb --extract "$package" "$work/extracted"
    unsafe=$(unsafe_rpaths "$work/extracted/usr/bin/sluice")
    [ -z "$unsafe" ] || fail "empty or relative RUNPATH entries: $unsafe"
    "$work/extracted/usr/bin/sluice" --version
    ;;

  *) fail "unknown check: $name" ;;
esac
