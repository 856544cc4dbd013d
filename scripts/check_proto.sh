#!/usr/bin/env bash
# Fails if services/contract/tokbridge/v1 is not what proto/ generates.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
scripts/generate_proto.sh "$fresh"
for file in teacher_pb2.py teacher_pb2.pyi teacher_pb2_grpc.py; do
  diff -u "services/contract/tokbridge/v1/$file" "$fresh/tokbridge/v1/$file" || {
    echo "services/contract/tokbridge/v1/$file is stale: run make proto" >&2
    exit 1
  }
done
echo "generated code is fresh"
