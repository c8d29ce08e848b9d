#!/bin/bash
# Shows that tools/check_includes.sh accepts a tree that obeys the table and refuses each kind of breach.
set -euo pipefail
check=$(cd "$(dirname "$0")" && pwd)/check_includes.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/src/athanor/{base,low,middle,high}
printf 'base:\nlow:\nmiddle: low\nhigh: middle\n' >"$root/rooms.txt"
touch "$root"/src/athanor/{base/base,low/low,middle/middle}.h
high=$root/src/athanor/high/high_test.cpp

printf '#include "athanor/middle/middle.h"\n#include "athanor/base/base.h"\n#include "third_party/lib.h"\n' >"$high"
"$check" "$root"

# expect TEXT INCLUDE: the line is refused with this text.
expect() {
  printf '%s\n' "$2" >"$high"
  local output
  if output=$("$check" "$root"); then echo "accepted: $2" && exit 1; fi
  [[ $output == *"src/athanor/high/high_test.cpp:1: "*"$1"* ]] || { echo "said \"$output\" of: $2" && exit 1; }
}
expect "high may not include low" '#include "athanor/low/low.h"'  # an edge is not inherited
expect "high may not include low" '  #  include "athanor/low/low.h"  // indented'
expect "does not exist" '#include "athanor/middle/none.h"'
expect 'included with <>' '#include <athanor/middle/middle.h>'
touch "$root/src/athanor/high/near.h"
expect "by their full path" '#include "near.h"'
printf '#include "athanor/high/near.h"\n' >"$high"
mkdir "$root/src/athanor/annex" && touch "$root/src/athanor/annex/annex.cpp" && echo >"$root/src/athanor/annex/annex.cpp"
if "$check" "$root" >/dev/null; then echo "a room outside of the table was accepted" && exit 1; fi
echo "tools/check_includes.sh refuses what it should"
