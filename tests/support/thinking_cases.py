"""Answers with thinking of every family as tokens, and the text and thinking to expect."""

from collections.abc import Sequence

from dflash_mlx.chat.reasoning_parser import IncrementalDetokenizer, TextDelta

THOUGHT = "<|channel|>analysis<|message|>hm <|end|><|start|>assistant"
HARMONY = THOUGHT + "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
MUSE = " to=self<|message|>hm<|eom|><|start|>assistant"
# Family, end of the prompt, the answer's tokens as text, expected text, expected thinking.
CASES = [
    ("llama", "[a]", "<think>no</think>", "<think>no</think>", ""),
    ("qwen", "[a]\n", "<think>\nhm\n</think>\n\nyes", "\n\nyes", "\nhm\n"),
    ("qwen", "[a]\n<think>\n\n</think>\n\n", "yes", "yes", ""),
    ("glm", "[a]<think>", "hm</think>yes", "yes", "hm"),
    ("glm", "[a]</think>", "yes", "yes", ""),
    ("gemma", "[model]\n", "<|channel>thought\nhm\n<channel|>yes", "yes", "\nhm\n"),
    ("gemma", "[model]\n<|channel>thought\n<channel|>", "yes", "yes", ""),
    # Tags where none is needed, and answers that end inside of a tag or of thinking.
    ("glm", "[a]<think>", "<think>hm</think>yes", "yes", "hm"),
    ("glm", "[a]</think>", "</think>yes", "yes", ""),
    ("qwen", "[a]\n<think>\n\n</think>\n\n", "</think>\n\nyes", "\n\nyes", ""),
    ("qwen", "[a]\n", "<think>", "", ""),
    ("qwen", "[a]\n", "<think>hm", "", "hm"),
    ("qwen", "[a]\n", "<think>hm</think>", "", "hm"),
    ("minimax", "[a]<think>\n", "hm", "", "hm"),
    ("minimax", "[a]<think>\n", "</think>yes", "yes", ""),
    ("gemma", "[model]\n", "<|channel>", "", ""),
    ("gemma", "[model]\n", "<|channel>thou", "", ""),
    ("gemma", "[model]\n", "<|channel>thought\nhm", "", "\nhm"),
    ("qwen", "[a]\n", "<", "<", ""),
    ("qwen", "[a]\n", "a <", "a <", ""),
    ("gpt_oss", "<|start|>assistant", HARMONY + "yes", "yes", "hm "),
    ("gpt_oss", "<|start|>assistant", HARMONY + "naïve 漢字 ", "naïve 漢字 ", "hm "),
    ("gpt_oss", "<|start|>assistant", "<|channel|>final<|message|>yes", "yes", ""),
    ("gpt_oss", "<|start|>assistant<|channel|>final<|message|>", "yes", "yes", ""),
    ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>we", "ll<|end|>", "", "ll"),
    ("gpt_oss", "<|start|>assistant", HARMONY, "", "hm "),
    ("gpt_oss", "<|start|>assistant", HARMONY.removesuffix("<|message|>"), "", "hm "),
    ("gpt_oss", "<|start|>assistant", "<|channel|>analysis<|message|>hm", "", "hm"),
    ("gpt_oss", "<|start|>assistant", "<|channel|>anal", "", ""),
    ("gpt_oss", "<|start|>assistant", "no mark at all", "no mark at all", ""),
    ("gpt_oss", "raw text", "<|channel|>final", "<|channel|>final", ""),
    # The header has the name of the call, so it is kept as text.
    ("gpt_oss", "<|start|>assistant", CALL, CALL, ""),
    (
        "gpt_oss",
        "<|start|>assistant",
        THOUGHT + " to=functions.add<|channel|>commentary<|message|>{}",
        "to=functions.add<|channel|>commentary<|message|>{}",
        "hm ",
    ),
    # Several messages to the same recipient are paragraphs.
    (
        "gpt_oss",
        "<|start|>assistant",
        "<|channel|>commentary<|message|>wait<|end|><|start|>assistant" + HARMONY + "yes",
        "wait\n\nyes",
        "hm ",
    ),
    (
        "gpt_oss",
        "<|start|>assistant",
        THOUGHT * 2 + "<|channel|>final<|message|>yes",
        "yes",
        "hm \n\nhm ",
    ),
    ("muse", "<|start|>assistant", MUSE + " to=user<|message|>yes", "yes", "hm"),
    ("muse", "<|start|>assistant", " to=user<|message|>yes", "yes", ""),
    ("muse", "<|start|>assistant", " to=se", "", ""),
    ("muse", "<|start|>assistant", " to=self<|message|>hm<|eom|><|start|>assist", "", "hm"),
    ("muse", "<|start|>assistant", MUSE + " to=us", "", "hm"),
    (
        "muse",
        "<|start|>assistant",
        MUSE + " to=wx.now<|message|><atem:x>",
        "to=wx.now<|message|><atem:x>",
        "hm",
    ),
]


def pieces_of(
    detokenizer: IncrementalDetokenizer, tokens: Sequence[int], sizes: Sequence[int]
) -> list[TextDelta]:
    """The pieces of an answer in blocks of these sizes, in turn; a stop string ends it."""
    pieces: list[TextDelta] = []
    first = 0
    while first < len(tokens):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(detokenizer.add_tokens(tokens[first : first + size]))
        first += size
        if pieces[-1].stop:
            return pieces
    return [*pieces, detokenizer.finish()]
