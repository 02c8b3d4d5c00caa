#!/usr/bin/env bash
# Runs every fuzz test of the module in turn, each for FUZZTIME (10s): the go
# command itself fuzzes only one test of one package at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

fuzz() {
	go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-10s}" "$1" </dev/null
}

# "go test -list" prints a package's tests and then its "ok" line.
list=$(go test -list '^Fuzz' ./...)
awk '/^Fuzz/ {names[n++] = $1} $1 == "ok" {for (i = 0; i < n; i++) print $2, names[i]; n = 0}' <<<"$list" |
	while read -r pkg name; do
		echo "== $pkg $name"
		log=$(mktemp)
		if ! fuzz "$pkg" "$name" | tee "$log"; then
			# At its time limit the go command sometimes reports its own deadline
			# as a failure. A finding always comes with the input that failed.
			if grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input' "$log"; then
				echo "the deadline, not a finding: once more"
				fuzz "$pkg" "$name"
			else
				rm -f "$log"
				exit 1
			fi
		fi
		rm -f "$log"
	done
