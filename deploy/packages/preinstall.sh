#!/bin/sh
# The user of proxy and planner.
set -e
getent passwd psidecar >/dev/null || useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin psidecar
