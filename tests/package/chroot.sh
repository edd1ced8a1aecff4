#!/usr/bin/env bash
# Runs what tools/bundle.sh, tools/wheel.sh (the wheel for Python 3.9) or tools/gpu_bundle.sh packs in a bare Debian:
# chroot.sh FILE [ROOT], as root. ROOT is a folder with a bare system; without it debootstrap installs one into a temporary
# folder: Debian 11, with glibc 2.31 and Python 3.9, or Debian 12. Exit code 77: skipped, because root or debootstrap is
# missing.
set -euo pipefail

archive=${1:?usage: chroot.sh FILE [ROOT]}
if [ "$(id -u)" -ne 0 ] || { [ $# -lt 2 ] && ! command -v debootstrap >/dev/null; }; then
  echo "SKIPPED: needs root and debootstrap" >&2
  exit 77
fi
work=$(mktemp -d)
chmod go+rx "$work"
trap 'if [ -e "$root/proc/self" ]; then umount "$root/proc"; fi; rm -rf "$work"' EXIT
root=${2:-$work/root}
suite=bullseye
options=(--variant=minbase)
case ${archive##*/} in
  sluice-gpu-*) suite=bookworm ;;
  *.whl) options+=(--include=python3-venv) ;;
esac
[ -d "$root/usr" ] || debootstrap "${options[@]}" "$suite" "$root" >"$work/debootstrap.log" || {
  cat "$work/debootstrap.log"
  exit 1
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
name=$(basename "$archive" .tar.xz)
rm -rf "$root/opt/bundle" "$root/usr/local/bin/sluice" "$root/srv/sluice"
for library in fmt tbb openblas gfortran mpi; do
  [ -z "$(find "$root" -name "lib$library*.so*")" ] || fail "$root is not a bare system: it has lib$library"
done
mkdir -p "$root/opt/bundle" "$root/srv"
prefix=/opt/bundle/${name%.whl}
if [[ $name == *.whl ]]; then
  python3 -m pip download --quiet --only-binary=:all: --python-version 3.9 --dest "$root/opt/bundle" numpy
  cp "$archive" "$root/opt/bundle"
  chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin /bin/sh -c "python3 -m venv $prefix && $prefix/bin/pip install --quiet --no-index --find-links /opt/bundle /opt/bundle/sluice-*.whl"
else
  tar -C "$root/opt/bundle" -xJf "$archive"
fi
ln -s "../../..$prefix/bin/sluice" "$root/usr/local/bin/sluice"
examples=$prefix/share/sluice/examples

# The C library alone is enough: the C++ library of the bare system, which only NumPy needs, is out of the way.
for library in libstdc++.so.6 libgcc_s.so.1; do
  for file in "$root"/{lib,usr/lib}/x86_64-linux-gnu/$library*; do
    if [ -e "$file" ] && [[ $name != *.whl ]]; then rm "$file"; fi
  done
done

# in_chroot USER COMMAND: from a folder that the user may not write to.
in_chroot() { chroot --userspec="$1:$1" "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin HOME=/nowhere /bin/sh -c "cd /srv && $2"; }
holds() { grep -qF -- "$2" <<<"$1" || fail "no '$2' in: $1"; }
passed() { echo "passed in $(. "$root/etc/os-release" && echo "$PRETTY_NAME") with $(chroot "$root" ldd --version 2>/dev/null | head -n 1)"; }

if [[ $name == sluice-gpu-* ]]; then
  # Programs find the libraries beside them by /proc/self/exe. A stub reports a GPU; the emulation computes.
  mount -t proc proc "$root/proc"
  mkdir -p "$root/opt/stubs"
  cat >"$root/opt/stubs/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in -L) echo "GPU 0: Stub" ;; *compute_cap*) echo 9.0 ;; *--query-gpu=name*) echo "NVIDIA Stub" ;; esac
END
  chmod +x "$root/opt/stubs/nvidia-smi"
  holds "$(in_chroot 65534 "/opt/bundle/$name/bin/sluice doctor")" "for sm_80 sm_90"
  in_chroot 0 "PATH=/opt/stubs:\$PATH /opt/bundle/$name/tools/gpu_check.sh --from-bundle --dry-run --output /srv/results" | tee "$work/out"
  for row in 'doctor +ok' 'gpu-tests-kernels +NOTHING' 'nccl-tests +ok' 'train-green-2-seq1f1b-losses +ok' 'layers +NOTHING' 'executor +NOTHING' \
    'validate-green-[248] +ok' 'losses-sluice +ok' 'dry run: no step failed'; do
    grep -qE "^$row" "$work/out" || fail "no '$row'"
  done
  for group in correctness speed circle; do tar -tzf "$root/srv/results/$group.tar.gz" >/dev/null || fail "no results of $group"; done
  passed
  exit
fi
for user in 0 65534; do
  holds "$name" "sluice-$(in_chroot $user 'sluice --version' | grep -oE '[0-9]+\.[0-9]+\.[0-9]+')-"
  holds "$(in_chroot $user "sluice simulate $examples/gpt3-175b-a100.json")" "makespan"
  holds "$(in_chroot $user 'sluice simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1')" "makespan 33 s"
  holds "$(in_chroot $user "sluice plan $examples/gpt3-175b-a100.json --schedule 1f1b --top 1")" "1f1b"
  holds "$(in_chroot $user 'sluice run --steps 2')" "loss"
  holds "$(in_chroot $user 'sluice doctor')" "OpenBLAS"
  if [[ $name == *.whl ]]; then
    holds "$(in_chroot $user "$prefix/bin/python -c 'import sluice; print(sluice.simulate(pp=2, microbatches=4).makespan_s)'")" 15.0
  fi
done
passed
