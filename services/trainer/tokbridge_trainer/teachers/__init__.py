"""Several teachers at once: who scores a prompt, how their rows become one target, how the list changes in a run."""
