import pytest

from tokbridge.errors import SelfTestFailedError
from tokbridge.modes import Routing
from tokbridge.registration import StudentRegistration
from tokbridge_teacher.backends import huggingface
from tokbridge_teacher.building import load_backend
from tokbridge_teacher.readiness import SelfTestResponse, check_whole_path
from tokbridge_teacher.settings import ServeSettings
from tokbridge_teacher.students import pair_compiler


@pytest.fixture(scope="module")
def parts(teacher_folder, teacher_profile):
    backend = load_backend(ServeSettings(model=str(teacher_folder)))
    compile_tables = pair_compiler(teacher_profile.vocabulary, None)
    tables = compile_tables(StudentRegistration.from_profile(teacher_profile), Routing.GREEDY)
    return backend, SelfTestResponse.planned(teacher_profile, tables, backend.describe().device)


def test_a_sound_path_repeats_itself(parts):
    assert check_whole_path(*parts) == 0.0


def test_a_path_that_does_not_repeat_itself_is_refused(parts, monkeypatch):
    plain = huggingface.marginalize
    noise = iter(range(1000))

    def drift(logits, plan_slice, tables):
        logits[:, :50] += next(noise) * 0.1
        return plain(logits, plan_slice, tables)

    monkeypatch.setattr(huggingface, "marginalize", drift)
    with pytest.raises(SelfTestFailedError, match="twice"):
        check_whole_path(*parts)
