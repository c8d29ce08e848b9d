#!/bin/bash
# Checks that every patch of tests/faults/ still applies to the tree and names tests that exist.
# Usage: tools/check_faults.sh. Exit code 1 and one line for each that does not.
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob
failed=0 checked=0
for patch in tests/faults/*.patch; do
  id=$(basename "$patch" .patch)
  checked=$((checked + 1))
  if ! git apply --check "$patch"; then
    echo "$patch does not apply"
    failed=1
  fi
  if [[ -z $(tools/fault_tests.sh "$id") ]]; then
    echo "$patch: no test has _${id}_ in its name"
    failed=1
  fi
done
((failed == 0)) && echo "$checked fault patches apply"
exit $failed
