#!/bin/sh
# Removal stops what runs; an upgrade (deb: upgrade, rpm: 1) does not.
set -e
case "$1" in upgrade | 1) exit 0 ;; esac
[ -d /run/systemd/system ] || exit 0
systemctl disable --now psidecar-proxy.service psidecar-agent.service psidecar-planner.service || true
