class _Platform:
    device_type: str

current_platform: _Platform
