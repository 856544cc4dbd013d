"""Stands in for torchvision, whose builds do not load beside a CPU torch: vLLM and transformers import names from it as
they read a model that also sees, and use none of them for text.
"""

import enum
import sys
import types

__version__ = "0.28.0"
InterpolationMode = enum.Enum("InterpolationMode", "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS")
_MODULES = {
    "io": {"ImageReadMode": None, "decode_image": None},
    "transforms": {"InterpolationMode": InterpolationMode},
    "transforms.functional": {"pil_to_tensor": None},
    "transforms.v2": {},
    "transforms.v2.functional": {"InterpolationMode": InterpolationMode},
}
for _name, _members in _MODULES.items():
    _module = types.ModuleType(f"{__name__}.{_name}")
    vars(_module).update(_members)
    _parent, _, _leaf = _module.__name__.rpartition(".")
    sys.modules[_module.__name__] = _module
    setattr(sys.modules[_parent], _leaf, _module)
