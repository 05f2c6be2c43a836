#!/bin/sh
# Gates a cluster from cron, and keeps the runs. The crontab line for each Sunday at 3:00 is
#   0 3 * * 0  /srv/acceptance/acceptance.sh >> /srv/acceptance/cron.log 2>&1
# The folder of this script holds cluster.toml, and wheels/ with the wheel that you built: no public
# index has seatrial. Each run is compared with the newest complete run before it.
cd "$(dirname "$0")" || exit 4
export RAY_API_SERVER_ADDRESS="${RAY_API_SERVER_ADDRESS:-http://head:8265}"
test -x .venv/bin/seatrial ||
  { python3 -m venv .venv && .venv/bin/pip install --no-deps wheels/seatrial-*.whl click; } || exit 4
mkdir -p runs
.venv/bin/seatrial submit --contract cluster.toml --baseline runs --wait-for-room 2h
code=$?
test "$code" -eq 0 || echo "acceptance of $RAY_API_SERVER_ADDRESS: exit code $code" >&2
exit "$code"
