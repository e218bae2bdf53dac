#!/usr/bin/env bash
# serve.sh BUILD MODEL [ARGS...]: runs `lily serve` from a build folder. Without MODEL it serves the model that comes
# with lily; until that is there, random weights of the small shape, which answer with noise.
set -euo pipefail
build=$1 model=$2
shift 2
if [ -z "$model" ] && [ ! -f models/lily-tiny/config.json ]; then
  model=$build/models/synth-tiny
  [ -f "$model/config.json" ] || "$build/apps/lily/lily" synth "$model" --shape tiny
  echo "serve: no trained model here; serving random weights of the small shape, which answer with noise" >&2
fi
exec "$build/apps/lily/lily" serve ${model:+"$model"} "$@"
