"""One tiny service, to hold the deployment files against."""

from collections.abc import Iterator

import pytest

from support.tiny_models import TINY_TEACHER, save_tiny_model
from tokbridge_teacher.building import BuiltService, build_service
from tokbridge_teacher.settings import ServeSettings


@pytest.fixture(scope="package")
def deployed_teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltService]:
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("deployed"))
    built = build_service(ServeSettings(model=str(folder)))
    yield built
    built.stop(grace_s=5)
    built.close()
