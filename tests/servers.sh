#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes sure that the programs some tests start are installed: a PostgreSQL server, Prometheus and its promtool, and
# libfaketime, which gives a process a clock of its own. Starts
# nothing, says nothing where all is there, and never fails: what could not be installed is named here and again by
# each test that is skipped for it.
set -uo pipefail

have_postgres() {
  [[ -n "${LAKEFOLD_TEST_POSTGRES:-}" ]] && return 0
  local directory
  for directory in /usr/lib/postgresql/*/bin "$(dirname "$(readlink -f "$(command -v initdb || echo /nowhere/initdb)")")"; do
    [[ -x $directory/initdb && -x $directory/postgres ]] && return 0
  done
  return 1
}
have_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null; }
have_faketime() { compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null; }
have_prometheus() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }

missing=()
have_postgres || missing+=(postgresql)
have_prometheus || missing+=(prometheus)
have_chromium || missing+=(chromium)
have_faketime || missing+=(faketime)
[[ ${#missing[@]} == 0 ]] && exit 0

give_up() {
  echo "tests/servers.sh: ${missing[*]} not installed ($1); tests that need it are skipped, and fail under CI=true" >&2
  exit 0
}
command -v apt-get >/dev/null || give_up "no apt-get here; install it with this system's package manager"
[[ $(id -u) == 0 ]] || give_up "not root; run: sudo apt-get install ${missing[*]}"

echo "tests/servers.sh: installing ${missing[*]}" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Packages must not start their services here. The policy is ours for the length of the installation only.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
  trap 'rm -rf "$work" "$policy"' EXIT
fi
# No unused cluster either: the tests make their own.
if [[ " ${missing[*]} " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
  mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
fi

install() {
  DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends \
    -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=120 "${missing[@]}" >"$work/log" 2>&1
}
install || { timeout 120 apt-get update -qq >"$work/update" 2>&1; install; } ||
  give_up "apt-get install failed: $(grep -m1 '^E:' "$work/log" || tail -n1 "$work/log")"
have_postgres && have_prometheus && have_chromium && have_faketime || give_up "apt-get installed it, but its programs are not there"
