#!/bin/bash
# Compares what the program prints with the texts under version control.
# Usage: tools/golden.sh PROGRAM [--update]
#
# tests/golden/cases.txt has one case a line: `NAME: ARGUMENTS`. The output of `PROGRAM ARGUMENTS`,
# run in the repository's root, must equal tests/golden/NAME.txt; a NAME with a slash is a path from
# the root. Exit code 1 and a diff where they differ; --update writes the texts instead.
set -euo pipefail
program=$(realpath "${1:?usage: tools/golden.sh PROGRAM [--update]}")
update=${2:-}
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

failed=0 passed=0
while IFS= read -r line; do
  [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
  name=${line%%:*}
  read -ra arguments <<<"${line#*:}"
  file=tests/golden/$name.txt
  [[ $name == */* ]] && file=$name
  if ! "$program" "${arguments[@]}" >"$scratch/text" 2>"$scratch/errors" </dev/null; then
    echo "golden: $name: athanor ${arguments[*]} failed:" && cat "$scratch/errors"
    failed=$((failed + 1))
  elif [[ $update == --update ]]; then
    mkdir -p "$(dirname "$file")"
    cmp -s "$scratch/text" "$file" || { cp "$scratch/text" "$file" && echo "golden: wrote $file"; }
    passed=$((passed + 1))
  elif ! diff -u --label "$file" --label "athanor ${arguments[*]}" "$file" "$scratch/text"; then
    failed=$((failed + 1))
  else
    passed=$((passed + 1))
  fi
done <tests/golden/cases.txt
if ((failed > 0)); then
  echo "golden: $failed of $((passed + failed)) texts differ; if that is meant: ./run golden --update, and review the diff"
  exit 1
fi
echo "golden: $passed texts as they should be"
