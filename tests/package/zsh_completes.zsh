# zsh_completes.zsh FUNCTIONS TYPED EXPECTED: checks that an interactive zsh with the scripts in FUNCTIONS completes TYPED to
# EXPECTED when Tab is pressed.
zmodload zsh/zpty
zmodload zsh/datetime

read_until() {
  local out= piece deadline=$((EPOCHREALTIME + 30))
  while [[ $out != *$1* ]] && ((EPOCHREALTIME < deadline)); do
    if zpty -r -t shell piece; then out+=$piece; else sleep 0.05; fi
  done
  [[ $out == *$1* ]] && return
  print -ru2 -- "expected $1 in: ${(V)out}"
  return 1
}

zpty shell zsh -f -i
zpty -w shell "stty cols 1000; fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -u -D; print REA''DY"
read_until READY || exit 1
zpty -w -n shell "$2"$'\t'
read_until "$3"
