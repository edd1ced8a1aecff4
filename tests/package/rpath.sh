# For scripts to source: finds unsafe search paths for shared libraries in ELF files.

# unsafe_rpaths FILE...: prints "FILE: 'ENTRY'" for each entry of an RPATH or RUNPATH that is neither an absolute path nor
# relative to the file ($ORIGIN). The loader takes an empty entry as the current folder.
unsafe_rpaths() {
  local file paths entry
  for file in "$@"; do
    while IFS= read -r paths; do
      paths+=:
      while [ -n "$paths" ]; do
        entry=${paths%%:*}
        paths=${paths#*:}
        case $entry in /* | "\$ORIGIN" | "\$ORIGIN/"* | "\${ORIGIN}" | "\${ORIGIN}/"*) ;; *) echo "$file: '$entry'" ;; esac
      done
    done < <(readelf -d "$file" | sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]$/\2/p')
  done
}

# elf_files FOLDER: prints the programs and shared libraries in it, one path per line.
elf_files() {
  find "$1" -path "*/CMakeFiles/*" -prune -o -type f \( -perm -u+x -o -name '*.so*' \) -print | while IFS= read -r file; do
    if [ "$(head -c 4 "$file" | od -An -c | tr -d ' ')" = '177ELF' ]; then echo "$file"; fi
  done
}
