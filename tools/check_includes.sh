#!/bin/bash
# Checks every #include "athanor/ROOM/..." under src/ and the rooms' tests against rooms.txt: a room
# may include itself, base, and the rooms that its line names; nothing is inherited.
# Usage: tools/check_includes.sh [ROOT]. Exit code 1 and one line a fault when an edge is missing.
set -euo pipefail
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}
cd "$root"

mapfile -d '' files < <(find src/athanor -type f \( -name '*.h' -o -name '*.cpp' \) -print0 | sort -z)
awk '
  function exists(path,    line, found) {
    if (!(path in existing)) { existing[path] = (getline line < path) >= 0; close(path) }
    return existing[path]
  }
  FNR == NR {                                   # rooms.txt: "room: other other"
    if ($0 ~ /^[a-z_]+:/) {
      room = $1; sub(/:.*/, "", room); known[room] = 1
      for (i = 2; i <= NF; ++i) edge[room, $i] = 1
    }
    next
  }
  FNR == 1 {
    split(FILENAME, part, "/"); here = part[3]
    if (!(here in known)) { print FILENAME ": room \"" here "\" is not in rooms.txt"; bad = 1 }
  }
  /^[ \t]*#[ \t]*include[ \t]*[<"]athanor\// {
    target = $0; sub(/^[^<"]*[<"]athanor\//, "", target); sub(/[>"].*/, "", target)
    file = target; sub(/\/.*/, "", target)
    where = FILENAME ":" FNR ": "
    if ($0 ~ /</) { print where "athanor/" file " is included with <>; write \"\""; bad = 1 }
    if (!exists("src/athanor/" file)) { print where "athanor/" file " does not exist"; bad = 1 }
    ++checked
    if (target == here || target == "base" || (here, target) in edge) next
    print where here " may not include " target " (rooms.txt has no such edge)"; bad = 1
  }
  /^[ \t]*#[ \t]*include[ \t]*"/ && !/"athanor\// {
    target = $0; sub(/^[^"]*"/, "", target); sub(/".*/, "", target)
    folder = FILENAME; sub(/[^\/]*$/, "", folder)
    if (!exists(folder target)) next            # a header of a library
    print FILENAME ":" FNR ": own headers are included by their full path, \"athanor/ROOM/FILE.h\""; bad = 1
  }
  END {
    if (!bad) print checked + 0 " includes obey rooms.txt"
    exit bad
  }
' rooms.txt "${files[@]}"
