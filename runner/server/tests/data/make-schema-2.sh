#!/usr/bin/env bash
# Makes schema-2.sqlite and schema-2.json with the command as it was at 14fc3c7, the last commit that wrote schema 2:
#   make-schema-2.sh PENSTOCK GUEST_MISBEHAVING_WASM
# One run of more than one chunk with failures, one with logs, one that is stopped. The JSON holds answers of that server.
set -euo pipefail
penstock=$(realpath "$1"); module=$(realpath "$2"); here=$(realpath "$(dirname "$0")")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
export PENSTOCK_SERVER=http://127.0.0.1:7791
mkdir in
for number in $(seq 60); do echo "{\"key\": \"k$number\", \"text\": \"t\"}"; done > in/in.ndjson
cat > long.json <<'J'
{ "name": "long", "seed": 3, "threads": 1, "source": { "range": { "count": 1000000 } },
  "stages": [
    { "sleep": { "name": "download", "mean_ms": 60, "jitter": 0.5, "concurrency": 4, "fail_rate": 0.02 } },
    { "aggregate": { "size": 4 } },
    { "sleep": { "name": "augment", "mean_ms": 30, "shape": "exponential" } } ],
  "consumer": { "simulate": { "step_ms": 45, "jitter": 0.2 } } }
J
cat > logs.json <<'J'
{ "name": "logs", "threads": 1, "source": { "records": { "store": "in", "key": "in.ndjson" } },
  "stages": [ { "sleep": { "mean_ms": 20 } }, { "wasm": { "module": "misbehaving@1", "params": { "how": "log" } } } ] }
J
echo '{ "name": "stopped", "threads": 1, "source": { "range": { "count": 1000000 } }, "stages": [ { "sleep": { "mean_ms": 20 } } ] }' > stopped.json
"$penstock" serve --listen 127.0.0.1:7791 --data-dir data --store in=in --module "$module" & server=$!
until curl -fs $PENSTOCK_SERVER/health > /dev/null; do sleep 0.2; done
submit() { # FILE [FOR_S]
  curl -fsS "$PENSTOCK_SERVER/api/v1/runs${2:+?for_s=$2}" -H 'content-type: application/json' -d @"$1" | jq -r .id
}
long=$(submit long.json 70); logs=$(submit logs.json); stopped=$(submit stopped.json)
sleep 3
curl -fsS -X POST "$PENSTOCK_SERVER/api/v1/runs/$stopped/stop" > /dev/null
until curl -fsS "$PENSTOCK_SERVER/api/v1/runs/$long" | jq -e '.state == "completed"' > /dev/null; do sleep 1; done
get() { curl -fsS "$PENSTOCK_SERVER/api/v1/runs/$1"; }
for run in $long $logs $stopped; do
  jq -n --arg id "$run" --argjson series "$(get "$run/series?points=8")" --argjson fine "$(get "$run/series?points=600&metrics=readiness,busy")" \
    --argjson windows "$(get "$run/windows?every_s=20")" --argjson times "$(get "$run/stages/1:$(get "$run" | jq -r '.snapshot.stages[0].name')/times")" \
    --argjson errors "$(get "$run/errors?limit=3")" --argjson logs "$(get "$run/logs?limit=3")" \
    '{$id, series: ($series | del(.last)), fine: ($fine | del(.last) | .columns |= .[:2]), $windows, $times, errors: $errors.items, logs: $logs.items}'
done | jq -sc . > "$here/schema-2.json"
kill $server; wait $server || true
cp data/penstock.sqlite "$here/schema-2.sqlite"
