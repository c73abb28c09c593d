"""Words that people bring from other programs, and what to write here: one table for command line, Python and server.

No synonym is accepted, since every setting has one spelling: whoever uses one is told what to write, with the value
given. An entry holds what to write on the command line; ``dllm.common.hints`` makes Python and requests of it.
"""

from __future__ import annotations

from collections.abc import Mapping

# What to write on the command line; {} stands for the value. Of several entries the first holds whose options the
# choices of this run have. By value: an entry for each, "" for all others.
Written = str | tuple[str, ...] | Mapping[str, str]
STEPS = ("sampler.steps={}", "sampler=static sampler.steps={}")
THRESHOLD = ("sampler.threshold={}", "sampler=confidence sampler.threshold={}")
BLOCK_LENGTH = ("blocks.block_length={}", "blocks=fixed blocks.block_length={}")
SHOTS = ("task.shots={}", "task=gsm8k task.shots={}")
LIMIT = ("task.limit={}", "task.count={}", "task=gsm8k task.limit={}")
SCORES: Written = {"low_confidence": "sampler=static sampler.score=low_confidence",
                 "random": "sampler=static sampler.score=random", "": "sampler=NAME"}  # fmt: skip

SETTINGS: dict[str, Written] = {
    # LLaDA's generate.py and chat.py
    "steps": STEPS, "cfg_scale": "sampling.guidance={}", "remasking": SCORES, "mask_token_id": "model.mask_id={}",
    "logits_eos_inf": "sampling.forbid_eos={}", "confidence_eos_eot_inf": "sampling.eos_last={}",
    # Fast-dLLM's generate.py and eval_llada.py, and the scripts of other samplers
    "use_cache": {"true": "cache=prefix", "false": "cache=none", "": "cache=NAME"},
    "dual_cache": {"true": "cache=dual", "false": "cache=prefix", "": "cache=NAME"},
    "kv_cache": {"true": "cache=prefix", "false": "cache=none", "": "cache=NAME"}, "cache_type": "cache=NAME",
    "block_size": BLOCK_LENGTH, "block_len": BLOCK_LENGTH, "bd_size": BLOCK_LENGTH,
    "gen_len": "gen_length={}", "generation_length": "gen_length={}", "answer_length": "gen_length={}",
    "conf_threshold": THRESHOLD, "confidence_threshold": THRESHOLD, "conf": THRESHOLD, "tau": THRESHOLD,
    "thr": THRESHOLD, "thresh": THRESHOLD, "cfg": "sampling.guidance={}",
    "step": STEPS, "num_steps": STEPS, "n_steps": STEPS, "nfe": STEPS, "sampling_steps": STEPS,
    "diffusion_steps": STEPS, "denoising_steps": STEPS, "timesteps": STEPS, "num_timesteps": STEPS,
    "remask": SCORES, "strategy": "sampler=NAME", "algorithm": "sampler=NAME", "method": "sampler=NAME",
    "decoding": "sampler=NAME", "order": "sampler=order sampler.positions={}",
    "schedule": "sampler=NAME or blocks=NAME", "dataset": "task={}",
    # Dream's diffusion_generate; alg, alg_temp and eps are options of sampler=dream
    "output_history": "trace=true", "return_history": "trace=true",
    # transformers: generate
    "max_new_tokens": "gen_length={}", "min_new_tokens": "sampling.min_tokens={}",
    "min_tokens": "sampling.min_tokens={}", "max_length": "gen_length={}", "num_return_sequences": "samples={}",
    "stop_strings": "stop={}", "temp": "sampling.temperature={}", "t": "sampling.temperature={}",
    "topp": "sampling.top_p={}", "topk": "sampling.top_k={}",
    # transformers: from_pretrained
    "pretrained_model_name_or_path": "model.path={}", "model_name_or_path": "model.path={}",
    "torch_dtype": "model.dtype={}", "dtype": "model.dtype={}", "device_map": "model.device={}",
    "load_in_8bit": "model.quantize=int8", "load_in_4bit": "model.quantize=int4",
    # OpenAI, and servers of its interface: vLLM, SGLang, llama.cpp, Ollama
    "max_tokens": "gen_length={}", "max_completion_tokens": "gen_length={}", "max_output_tokens": "gen_length={}",
    "n_predict": "gen_length={}", "num_predict": "gen_length={}", "n": "samples={}", "stop_sequences": "stop={}",
    "served_model_name": ("task.names=[{}]", "task=serve task.names=[{}]"),
    "max_num_seqs": ("task.max_rows={}", "batch_size={}"), "quantization": "model.quantize={}",
    "enforce_eager": "runtime=eager", "cuda_graph": "runtime=cudagraph", "ignore_eos": "sampling.forbid_eos={}",
    "guided_json": "constraint=json_schema constraint.schema={}", "json_schema": "constraint=json_schema "
    "constraint.schema={}", "guided_regex": "constraint=regex constraint.pattern={}",
    "guided_choice": "constraint=choice constraint.options={}",
    "guided_grammar": "constraint=grammar constraint.grammar={}", "json_mode": "constraint=json",
    # lm-evaluation-harness
    "tasks": "task={}", "num_fewshot": SHOTS, "limit": LIMIT, "pretrained": "model.path={}", "output_path": "output={}",
    "max_gen_toks": "gen_length={}", "until": "stop={}", "peft": "model.adapter={}",
    # diffusers
    "num_inference_steps": STEPS, "num_images_per_prompt": "samples={}", "scheduler": "sampler=NAME",
    # options of earlier states of this project
    "reference_first": ("cache.as_published={}", "cache=sliding cache.as_published={}"),
    "reference_branches": ("sampler.as_published={}", "sampler=freedave sampler.as_published={}"),
    "reference_finish": ("sampler.as_published={}", "sampler=lopa sampler.as_published={}"),
    "least": ("sampler.min_probability={}", "sampler=scout sampler.min_probability={}"),
    "max_cells": ("task.max_tokens_in_flight={}", "task=serve task.max_tokens_in_flight={}"),
    "max_opening": ("task.max_prefill_tokens={}", "task=serve task.max_prefill_tokens={}"),
    "reference_eos": ("cache.eos_as_published={}", "cache=window cache.eos_as_published={}"),
    # what scripts call it
    "num_samples": "samples={}", "bs": "batch_size={}", "batch": "batch_size={}", "random_seed": "seed={}",
    "model_path": "model.path={}", "model_id": "model.path={}", "model_dir": "model.path={}",
    "checkpoint": "model.path={}", "ckpt": "model.path={}", "ckpt_path": "model.path={}", "model_name": "model={}",
    "lora": "model.adapter={}", "lora_path": "model.adapter={}", "adapter_path": "model.adapter={}",
    "precision": "model.dtype={}", "bf16": "model.dtype=bfloat16", "fp16": "model.dtype=float16",
    "gpu": {"true": "model.device=cuda", "false": "model.device=cpu", "": "model.device=cuda:{}"},
    "cuda": {"true": "model.device=cuda", "false": "model.device=cpu", "": "model.device=cuda:{}"},
    "quant": "model.quantize={}", "num_examples": LIMIT, "max_samples": LIMIT, "shot": SHOTS, "n_shot": SHOTS,
    "fewshot": SHOTS, "input": "prompt={}", "text": "prompt={}", "question": "prompt={}", "query": "prompt={}",
    "message": "prompt={}", "instruction": "prompt={}", "input_file": "prompts={}", "prompt_file": "prompts={}",
    "output_dir": "output={}", "out_dir": "output={}", "save_dir": "output={}", "log_dir": "output={}",
    "run_name": "name={}", "exp_name": "name={}", "interactive": "chat=true", "torch_compile": "runtime=compile",
    "regex": "constraint=regex constraint.pattern={}",
}  # fmt: skip

# Words for which there is no such setting, and why, or what does it instead.
PENALTY = "nothing here penalises a token. Leave it out"
SPREAD = (
    "model.device=auto makes a model fit that one GPU does not hold, and no decode faster. For more samples a second, "
    "run a copy on each GPU, by engine=accelerate or engine=ray"
)
STREAM = (
    "live=true shows a decode in the terminal, decoder.stream(PROMPT) follows it in Python, and the server streams it"
)
TURNS = "trace=true keeps every turn, and live=true shows them"
OWN_LIMIT = "the model's own limit holds, and gen_length=N sets the tokens of an answer"
INSTEAD = {
    # transformers
    "do_sample": "a temperature above 0 draws tokens, and 0 takes the likeliest",
    "num_beams": "there is no beam search. Leave it out", "repetition_penalty": PENALTY,
    "length_penalty": PENALTY, "no_repeat_ngram_size": PENALTY,
    "eos_token_id": "the end of text is the checkpoint's own. stop=TEXT adds another end",
    "pad_token_id": "the checkpoint says which token pads. Leave it out",
    "trust_remote_code": "no code of a checkpoint is ever run. Leave it out",
    "attn_implementation": "kernels=triton takes our kernels, kernels=torch PyTorch's",
    "tokenizer": "the tokenizer is the one in the model's folder. Leave it out",
    "chat_template": "the template is the one in the model's folder, and chat=false leaves it out",
    # OpenAI, vLLM, SGLang, llama.cpp
    "presence_penalty": PENALTY, "frequency_penalty": PENALTY, "logit_bias": PENALTY,
    "min_p": "top_p and top_k are what there is", "streaming": STREAM, "stream": STREAM,
    "max_model_len": OWN_LIMIT, "num_ctx": OWN_LIMIT, "ctx_size": OWN_LIMIT,
    "tensor_parallel_size": SPREAD, "tp": SPREAD, "num_gpus": SPREAD,
    "gpu_memory_utilization": "task.max_rows and task.max_tokens_in_flight bound a server's memory, batch_size a run's",
    "messages": 'a conversation is a line {"messages": [...]} of the file prompts=FILE',
    "system_prompt": 'it is the message of role system in a line {"messages": [...]} of the file prompts=FILE',
    "log": "task.log=json writes a server's log as JSON, and trace=true keeps every turn",
    # lm-evaluation-harness
    "model_args": "each of these is a setting of its own, such as model.path=FOLDER model.dtype=bfloat16",
    "gen_kwargs": "each of these is a setting of its own, such as gen_length=256 sampling.temperature=0",
    "log_samples": "every sample is kept, in results.jsonl of the run's folder. Leave it out",
    "apply_chat_template": "it is applied where the model has one, and chat=false leaves it out",
    # diffusers: its scale is 1 where LLaDA's is 0
    "guidance_scale":
    "sampling.guidance is LLaDA's cfg_scale, which is 1 less: write sampling.guidance=VALUE with that",
    # what scripts call it
    "verbose": TURNS, "debug": TURNS, "num_blocks": "blocks.block_length=N sets the tokens of a block",
}  # fmt: skip

# The same for a request to the server, which has other ways out than the command line.
SERVERS_OWN = "it is the server's own, which a request cannot change. Leave it out"
_LIMIT = "the model's own limit holds, and max_tokens=N sets the tokens of an answer"
_TURNS = 'write "diffusion": {"trace": true}'
_SYSTEM = 'it is a message: {"role": "system", "content": TEXT}'
INSTEAD_IN_REQUESTS = {
    "max_model_len": _LIMIT, "num_ctx": _LIMIT, "ctx_size": _LIMIT, "verbose": _TURNS, "debug": _TURNS, "log": _TURNS,
    "attn_implementation": SERVERS_OWN, "tensor_parallel_size": SERVERS_OWN, "tp": SERVERS_OWN, "num_gpus": SERVERS_OWN,
    "gpu_memory_utilization": SERVERS_OWN, "model_args": SERVERS_OWN, "log_samples": SERVERS_OWN,
    "chat_template": "the template is the checkpoint's, and /v1/completions uses none",
    "apply_chat_template": "/v1/chat/completions applies it, and /v1/completions does not",
    "system_prompt": _SYSTEM, "gen_kwargs": "each of these is a field of its own, such as max_tokens and temperature",
    "streaming": 'write "stream": true', "num_blocks": "diffusion.block_length=N sets the tokens of a block",
    "guidance_scale": "diffusion.guidance is LLaDA's cfg_scale, which is 1 less: write that",
}  # fmt: skip

# Words in place of a choice of ours, by its group.
# Names of choices, of other programs and of earlier states of this one.
OTHER_CHOICES: dict[str, dict[str, str]] = {
    "sampler": {
        "low_confidence": "sampler=static", "llada": "sampler=static", "random": "sampler=static sampler.score=random",
        "threshold": "sampler=confidence", "parallel": "sampler=confidence", "fast_dllm": "sampler=confidence",
        "maskgit_plus": "sampler=dream sampler.alg=maskgit_plus",
        "topk_margin": "sampler=dream sampler.alg=topk_margin", "entropy": "sampler=dream sampler.alg=entropy",
    },
    "blocks": {"list": "blocks=lengths"},
    "cache": {"kv": "cache=prefix", "fast_dllm": "cache=dual", "dual_cache": "cache=dual", "flash": "cache=flash_dllm"},
    "eos": {"keep": "eos=none", "cut_open": "eos=stop_at_eos", "cut_last": "eos=stop_at_last_eos",
            "cut_canvas": "eos=truncate_at_eos"},
    "constraint": {"item": "constraint=from_task"},
    "task": {"chat": "chat=true", "generate": "task=prompt", "eval": "task=parallelbench"},
    "model": {"llada": "model=llada-8b-instruct", "dream": "model=dream-7b-instruct", "mini": "model=mini-llada"},
}  # fmt: skip

# Words in place of a command: vLLM's, Ollama's, llama.cpp's.
OTHER_COMMANDS = {
    "chat": "a conversation is chat=true, with model=NAME for the model",
    "run": "decoding is what happens without a command: write model=NAME prompt=TEXT",
    "generate": "decoding is what happens without a command: write prompt=TEXT",
    "serve": "write task=serve",
    "playground": "write task=serve",
    "eval": "write task=NAME of a benchmark",
    "evaluate": "write task=NAME of a benchmark",
    "bench": "write task=NAME of a benchmark",
    "help": "write --help",
    "version": "write --version",
    "list": "--help lists what there is",
    "models": "--help lists the models",
    "resume": "write resume=FOLDER",
    "sweep": "write -m and several values",
}
