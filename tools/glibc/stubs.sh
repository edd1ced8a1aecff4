#!/usr/bin/env bash
# tools/glibc/stubs.sh FOLDER: writes what the linker needs for programs that run with glibc 2.28 or newer (RHEL 8, Debian 10,
# Ubuntu 20.04): `c++ -B FOLDER` finds it before the system's C library. The compiler and its headers stay the system's, so
# that objects are the same. A function that 2.28 lacks is an error of the linker, unless newer_functions.cc defines it.
#
# Zig has the symbols of each version of glibc. From them it builds libraries without code, the start of programs, and
# functions that older versions have in headers only (stat).
set -euo pipefail

zig=0.17.1 glibc=2.28
source=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: tools/glibc/stubs.sh FOLDER}"
folder=$(cd "$1" && pwd)
made_from="$folder $zig $glibc $(cat "$0" "$source/newer_functions.cc" | cksum)"
if [ "$(cat "$folder/made_from" 2>/dev/null)" = "$made_from" ]; then exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ZIG_GLOBAL_CACHE_DIR=$work/cache ZIG_LOCAL_CACHE_DIR=$work/cache
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-compile "ziglang==$zig"
cd "$work"
echo 'int main() { return 0; }' >empty.c
"$work/venv/bin/python" -m ziglang cc -target "x86_64-linux-gnu.$glibc" -O2 -pie empty.c -o empty -v 2>commands || {
  cat commands >&2
  exit 1
}
# The command that links the program names the files.
for file in $(grep -E '^ld\.lld .* -o empty ' commands | grep -oE '[^ ]+/(Scrt1\.o|lib(c|m|ld|pthread|dl|rt)\.so\.[0-9]|libc_nonshared\.a)'); do
  cp "$file" "$folder"
done
c++ -std=c++20 -O2 -fPIC -fvisibility=hidden -fno-exceptions -Wall -Wextra -Werror -c "$source/newer_functions.cc" -o newer_functions.o
ar rcs "$folder/libnewer_functions.a" newer_functions.o
# The names that the linker looks for. Before glibc 2.34, threads and the loader are libraries of their own.
for name in m pthread dl rt; do ln -sf "$(basename "$folder/lib$name.so."?)" "$folder/lib$name.so"; done
cat >"$folder/libc.so" <<END
OUTPUT_FORMAT(elf64-x86-64)
GROUP($folder/libc.so.6 $folder/libc_nonshared.a $folder/libnewer_functions.a
  AS_NEEDED($folder/libpthread.so.0 $folder/libdl.so.2 $folder/librt.so.1 $folder/libld.so.2))
END
echo "$made_from" >"$folder/made_from"
