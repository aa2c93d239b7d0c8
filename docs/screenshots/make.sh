#!/usr/bin/env bash
# The first screens of the bundled incidents in both themes, into this folder. Needs Chromium and `npm ci` in tests/browser.
set -euo pipefail
cd "$(dirname "$0")"
page=$(mktemp --suffix .html)
trap 'rm -f "$page"' EXIT
for sample in riser-xid79 two-rails-psu skipped-collective; do
    nccl-forensics demo "$sample" -o "$page" >/dev/null
    for theme in light dark; do
        (cd ../../tests/browser && node shot.mjs "$page" "../../docs/screenshots/$sample-$theme.png" 1440 1000 "$theme")
    done
done
