"""A port that somebody else has is told before the model is loaded."""

import socket

import pytest

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.serve import serve
from tokbridge_teacher.settings import ServeSettings


@pytest.mark.parametrize("field", ["port", "grpc_port"])
def test_a_taken_port_is_told_before_the_model_is_looked_for(field, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"port": 0, "grpc_port": 0} | {field: taken.getsockname()[1]}
        with pytest.raises(InvalidConfigError, match="Cannot listen") as raised:
            serve(ServeSettings(model=str(tmp_path / "no model"), **ports))
    assert raised.value.details["field"] == field
