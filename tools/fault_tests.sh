#!/bin/bash
# Prints the test binaries that hold tests named after a fault, one a line.
# Usage: tools/fault_tests.sh ID [ROOT]. A test is named after P06 when P06_ begins its name or stands
# after an underscore in it: TEST(GradientNorm, P06_CountsEachElementOnce).
set -euo pipefail
id=$1
cd "${2:-$(dirname "$0")/..}"
{ grep -rlE --include='*_test.cpp' "[^A-Za-z0-9]${id}_" src/athanor tests || true; } |
  sed -E 's,^src/athanor/([a-z_]+)/.*,athanor_\1_test,; s,^tests/(.*/)?([a-z0-9_]+)\.cpp$,athanor_\2,' | sort -u
