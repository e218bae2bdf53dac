#!/usr/bin/env bash
# test_venv.sh FOLDER [models]: makes a Python environment for tests/e2e from tests/requirements.txt, and with `models` adds
# tests/requirements-models.txt. Quick when it is there and the requirements are those it was made from.
set -euo pipefail
folder=$1
tests=$(dirname "$0")/../tests
# Installs tests/$1 unless it is what was installed last. Two tests that start at once must not do it twice.
add() {
  cmp -s "$tests/$1" "$folder/$1" && return
  mkdir -p "$(dirname "$folder")"
  exec 9>"$folder.lock"
  ! command -v flock >/dev/null || flock 9  # macOS has none
  cmp -s "$tests/$1" "$folder/$1" && return
  echo "test_venv: $folder: installing $1" >&2
  if [ "$1" = requirements.txt ]; then
    rm -rf "$folder"
    python3 -m venv "$folder"
  fi
  "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$tests/$1"
  cp "$tests/$1" "$folder/$1"
}
add requirements.txt
[ "${2:-}" != models ] || add requirements-models.txt
