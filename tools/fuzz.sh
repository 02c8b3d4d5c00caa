#!/usr/bin/env bash
# Runs every fuzz test of the module in turn, each for FUZZTIME (10s): the go
# command itself fuzzes only one test of one package at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

# "go test -list" prints a package's tests and then its "ok" line.
list=$(go test -list '^Fuzz' ./...)
awk '/^Fuzz/ {names[n++] = $1} $1 == "ok" {for (i = 0; i < n; i++) print $2, names[i]; n = 0}' <<<"$list" |
	while read -r pkg name; do
		echo "== $pkg $name"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "$pkg" </dev/null
	done
