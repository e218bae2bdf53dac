#!/usr/bin/env bash
# serve.sh BUILD MODEL [ARGS...]: runs `lily serve` from a build folder; without MODEL, the small model that comes with lily.
set -euo pipefail
build=$1 model=$2
shift 2
exec "$build/apps/lily/lily" serve ${model:+"$model"} "$@"
