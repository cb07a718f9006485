"""Runs in vLLM's own environment: generates what it is asked for on its standard input, one JSON object a line.

    python vllm_main.py MODEL_FOLDER CONTEXT SEQUENCES

It answers one line when it is ready, with its versions; and one for each request, with the ids and the processor
seconds used so far. A request has ``prompts``, ``n`` replies to each, of ``reply`` tokens each, and says whether
``logprobs`` are wanted. With ``fresh`` nothing is left in the prefix cache of what came before.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

# by name, since it has no types that our other code could be checked against; first, since it may be missing
vllm: Any = importlib.import_module("vllm")
torch: Any = importlib.import_module("torch")


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is none of the answers
    folder, context, sequences = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = vllm.LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=context,
        max_num_seqs=sequences,
        enable_prefix_caching=True,
        generation_config="vllm",
        seed=0,
        enforce_eager=os.environ.get("AGENTRL_BENCH_VLLM_EAGER") == "1",
    )
    _say(answers, {"vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()})
    for line in sys.stdin:
        _say(answers, _generate(engine, json.loads(line)))


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _generate(engine: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    if wanted["fresh"]:
        engine.reset_prefix_cache()
    sampling = vllm.SamplingParams(
        n=wanted["n"],
        temperature=1.0,
        max_tokens=wanted["reply"],
        min_tokens=wanted["reply"],
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if wanted["logprobs"] else None,
    )
    prompts = [{"prompt_token_ids": ids} for ids in wanted["prompts"]]
    found = engine.generate(prompts, sampling, use_tqdm=False)
    replies = [list(one.token_ids) for request in found for one in request.outputs]
    return {"used": time.process_time(), "replies": replies}


if __name__ == "__main__":
    main()
