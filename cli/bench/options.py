"""The flags of `dflash bench` beside those of a model and of an answer."""

from dataclasses import dataclass
from pathlib import Path

from ..options import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    prompts: Path | None = flag(
        None,
        "--prompts FILE",
        "Use these prompts: JSONL with a string, prompt, messages or turns per line.",
        "Measurement",
        variable=False,
    )
    modes: str | None = flag(
        None,
        "--modes A,B",
        "Modes to measure, also with a block size: dflash:8. [all]",
        "Measurement",
    )
    drafts: str | None = flag(
        None,
        "--drafts A,B",
        "Measure drafters instead of modes: all that fit, or dflash, dflash:ID, "
        "dspark:ID, eagle3:ID, eagle3-60:ID (trees), mtp, mtp:ID, assistant:ID, model:ID, "
        "lookup, none.",
        "Measurement",
    )
    temps: str = flag(
        "0,1", "--temps T,T", "Temperatures, with commas between them.", "Measurement"
    )
    limit: int = flag(8, "--limit -n N", "The first N prompts; 0: all.", "Measurement", min=0)
    max_tokens: int = flag(
        256, "--max-tokens N", "Maximum length of each answer in tokens.", "Measurement", min=1
    )
    repeats: int = flag(
        2, "--repeats N", "Answers to each prompt in each mode.", "Measurement", min=1
    )
    seed: int = flag(0, "--seed N", "Seed of the answers above temperature 0.", "Advanced", min=0)
    cooldown: float = flag(
        0.0, "--cooldown S", "Seconds of rest before each answer.", "Advanced", min=0
    )
    json: bool = flag(False, "--json", "Print one JSON object.", "Output")
    results_path: Path | None = flag(
        None,
        "--out -o FILE",
        "Write results to this file (JSONL); a run that stopped continues from it.",
        "Output",
        variable=False,
    )
    check: bool = flag(
        False, "--check", "Exit with 3 if a greedy answer differs from plain decoding's.", "Output"
    )
