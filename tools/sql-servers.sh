#!/usr/bin/env bash
# Installs the servers that the tests of lease/locks/sqlstore start, from Debian's packages, if
# they are absent and this is root. Elsewhere those tests are skipped.
set -euo pipefail

missing=()
if ! command -v postgres >/dev/null && ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
	missing+=(postgresql)
fi
if ! command -v mariadbd >/dev/null && [ ! -x /usr/sbin/mariadbd ]; then
	missing+=(mariadb-server)
fi
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
	echo "SKIP lease/locks/sqlstore: it needs ${missing[*]}, which only root on Debian gets installed" >&2
	exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "tools/sql-servers.sh: ${missing[*]} could not be installed" >&2
	exit 1
fi
