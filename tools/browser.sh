#!/usr/bin/env bash
# Installs the browser that test/browser drives, Debian's Chromium, if there is none and this is
# root. Elsewhere those tests are skipped.
set -euo pipefail

if [ -n "${CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then
	exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
	echo "SKIP test/browser: it needs chromium, which only root on Debian gets installed" >&2
	exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends chromium; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "tools/browser.sh: chromium could not be installed" >&2
	exit 1
fi
