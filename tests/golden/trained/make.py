"""What Z Lab's own code makes of drafters that `dflash train` wrote; needs torch, and no test does.

    python tests/golden/trained/make.py prompts > prompts.jsonl
    for kind in dflash dflash2; do
        dflash train prompts.jsonl -m tests/golden/qwen3_full/target --out runs/$kind \
            --layers 1 --block-size 8 --taps 1,3,5 --intermediate 64 --steps 120 --anchors 16 \
            --max-tokens 40 --lr 4e-3 $([ $kind = dflash2 ] && echo --dflash2 --selector-rank 16)
        mkdir tests/golden/trained/$kind
        cp runs/$kind/config.json runs/$kind/model.safetensors tests/golden/trained/$kind/
    done
    pip install torch==2.13.0 transformers==5.15.0 && pip install --no-deps dflash==0.1.0
    python tests/golden/trained/make.py

Their `from_pretrained` loads the folders, and must miss and mind no tensor; their loop answers, in
float32 on the CPU.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "qwen3_full" / "target"
NEW, KEPT = 48, 2  # tokens of an answer; answers, and blocks of each, whose logits are kept
WORDS = 60  # prompts to train on


def prompts() -> list[str]:
    """The prompts to train on: words of random letters."""
    dice = random.Random(1)
    letters = [[chr(dice.randrange(97, 123)) for _ in range(3 + n % 9)] for n in range(WORDS)]
    return ["".join(each) for each in letters]


def answers() -> None:
    """Write expected.json: what their code says with each drafter."""
    import torch
    from dflash import model as theirs
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs._cuda_time = time.perf_counter  # the counts come with times, which are a GPU's
    target = AutoModelForCausalLM.from_pretrained(TARGET).float().eval()
    tokenizer, asked = AutoTokenizer.from_pretrained(TARGET), []
    for word in prompts()[:4]:
        chat = [{"role": "user", "content": word}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        asked.append(tokenizer(text, add_special_tokens=False).input_ids)
    expected = {"new": NEW, "prompts": asked}
    kinds = {"dflash": theirs.DFlashDraftModel, "dflash2": theirs.DFlash2DraftModel}
    for kind, architecture in kinds.items():
        drafter, said = architecture.from_pretrained(HERE / kind, output_loading_info=True)
        assert not any(said.values()), said
        drafter, found = drafter.float().eval(), []
        honest = drafter.compute_logits

        def recorded(hidden, head, honest=honest, found=found):
            logits = honest(hidden, head)
            if len(found) <= KEPT and len(found[-1]["logits"]) < KEPT:
                rows = [[round(x, 5) for x in row] for row in logits[0].tolist()]
                found[-1]["logits"].append(rows)
            return logits

        drafter.compute_logits = recorded
        for prompt in asked:
            found.append({"logits": []})
            ids = torch.tensor([prompt])
            stops = [target.config.eos_token_id]
            result = theirs.dflash_generate(drafter, target, ids, NEW, stops, return_stats=True)
            found[-1]["tokens"] = result.output_ids[0, len(prompt) :].tolist()
            found[-1]["committed"] = result.acceptance_lengths
            print(kind, result.acceptance_lengths)
        expected[kind] = found
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*map(json.dumps, prompts()), sep="\n")
    else:
        answers()
