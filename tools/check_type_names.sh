#!/bin/bash
# Two types of one name in one namespace, in headers of different rooms, compile and link, and then one's
# functions run on the other's objects. Refuses them; no compiler or linker does.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
found=$(find src/athanor -name '*.h' ! -name '*-inl.h' ! -name '*test_support.h' -print0 | sort -z | xargs -0 awk '
  FNR == 1 { scope = "" }
  /^namespace [a-z_:]+ \{/ { scope = $2 }
  /^(struct|class|enum class|union) [A-Z][A-Za-z0-9]*( final)?( : [^;{]*)? ?\{/ {
    name = ($1 == "enum") ? $3 : $2
    sub(/[:{].*/, "", name)
    key = scope "::" name
    if (key in first && first[key] != FILENAME) print key ": " first[key] " and " FILENAME
    else first[key] = FILENAME
  }')
if [[ -n $found ]]; then
  echo "types of one name:" >&2
  echo "$found" >&2
  exit 1
fi
echo "no two types of one name"
