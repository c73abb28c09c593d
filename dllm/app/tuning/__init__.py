"""``dllm tune``: the fastest setting that is good enough, with a promise (``dllm.scoring.promise``)."""
