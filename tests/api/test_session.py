"""Conversations: nothing is read twice, and an answer does not depend on what came before it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from time import sleep
from typing import Any

import pytest
import tiny
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from scripted_pair import speaking

from dflash_mlx import api
from dflash_mlx.errors import PromptTooLong, UsageError
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import Pair
from dflash_mlx.session import Session
from dflash_mlx.types import Block

MODES: tuple[Mode, Mode] = ("dflash", "baseline")
every_mode = pytest.mark.parametrize("mode", MODES)
every_family = pytest.mark.parametrize("family", tiny.FAMILIES)
# One family for each kind of cache.
every_kind = pytest.mark.parametrize("family", ["qwen3", "llama_sliding", "qwen3_5", "glm_moe_dsa"])
# History is written without its thinking, the next answer opens with some.
REWRITES = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[a]<think>{% endif %}"
)
QUESTIONS = "river stone, lantern, paper boat, amber, north, harbor wind, meter, light, engine, tea"


@pytest.fixture(scope="module")
def golden() -> Pair:
    return tiny.golden_pair("qwen3_full")


def tiny_pair(family: str, **changes: Any) -> Pair:
    target = tiny.make_target(family, **changes)
    return tiny.make_pair(target, tiny.random_drafter(target), family, "random")


def chat(
    session: Session, turns: Sequence[str], **options: Any
) -> Iterator[tuple[list[Block], Any]]:
    """A chat as the terminal keeps it: answers go back as messages."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        blocks = list(session.stream(messages, **options))
        messages.append({"role": "assistant", "content": "".join(b.text for b in blocks)})
        yield blocks, session.stats


def test_the_first_token_has_every_wait(golden: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that for the costs of passes, which the mode auto measures before the prompt."""
    begin = golden.engine.begin

    def slow(*given: Any) -> Any:
        sleep(0.3)
        return begin(*given)

    monkeypatch.setattr(golden.engine, "begin", slow)
    session = Session(golden)
    list(session.stream("hello", max_tokens=2))
    assert session.stats.first_token_seconds >= 0.3


@every_mode
def test_ten_turns_read_nothing_twice(
    golden: Pair, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every turn starts from what the last one read; counts of both models' tokens prove it."""
    sizes = tiny.count_forwards(golden.target, monkeypatch)
    session = Session(golden, mode=mode)
    read = 0
    for number, (blocks, stats) in enumerate(chat(session, QUESTIONS.split(", "), max_tokens=24)):
        answer = tiny.joined(blocks)
        assert stats.cached_tokens == read
        assert stats.prompt_tokens > read
        new = stats.prompt_tokens - stats.cached_tokens
        verified = sum(sizes) - new
        if mode == "dflash":
            assert verified == sum(b.drafted + 1 for b in blocks[1:])
            assert session.sequence.draft_cache is not None
            assert session.sequence.draft_cache.offset == session.sequence.target_cache.offset
        else:
            ahead = blocks[-1].finish_reason == "stop"  # begun before the end was known
            assert verified == len(answer) - 1 + ahead
        sizes.clear()
        assert number == 0 or stats.cached_tokens > 0
        read = len(session.sequence.tokens)
        assert read == stats.prompt_tokens + len(answer) - 1
        assert session.sequence.target_cache.offset == read


@pytest.mark.quick_every(2)
@every_mode
@every_family
def test_turns_are_those_of_a_fresh_session(mode: Mode, family: str) -> None:
    pair = tiny_pair(family)
    session = Session(pair, mode=mode)
    ids = tiny.prompt_of(9)
    for turn in range(5):
        answer = tiny.joined(list(session.stream(ids, max_tokens=11)))
        assert answer == tiny.plain(pair.target, ids, 11, pair.target.eos_ids)
        assert turn == 0 or session.stats.cached_tokens >= len(ids) - 5
        ids = [*ids, *answer, *tiny.prompt_of(4, turn + 1)]


def thinking_pair(family: str) -> Pair:
    """A random pair whose template writes past answers without their thinking."""
    wrapper = tiny.byte_tokenizer()
    wrapper._tokenizer.chat_template = REWRITES
    tokenizer = TokenizerWrapper(wrapper._tokenizer, BPEStreamingDetokenizer)  # type: ignore[arg-type]
    target = tiny.make_target(family, vocab_size=272)
    target = tiny.with_ends(target, tokenizer)
    drafter = tiny.random_drafter(target)
    return tiny.make_pair(target, drafter, family, "random", tokenizer)


@pytest.mark.quick_every(2)
@every_mode
@every_family
def test_templates_that_rewrite_history(mode: Mode, family: str) -> None:
    """Each turn keeps all that is the same; undo, edit and retry too; answers are a fresh one's."""
    pair = thinking_pair(family)
    target, session = pair.target, Session(pair, mode=mode)
    messages: list[dict[str, Any]] = []
    closed = 0

    def ask(question: str, least: int) -> None:
        messages.append({"role": "user", "content": question})
        answer = tiny.joined(list(session.stream(messages, max_tokens=9)))
        stats = session.stats
        assert least <= stats.cached_tokens < stats.prompt_tokens
        ids = pair.chat_tokens(messages)
        assert answer == tiny.plain(target, ids, 9, target.eos_ids, margin=0)
        text = pair.tokenizer.decode(answer[:9]) + "</think>said"
        messages.append({"role": "assistant", "content": text})

    for number in range(3):
        ask(f"more than a window {number}", closed)
        closed = len(pair.encode(pair.template.write(messages[:-1], add_generation_prompt=False)))
    del messages[-2:]
    ask(
        "another one",
        len(pair.encode(pair.template.write(messages[:-1], add_generation_prompt=False))),
    )
    del messages[-1]
    question = messages.pop()["content"]
    ask(question, len(pair.encode(pair.template.write([*messages], add_generation_prompt=False))))
    del messages[-4:]
    ask(
        "far back",
        len(pair.encode(pair.template.write(messages[:-1], add_generation_prompt=False))),
    )


@every_mode
def test_retry_and_undo_with_plain_history(mode: Mode) -> None:
    """Where history stays, a hybrid goes back to the ends of prompts and of answers."""
    pair = tiny_pair("qwen3_5")
    session = Session(pair, mode=mode)
    prompts, answers, ids = [], [], tiny.prompt_of(20)
    for turn in range(3):
        prompts.append(ids)
        answers.append(tiny.joined(list(session.stream(ids, max_tokens=11))))
        ids = [*ids, *answers[-1], *tiny.prompt_of(20, turn + 1)]
    for turn in (2, 2, 1):  # the same prompt again; then one that was answered before it
        answer = tiny.joined(list(session.stream(prompts[turn], max_tokens=11)))
        assert answer == answers[turn]
        assert session.stats.cached_tokens == len(prompts[turn]) - 1
        assert session.stats.lost_tokens == 0
    edited = [*prompts[0], *answers[0], 7, 8, 9]
    list(session.stream(edited, max_tokens=11))
    assert session.stats.cached_tokens == len(prompts[0]) + 10
    assert session.sequence.target_cache.snapshot_bytes > 0
    list(session.stream(prompts[0][:5], max_tokens=11))
    assert (session.stats.cached_tokens, session.stats.lost_tokens) == (0, 4)


@every_mode
def test_penalties_see_the_whole_conversation(mode: Mode) -> None:
    """Penalties look at tokens that an earlier turn has read, as they would in a fresh session."""
    pair = tiny_pair("llama")
    sampling = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0)
    ids = tiny.prompt_of(12)
    session = Session(pair, mode=mode)
    for turn in range(4):
        options: Any = {"sampling": sampling, "max_tokens": 9}
        answer = tiny.joined(list(session.stream(ids, **options)))
        assert answer == api.generate(pair, ids, mode="dflash", **options).tokens
        assert answer == api.generate(pair, ids, mode="baseline", **options).tokens
        assert turn == 0 or session.stats.cached_tokens > 0
        ids = [*ids, *answer, turn]


@every_mode
@every_kind
def test_interrupted_answers(mode: Mode, family: str) -> None:
    """An answer closed after any number of blocks leaves no trace in the next one."""
    pair = tiny_pair(family)
    first, second = tiny.prompt_of(30), tiny.prompt_of(6, 3)
    wanted = [tiny.plain(pair.target, p, 8) for p in (first, [*first, *second], second)]
    for stop_after in range(7):
        for number, following in enumerate((first, [*first, *second], second)):
            session = Session(pair, mode=mode)
            stream = session.stream(first, max_tokens=20)
            for _ in range(stop_after):
                next(stream)
            stream.close()  # type: ignore[attr-defined]
            assert session.sequence.target_cache.offset == len(session.sequence.tokens)
            assert tiny.joined(list(session.stream(following, max_tokens=8))) == wanted[number]


@every_mode
@every_kind
def test_interrupted_prefill(mode: Mode, family: str) -> None:
    """Progress may raise to stop; what was read stays, and the next answer is right."""
    pair = tiny_pair(family)
    pair.engine.scheduler.prompt_chunks.sizes = {0: 29}
    prompt = tiny.prompt_of(30)
    wanted = tiny.plain(pair.target, prompt, 8)

    for at in range(3):
        calls = 0

        def progress(done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            if calls > at:  # noqa: B023
                raise KeyboardInterrupt

        session = Session(pair, mode=mode)
        with pytest.raises(KeyboardInterrupt):
            list(session.stream(prompt, max_tokens=8, on_prefill=progress))
        assert len(session.sequence.tokens) == (0, 29, 30)[at]
        assert tiny.joined(list(session.stream(prompt, max_tokens=8))) == wanted
        assert session.stats.cached_tokens in ((0,) if at == 0 else (0, 29))


@every_kind
def test_a_fault_in_a_verify(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception between verify and commit leaves the caches as they were before the verify."""
    pair = tiny_pair(family)
    prompt = tiny.prompt_of(30)
    session = Session(pair)
    stream = session.stream(prompt, max_tokens=20)
    said = [*next(stream).tokens, *next(stream).tokens]
    with monkeypatch.context() as patch:
        patch.setattr("dflash_mlx.engine.round.cut", fail)
        with pytest.raises(ArithmeticError):
            next(stream)
    assert session.sequence.tokens == [*prompt, *said[:-1]]
    assert session.sequence.target_cache.offset == len(session.sequence.tokens)
    following = [*prompt, *said, 5]
    answer = tiny.joined(list(session.stream(following, max_tokens=8)))
    assert answer == tiny.plain(pair.target, following, 8)
    assert session.stats.cached_tokens == len(prompt) + len(said) - 1


def fail(*args: Any) -> Any:
    raise ArithmeticError


def test_bad_arguments_change_nothing(golden: Pair) -> None:
    session = Session(golden)
    list(session.stream("light?", max_tokens=5))
    tokens, offset = list(session.sequence.tokens), session.sequence.target_cache.offset
    wrong: list[dict[str, Any]] = [
        {"max_tokens": 0},
        {"block_size": 1},
        {"block_size": 1000},
        {"accept": "always"},
    ]
    for options in wrong:
        with pytest.raises(UsageError) as caught:
            session.stream("another", **options)
        assert caught.value.message
        assert caught.value.hint
    for prompt in ("", "  \n", [], [104], [-1], [0] * 4096):
        with pytest.raises(UsageError) as caught:
            session.stream(prompt)
        assert caught.value.hint
    assert session.sequence.tokens == tokens
    assert session.sequence.target_cache.offset == offset


def test_a_whole_answer(golden: Pair) -> None:
    """`Session` had only `stream`."""
    with Session(golden) as session:
        result = session.generate("river", max_tokens=8)
        assert result.tokens == api.generate(golden, "river", max_tokens=8).tokens
        assert len(result.tokens) == 8
        assert result.stats is session.stats


def test_a_pair_is_shown_by_its_names(golden: Pair) -> None:
    """It had the addresses of all its parts."""
    assert " at 0x" not in repr(golden)
    assert repr(golden).startswith("Pair(target_name=")


def test_prompt_kinds(golden: Pair) -> None:
    """A string is one user message, raw text is itself, ids are themselves."""
    session = Session(golden)
    ids = session.tokens("tea?")
    assert golden.tokenizer.decode(ids) == (
        "<|im_start|>user\ntea?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert session.tokens([{"role": "user", "content": "tea?"}]) == ids
    assert session.tokens(ids) == ids
    assert session.tokens("tea?", raw=True) == golden.encode("tea?")
    answers = [
        api.generate(golden, prompt, max_tokens=9).tokens
        for prompt in ("tea?", [{"role": "user", "content": "tea?"}], ids)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert api.generate(golden, "tea?", raw=True, max_tokens=9).tokens != answers[0]


def test_text_of_an_answer(golden: Pair) -> None:
    """Streamed pieces join to the tokens' text without the stop token."""
    prompt = tiny.expected("qwen3_full")["prompts"][2]
    result = api.generate(golden, prompt, max_tokens=96)
    assert result.finish_reason == "stop"
    assert result.tokens[-1] == 98
    assert result.text == golden.tokenizer.decode(result.tokens[:-1])
    assert result.thinking == ""


@pytest.mark.parametrize("block_size", [2, 3, 5, 8])
def test_stop_strings_across_blocks(block_size: int) -> None:
    """A stop string ends the text before it wherever the blocks' borders fall."""
    tokenizer = tiny.byte_tokenizer()
    prompt = tokenizer.encode("hi")
    pair = speaking("one two STOP three", tokenizer, prompt)
    for stop, text in (
        (("STOP",), "one two "),
        (("STOP three!", "two"), "one "),
        (("three",), "one two STOP "),
        (("nowhere",), "one two STOP three"),
        (("",), "one two STOP three"),
        ("STOP", "one two "),
    ):
        result = api.generate(pair, prompt, block_size=block_size, stop=stop)
        assert (result.text, result.finish_reason) == (text, "stop")


def test_stop_string_at_the_very_end() -> None:
    """A stop string that only the last token completes is the reason, not the length."""
    tokenizer = tiny.byte_tokenizer()
    prompt = tokenizer.encode("hi")
    pair = speaking("one two three", tokenizer, prompt)
    for stop, max_tokens in (("two", 7), ("two ", 8)):
        result = api.generate(pair, prompt, max_tokens=max_tokens, stop=(stop,))
        assert (result.text, result.finish_reason) == ("one ", "stop")
        assert len(result.tokens) == max_tokens


@pytest.mark.parametrize(("said", "noted"), [("why not", 1), ("why not</think>yes", 0)])
def test_an_answer_that_is_all_thinking_says_so(said: str, noted: int) -> None:
    tokenizer = tiny.byte_tokenizer()
    prompt = tokenizer.encode("hi<think>")
    result = api.generate(speaking(said, tokenizer, prompt), prompt, max_tokens=50)
    assert sum("gave no answer" in note for note in result.stats.notes) == noted


@every_mode
def test_context_length(mode: Mode) -> None:
    """An answer ends where the context is full; a prompt that fills it is refused."""
    pair = tiny_pair("qwen3", max_position_embeddings=20)
    prompt = tiny.prompt_of(14)
    result = api.generate(pair, prompt, mode=mode, max_tokens=50)
    assert (len(result.tokens), result.finish_reason) == (6, "length")
    assert result.tokens == tiny.plain(pair.target, prompt, 6)
    with pytest.raises(UsageError):
        api.generate(pair, tiny.prompt_of(20), mode=mode)


@pytest.mark.parametrize("raw", [False, True])
def test_a_text_far_beyond_the_context_is_not_encoded(
    golden: Pair, monkeypatch: pytest.MonkeyPatch, *, raw: bool
) -> None:
    """Samples of it say about how long it is: to encode 20 MB takes a minute."""
    encode = Pair.encode
    lengths: list[int] = []

    def counted(pair: Pair, text: str) -> list[int]:
        lengths.append(len(text))
        return encode(pair, text)

    monkeypatch.setattr(Pair, "encode", counted)
    text = "many words, " * 200_000
    with pytest.raises(PromptTooLong, match=r"about [\d,]+ tokens, the context holds"):
        Session(golden).tokens(text, raw=raw)
    assert sum(lengths) < len(text) / 10


def test_the_length_of_a_text_is_estimated_well(golden: Pair) -> None:
    text = "many words, " * 20_000 + "0123456789" * 20_000
    with pytest.raises(PromptTooLong) as fault:
        golden.check_length(text)
    assert fault.value.tokens == pytest.approx(len(golden.encode(text)), rel=0.05)


def test_modes_and_pairs() -> None:
    """A pair without a drafter decodes plainly only; an unknown mode is refused."""
    target = tiny.make_target("qwen3")
    alone = tiny.make_pair(target, None, "qwen3", None)
    prompt = tiny.prompt_of(5)
    wanted = tiny.plain(target, prompt, 5)
    assert api.generate(alone, prompt, mode="baseline", max_tokens=5).tokens == wanted
    for mode in ("dflash", "turbo"):
        with pytest.raises(UsageError) as caught:
            Session(alone, mode=mode)  # type: ignore[arg-type]
        assert caught.value.hint


def test_closing_twice(golden: Pair) -> None:
    """Closing an answer that was never begun, and one that has ended, is harmless."""
    session = Session(golden)
    with closing(session.stream("a", max_tokens=3)) as stream:  # type: ignore[type-var]
        pass
    assert list(stream) == []
    stream = session.stream("a", max_tokens=3)
    assert len(tiny.joined(list(stream))) == 3
    stream.close()  # type: ignore[attr-defined]
    assert len(tiny.joined(list(session.stream("a", max_tokens=3)))) == 3


@every_mode
def test_one_answer_at_a_time(mode: Mode) -> None:
    """An answer that another one has replaced ends with an error and does not disturb the other."""
    pair = tiny_pair("llama_sliding")
    session = Session(pair, mode=mode)
    first, second = tiny.prompt_of(9), tiny.prompt_of(20, 1)
    wanted = tiny.plain(pair.target, second, 12)
    for resume, begun in ((True, True), (False, True), (True, False), (False, False)):
        old = session.stream(first, max_tokens=12)
        if begun:
            next(old)
        new = session.stream(second, max_tokens=12)
        said = [*next(new).tokens, *next(new).tokens]
        if resume:
            with pytest.raises(UsageError) as caught:
                next(old)
            assert caught.value.hint
        else:
            old.close()  # type: ignore[attr-defined]
        assert [*said, *tiny.joined(list(new))] == wanted
