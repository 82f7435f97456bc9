#!/usr/bin/env bash
# Runs every fuzz target of the package in folder $1 for $2. The package is built
# once, with the instrumentation that fuzzing wants.
set -euo pipefail
folder=$1 time=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$folder"
go test -c -fuzz . -o "$work/fuzz" .
# Now and then fuzzing ends with an error because its time is up, and has found
# nothing; such a target gets one more try.
for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]*' ./*_test.go | cut -c6-); do
  for try in 1 2; do
    if "$work/fuzz" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.parallel 2 -test.fuzzcachedir "$work/cache" >"$work/out" 2>&1; then
      echo "$folder $target: $(grep -E '^fuzz: elapsed' "$work/out" | tail -n 1)"
      continue 2
    fi
    grep -q 'context deadline exceeded' "$work/out" && ! grep -q 'Failing input' "$work/out" || break
  done
  echo "$folder $target failed:"
  cat "$work/out"
  exit 1
done
