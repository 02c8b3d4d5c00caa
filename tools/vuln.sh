#!/usr/bin/env bash
# Runs govulncheck, which downloads its database. Without a way to reach it the
# check is skipped, in one line, so that the other checks can run offline; where
# REQUIRE_VULN=1 is set, as in the hosted workflow, that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

rc=0
out=$(.bin/govulncheck ./... 2>&1) || rc=$?
if [[ $rc -ne 0 && $out == *"govulncheck: fetching vulnerabilities:"* && ${REQUIRE_VULN:-} != 1 ]]; then
	echo "SKIP govulncheck: vulnerability database cannot be reached"
	exit 0
fi
printf '%s\n' "$out"
exit "$rc"
