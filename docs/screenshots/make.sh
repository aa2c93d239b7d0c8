#!/usr/bin/env bash
# The first screens of the bundled incidents in both themes, into this folder. Needs Chromium and `pip install -e '.[browser]'`.
set -euo pipefail
cd "$(dirname "$0")"
page=$(mktemp --suffix .html)
trap 'rm -f "$page"' EXIT
for sample in riser-xid79 two-rails-psu skipped-collective; do
    nccl-forensics demo "$sample" -o "$page" >/dev/null
    for theme in light dark; do
        python ../../tests/browser/shot.py "$page" "$sample-$theme.png" 1440 1000 "$theme"
    done
done
