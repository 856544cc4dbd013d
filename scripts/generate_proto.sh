#!/usr/bin/env bash
# Generates services/contract/tokbridge/v1 from proto/. The oldest supported generator, since generated code refuses an
# older protobuf runtime than its own. Usage: scripts/generate_proto.sh [OUTPUT_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-services/contract}
if [ ! -x .venv-proto/bin/python ]; then
  python3 -m venv .venv-proto
  .venv-proto/bin/pip install --quiet ${PIP_ARGS:-} grpcio-tools==1.74.0 setuptools
fi
.venv-proto/bin/python -m grpc_tools.protoc --proto_path=proto \
  --python_out="$output" --pyi_out="$output" --grpc_python_out="$output" tokbridge/v1/teacher.proto
