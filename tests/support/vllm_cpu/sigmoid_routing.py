"""A plugin of vLLM for its CPU build, which knows MiniMax-M2's choice of experts (sigmoid and a bias) only where they
come in groups: one group of all of them is the same.
"""

from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter


def register() -> None:
    """Make every such router one of a single group."""
    initialize = CPURouter.__init__

    def grouped(self, *arguments, scoring_func="softmax", use_grouped_topk=False, **options) -> None:
        if scoring_func == "sigmoid" and not use_grouped_topk:
            use_grouped_topk = True
            options |= {"num_expert_group": 1, "topk_group": 1}
        initialize(self, *arguments, scoring_func=scoring_func, use_grouped_topk=use_grouped_topk, **options)

    CPURouter.__init__ = grouped
