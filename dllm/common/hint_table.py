"""Words of LLaDA, Fast-dLLM, Dream, transformers, vLLM and lm-eval, and what to write here: one table for command line,
Python and server.

No synonym is accepted, since every setting has one spelling: the refusal of another says what to write, with the value
given. An entry holds what to write on the command line; ``dllm.common.hints`` translates it for Python and requests.
Sentences have placeholders, as those of a ``Refusal``.
"""

from __future__ import annotations

from collections.abc import Mapping

# What to write on the command line; {} is the value. Of several entries the first counts whose options this run's
# choices have. By value: an entry for each, "" for all others.
Written = str | tuple[str, ...] | Mapping[str, str]
LIMIT = ("task.limit={}", "task.count={}", "task=gsm8k task.limit={}")
BLOCK_LENGTH = ("blocks.block_length={}", "blocks=fixed blocks.block_length={}")

SETTINGS: dict[str, Written] = {
    # LLaDA's generate.py
    "steps": ("sampler.steps={}", "sampler=static sampler.steps={}"),
    "cfg_scale": "sampling.guidance={}",
    "remasking": {
        "low_confidence": "sampler=static sampler.score=low_confidence",
        "random": "sampler=static sampler.score=random",
        "": "sampler=NAME",
    },
    "mask_token_id": "model.mask_id={}",
    "logits_eos_inf": "sampling.forbid_eos={}",
    "confidence_eos_eot_inf": "sampling.eos_last={}",
    # Fast-dLLM's generate.py and eval_llada.py
    "use_cache": {"true": "cache=prefix", "false": "cache=none", "": "cache=NAME"},
    "dual_cache": {"true": "cache=dual", "false": "cache=prefix", "": "cache=NAME"},
    "block_size": BLOCK_LENGTH,
    "bd_size": BLOCK_LENGTH,
    # D2F's eval_llada.py
    "block_add_threshold": ("blocks.opening_share={}", "blocks=pipelined blocks.opening_share={}"),
    "decoded_token_threshold": ("sampler.sure_share={}", "sampler=d2f sampler.sure_share={}"),
    "skip_threshold": "sampler.threshold={}",
    # Dream's diffusion_generate; alg, alg_temp and eps are options of sampler=dream
    "output_history": "trace=true",
    # transformers: generate and from_pretrained
    "max_new_tokens": "gen_length={}",
    "min_new_tokens": "sampling.min_tokens={}",
    "max_length": "gen_length={}",
    "num_return_sequences": "samples={}",
    "stop_strings": "stop={}",
    "pretrained_model_name_or_path": "model.path={}",
    "torch_dtype": "model.dtype={}",
    "dtype": "model.dtype={}",
    "device_map": "model.device={}",
    "load_in_8bit": "model.quantize=int8",
    "load_in_4bit": "model.quantize=int4",
    # vLLM, with OpenAI's fields
    "max_tokens": "gen_length={}",
    "max_completion_tokens": "gen_length={}",
    "max_output_tokens": "gen_length={}",
    "min_tokens": "sampling.min_tokens={}",
    "n": "samples={}",
    "ignore_eos": "sampling.forbid_eos={}",
    "served_model_name": ("task.names=[{}]", "task=serve task.names=[{}]"),
    "max_num_seqs": ("task.max_rows={}", "batch_size={}"),
    "quantization": "model.quantize={}",
    "tensor_parallel_size": "model.tp={} model.device=cuda",
    "enable_expert_parallel": "model.ep={}",
    "enforce_eager": "runtime=eager",
    "guided_json": "constraint=json_schema constraint.schema={}",
    "guided_regex": "constraint=regex constraint.pattern={}",
    "guided_choice": "constraint=choice constraint.options={}",
    "guided_grammar": "constraint=grammar constraint.grammar={}",
    "input": "prompt={}",
    "n_predict": "gen_length={}",
    # lm-eval
    "tasks": "task={}",
    "num_fewshot": ("task.shots={}", "task=gsm8k task.shots={}"),
    "limit": LIMIT,
    "pretrained": "model.path={}",
    "output_path": "output={}",
    "max_gen_toks": "gen_length={}",
    "until": "stop={}",
    "peft": "model.adapter={}",
}

# Words for which there is no such setting, and why, or what does it instead.
PENALTY = "tokens are never penalised here. Leave it out"
STREAM = (
    "{live=true} shows a decode in the terminal, decoder.stream(PROMPT) follows it in Python, and the server streams it"
)
INSTEAD = {
    # transformers
    "do_sample": "a temperature above 0 draws tokens, and 0 takes the likeliest",
    "num_beams": "beam search does not exist here. Leave it out",
    "repetition_penalty": PENALTY,
    "length_penalty": PENALTY,
    "no_repeat_ngram_size": PENALTY,
    "eos_token_id": "the end of text is the checkpoint's own. {stop=TEXT} adds another end",
    "pad_token_id": "the checkpoint says which token pads. Leave it out",
    "trust_remote_code": "no code of a checkpoint is ever run. Leave it out",
    "attn_implementation": "{kernels=triton} takes our kernels, {kernels=torch} PyTorch's",
    "tokenizer": "the tokenizer is the one in the model's folder. Leave it out",
    # vLLM
    "chat_template": "the template is the one in the model's folder, and {chat=false} leaves it out",
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "logit_bias": PENALTY,
    "min_p": "top_p and top_k bound what is drawn",
    "stream": STREAM,
    "max_model_len": "the model's own limit holds, and {gen_length=N} sets the tokens of an answer",
    "gpu_memory_utilization": "{task.max_rows:name} and {task.max_tokens_in_flight:name} bound a server's memory, "
    "{batch_size:name} a run's",
    "messages": 'a conversation is a line {"messages": [...]} of the file prompts=FILE',
    # lm-eval
    "model_args": "each of these is a setting of its own, such as {model.path=FOLDER} {model.dtype=bfloat16}",
    "gen_kwargs": "each of these is a setting of its own, such as {gen_length=256} {sampling.temperature=0}",
    "log_samples": "every sample is kept, in results.jsonl of the run's folder. Leave it out",
    "apply_chat_template": "it is applied where the model has one, and {chat=false} leaves it out",
}

# The same for a request to the server, where it is another. A sentence that names what no request has is SERVERS_OWN.
SERVERS_OWN = "it is the server's own, which a request cannot change. Leave it out"
INSTEAD_IN_REQUESTS = {
    "log_samples": SERVERS_OWN,
    "chat_template": "the template is the checkpoint's, and /v1/completions uses none",
    "apply_chat_template": "/v1/chat/completions applies it, and /v1/completions does not",
}

# Names elsewhere of a choice of ours, by its group.
OTHER_CHOICES: dict[str, dict[str, str]] = {
    "sampler": {
        "low_confidence": "sampler=static",
        "random": "sampler=static sampler.score=random",
        "fast_dllm": "sampler=confidence",
        "maskgit_plus": "sampler=dream sampler.alg=maskgit_plus",
        "topk_margin": "sampler=dream sampler.alg=topk_margin",
        "entropy": "sampler=dream sampler.alg=entropy",
    },
    "cache": {"fast_dllm": "cache=dual", "dual_cache": "cache=dual"},
    "model": {"llada": "model=llada-8b-instruct", "dream": "model=dream-7b-instruct"},
}
