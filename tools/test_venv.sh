#!/usr/bin/env bash
# test_venv.sh FOLDER: makes a Python environment for tests/e2e from tests/requirements.txt. Quick when it is there
# and the requirements are those it was made from.
set -euo pipefail
folder=$1
requirements=$(dirname "$0")/../tests/requirements.txt
if cmp -s "$requirements" "$folder/requirements.txt"; then
  exit 0
fi
# Two tests that start at once must not build it twice.
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
if cmp -s "$requirements" "$folder/requirements.txt"; then
  exit 0
fi
echo "test_venv: making $folder" >&2
rm -rf "$folder"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
cp "$requirements" "$folder/requirements.txt"
