"""Reasoning parsers split an answer into thinking and text; the detokenizer of an answer uses them.

Two formats are supported: thinking between two tags at the start of the answer (<think>), and an
answer of several messages, each with a header that names its channel or recipient (gpt-oss harmony,
Muse). The special tokens of the vocabulary tell which format a model uses.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .detokenizer import Detokenizer

THINKING_HEADER = re.compile(r"<\|channel\|>analysis|\bto=self\b")
TOOL_HEADER = re.compile(r"\bto=(?!(?:self|user|assistant|commentary|all)\b)")
LONGEST_HEADER = 256  # characters; a longer header is text


# Finds a call in thinking: the index and the length; 0 without one, -1 if more text decides that.
FindCall = Callable[[str, str, bool], tuple[int, int]]


def no_call(text: str, end: str, final: bool) -> tuple[int, int]:
    return len(text), 0


class TagReasoningParser:
    """Thinking between a start and an end tag, at the start of an answer only.

    Text that may be the start of a tag is held back. inside: whether the prompt ends inside of
    thinking; a model may repeat the tag that the prompt ends with. Without a start tag everything
    is text. removed: other tags around the text. find_call: finds the calls that end thinking.
    """

    def __init__(
        self,
        start: str | None,
        end: str | None,
        *,
        inside: bool = False,
        removed: Sequence[str] = (),
        find_call: FindCall = no_call,
    ):
        self._start = start
        self._end = end or ""
        self._inside = inside
        self._removed = tuple(removed)
        self._may_start = True
        self._find_call = find_call
        self._after_call = False  # whether a call has just ended the thinking
        self._held = ""

    def feed(self, token: int, text: str) -> tuple[str, str]:
        """The new (thinking, text)."""
        return self._release(text, final=False)

    def finish(self, text: str) -> tuple[str, str]:
        return self._release(text, final=True)

    def _release(self, text: str, *, final: bool) -> tuple[str, str]:
        self._held += text
        if self._start and self._may_start:
            beginning = self._held.lstrip()
            may_be_tag = self._start.startswith(beginning) or self._end.startswith(beginning)
            if may_be_tag and not final:
                return "", ""
            self._may_start = False
            if beginning.startswith(self._start):
                self._inside = True
                self._held = beginning.removeprefix(self._start)
            elif not self._inside and beginning.startswith(self._end):
                self._held = beginning.removeprefix(self._end)
            elif may_be_tag and len(beginning) > 1:
                self._held = ""  # the answer was cut inside of the tag
        thinking = self._take_thinking(final) if self._inside else ""
        calls = self._take_calls(final) if self._after_call else ""
        if self._inside or self._after_call:
            return thinking, calls
        text = self._held
        for tag in self._removed:
            text = text.replace(tag, "")
        kept = partial_match(text, self._removed)
        self._held = "" if final else text[len(text) - kept :]
        if final and kept == 1:  # a character, not a tag that was cut
            kept = 0
        return thinking, calls + text[: len(text) - kept]

    def _take_thinking(self, final: bool) -> str:
        """The thinking that the held text begins with. It may end with its tag or with a call."""
        index, length = self._find_call(self._held, self._end, final)
        end = self._held.find(self._end)
        rest = index
        if 0 <= end <= index:
            index, rest = end, end + len(self._end)
            self._inside = False
        elif length > 0:
            self._inside = False
            self._after_call = True
        elif not final:
            held = partial_match(self._held, (self._end,))
            rest = index = min(index, len(self._held) - held)
        thinking = self._held[:index]
        self._held = self._held[rest:]
        return thinking

    def _take_calls(self, final: bool) -> str:
        """The calls that the held text begins with, without an end of thinking after them."""
        calls = ""
        while self._after_call:
            rest = self._held.lstrip()
            index, length = self._find_call(rest, self._end, final)
            if not index and length > 0:
                calls += rest[:length]
                self._held = rest[length:]
            elif (not index and length) or (not final and self._end.startswith(rest)):
                break
            else:
                self._after_call = False
                if rest.startswith(self._end):
                    self._held = rest.removeprefix(self._end)
        return calls


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """Special tokens of an answer of several messages, each header<message>body<end>.

    One of `ends` ends a message, one of `stops` the message and the answer. required: more tokens
    that the vocabulary must have.
    """

    start: str
    message: str
    ends: tuple[str, ...]
    stops: tuple[str, ...]
    required: tuple[str, ...] = ()

    def ids(self, tokenizer: TokenizerWrapper) -> dict[int, str] | None:
        """The special tokens by id; None if the vocabulary lacks one (`stops` are optional)."""
        ids: dict[int, str] = {}
        for name in (self.start, self.message, *self.ends, *self.required, *self.stops):
            token = tokenizer.convert_tokens_to_ids(name)
            if isinstance(token, int) and tokenizer.convert_ids_to_tokens(token) == name:
                ids[token] = name
            elif name not in self.stops:
                return None
        return ids


MUSE = MessageFormat("<|start|>", "<|message|>", ("<|eom|>",), ("<|eot|>",))  # recipients
HARMONY = MessageFormat(  # gpt-oss: channels
    "<|start|>", "<|message|>", ("<|end|>",), ("<|return|>", "<|call|>"), ("<|channel|>",)
)
MESSAGE_FORMATS = (MUSE, HARMONY)


RECIPIENT = re.compile(r"\s*to=")


class MessageReasoningParser:
    """Splits an answer of several messages by the channel or recipient in their headers.

    Special tokens are recognised by id, so that text that looks like one stays text. A message to a
    tool is text, with its header. An answer without special tokens is text, too.
    """

    def __init__(self, message_format: MessageFormat, names: dict[int, str]):
        self._format = message_format
        self._names = names  # of the special tokens, by id
        self._header: str | None = ""  # None in a body
        self._prompt_length = 0  # characters of the header that belong to the prompt
        self._thinking = False
        self._plain = True  # no special token so far
        self._has_output = [False, False]  # text, thinking

    def start_after(self, prompt: Sequence[int], tokenizer: TokenizerWrapper) -> None:
        detokenizer = Detokenizer(tokenizer)
        for token in prompt:
            self.feed(token, detokenizer.add(token))
        self._add_text(detokenizer.finish())
        self._prompt_length = len(self._header or "")
        self._plain = True
        self._has_output = [False, False]

    def feed(self, token: int, text: str) -> tuple[str, str]:
        name = self._names.get(token)
        if name is None:
            return self._add_text(text)
        self._plain = False
        if name not in (self._format.start, self._format.message, *self._format.ends):
            return self._add_text(text)
        thinking, text = self._add_text(text.removesuffix(name))
        if name != self._format.message:
            self._header = ""
            self._prompt_length = 0
        elif self._header is not None:
            opening = self._start_body(self._header)
            thinking += opening[0]
            text += opening[1]
        return thinking, text

    def finish(self, text: str) -> tuple[str, str]:
        """Add the last text; an incomplete header is dropped."""
        output = self._add_text(text)
        if self._header is None or not self._plain:
            return output
        header = self._header[self._prompt_length :]
        if RECIPIENT.match(header):
            return output
        self._header = None
        return self._add_to_body(header)

    def _start_body(self, header: str) -> tuple[str, str]:
        """Start a body; returns the (thinking, text) before it."""
        self._header = None
        is_call = TOOL_HEADER.search(header)
        self._thinking = not is_call and bool(THINKING_HEADER.search(header))
        opening = "\n\n" if self._has_output[self._thinking] else ""
        if is_call:
            new_header = header[self._prompt_length :]
            opening += new_header.removeprefix("assistant").lstrip() + self._format.message
        return self._add_to_body(opening)

    def _add_text(self, text: str) -> tuple[str, str]:
        if self._header is None:
            return self._add_to_body(text)
        self._header += text
        if len(self._header) - self._prompt_length <= LONGEST_HEADER:
            return "", ""
        header = self._header[self._prompt_length :]
        self._header = None
        self._thinking = False
        return self._add_to_body(header)

    def _add_to_body(self, text: str) -> tuple[str, str]:
        self._has_output[self._thinking] |= bool(text)
        return (text, "") if self._thinking else ("", text)


ReasoningParser = TagReasoningParser | MessageReasoningParser


def make_reasoning_parser(
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    find_call: FindCall = no_call,
) -> ReasoningParser:
    """The parser of an answer that follows `prompt`; the last tokens of the prompt are enough."""
    for message_format in MESSAGE_FORMATS:
        names = message_format.ids(tokenizer)
        if names is None:
            continue
        start = next(token for token, name in names.items() if name == message_format.start)
        if start in prompt:
            parser = MessageReasoningParser(message_format, names)
            parser.start_after(from_last(prompt, start), tokenizer)
            return parser
    if not tokenizer.has_thinking:
        return TagReasoningParser(None, None)
    inside = tokenizer.rfind_think_start(prompt) > tokenizer.rfind_think_end(prompt)
    return TagReasoningParser(
        tokenizer.think_start,
        tokenizer.think_end,
        inside=inside,
        removed=tokenizer.structural_markers,
        find_call=find_call,
    )


def from_last(tokens: Sequence[int], token: int) -> Sequence[int]:
    """The tokens from the last place of one of them on."""
    return tokens[len(tokens) - 1 - list(reversed(tokens)).index(token) :]


def eos_ids_of(tokenizer: TokenizerWrapper) -> frozenset[int]:
    return frozenset(tokenizer.eos_token_ids) | end_of_turn_ids(tokenizer)


def end_of_turn_ids(tokenizer: TokenizerWrapper) -> frozenset[int]:
    """The ids of the tokens that end an answer of several messages; empty for other formats."""
    for message_format in MESSAGE_FORMATS:
        if names := message_format.ids(tokenizer):
            return frozenset(token for token, name in names.items() if name in message_format.stops)
    return frozenset()


def partial_match(text: str, markers: Sequence[str]) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    end = text[-longest:]
    markers = [marker for marker in markers if marker[:1] in end]
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


# Detokenization of an answer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of an answer. thinking: comes before `text`. stop: the stop string that ended it."""

    text: str = ""
    thinking: str = ""
    stop: str = ""


class IncrementalDetokenizer:
    """Converts the tokens of one answer to text, and finds stop strings.

    prompt: the tokens before the answer, the last of them are enough. split_thinking: if False,
    thinking is text with its tags. Tool calls are text. before: see `Detokenizer`. find_call: see
    `TagReasoningParser`.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        prompt: Sequence[int],
        stop_strings: Sequence[str] = (),
        *,
        split_thinking: bool = True,
        before: Sequence[int] = (),
        find_call: FindCall = no_call,
    ):
        self._detokenizer = Detokenizer(tokenizer, before)
        self._reasoning_parser: ReasoningParser = TagReasoningParser(None, None)
        if split_thinking:
            self._reasoning_parser = make_reasoning_parser(tokenizer, prompt, find_call)
        if isinstance(stop_strings, str):
            stop_strings = (stop_strings,)
        self._stop_strings = tuple(stop for stop in stop_strings if stop)
        self._held = ""  # text that may be the start of a stop string

    def add_tokens(self, tokens: Sequence[int]) -> TextDelta:
        """Add tokens of the answer, without the stop token; returns the new text."""
        thinking = ""
        for token in tokens:
            new_thinking, text = self._reasoning_parser.feed(token, self._detokenizer.add(token))
            thinking += new_thinking
            self._held += text
        return self._release(thinking, final=False)

    def finish(self) -> TextDelta:
        thinking, text = self._reasoning_parser.finish(self._detokenizer.finish())
        self._held += text
        return self._release(thinking, final=True)

    def _release(self, thinking: str, *, final: bool) -> TextDelta:
        found = [(self._held.find(text), text) for text in self._stop_strings if text in self._held]
        if found:
            index, stop = min(found)
            text = self._held[:index]
            self._held = ""
            return TextDelta(text, thinking, stop)
        cut = len(self._held) - (0 if final else partial_match(self._held, self._stop_strings))
        text = self._held[:cut]
        self._held = self._held[cut:]
        return TextDelta(text, thinking)
