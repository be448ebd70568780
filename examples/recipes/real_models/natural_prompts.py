"""Natural prompts to train a drafter for SmolLM2 on: everyday subjects in many wordings, as JSONL.

.venv/bin/python examples/recipes/real_models/natural_prompts.py 600 > runs/smollm2-prompts.jsonl
"""

import argparse
import json
import random
from itertools import product

SUBJECTS = """
a kettle; a bicycle; a lighthouse; rain; the moon; bees; sourdough bread; chess; a library; tides
a train journey; a garden in spring; black holes; volcanoes; the human heart; a rainbow; gravity
the internet; a passport; solar panels; whales; recycling; a good breakfast; learning the piano
a first job; a public park; honey; earthquakes; electric cars; a night at the theatre; bridges
sleep; a marathon; tea; the printing press; an old map; coral reefs; penguins; patience; budgeting
saving water; a job interview; a lost key; deserts; photosynthesis; the Roman roads; cheese; snow
a small bakery; friendship; a flat tyre; compost; a lazy cat; stars; wind; a museum; swimming
""".replace("\n", ";")
WORDINGS = (
    "Explain {} to a child.",
    "Write a short story about {}.",
    "List five facts about {}.",
    "What should everyone know about {}?",
    "Write a polite email to a friend about {}.",
    "Give me three questions and answers about {}.",
    "Write four lines of verse about {}.",
    "Describe {} in two paragraphs.",
    "What are the advantages and disadvantages of {}?",
    "How would you introduce {} in a talk? Write the first minute.",
    "Summarise in three sentences why {} matters.",
    "Write a dialogue between a teacher and a pupil about {}.",
    "Make a checklist for somebody who wants to learn about {}.",
    "Write a small Python dictionary with five words about {} and their meanings.",
)


def main() -> None:
    """Print `count` different prompts in an order drawn from the seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    subjects = [part.strip() for part in SUBJECTS.split(";") if part.strip()]
    pairs = list(product(WORDINGS, subjects))
    random.Random(asked.seed).shuffle(pairs)
    for wording, subject in pairs[: asked.count]:
        print(json.dumps(wording.format(subject)))


if __name__ == "__main__":
    main()
