"""Backend on vLLM: the device pass runs inside vLLM's workers, and only sparse results leave them.

In the order of a response: `backend` (this process) → `engine` → `plugin` and `models` (how vLLM loads the teacher) →
`target_pooler` (a worker, after every forward pass) → `response_state` → back. What travels is in the `*_codec`
modules.
vLLM is imported by `engine`, `loading`, `plugin`, `models`, `target_pooler`, `head_check` and `worker_extension`; what
the others do is tested without it.
"""
