"""Answers in a given form: thinking before them, their end, their company, and what is refused."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep
from typing import Any, cast

import engines
import mlx.core as mx
import numpy as np
import pytest
import templates
import thinking_cases
import tiny
from constrained import Plain, asked
from known_costs import flat_costs
from llguidance import hf
from scripted_pair import speaking
from typer.testing import Result

from dflash_mlx import Grammar, api
from dflash_mlx.constrained import compiler
from dflash_mlx.constrained.constraint import Bitmask, Constraint, reasoning_state
from dflash_mlx.constrained.grammar import check_grammar
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.request import Request
from dflash_mlx.engine.sequence import Sequence
from dflash_mlx.engine.worker_thread import mlx_thread
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.options import Mode, SamplingParams
from dflash_mlx.pair import load
from dflash_mlx.policy.adaptive import AdaptivePolicy
from dflash_mlx.policy.policy import Choice, StepResult
from dflash_mlx.session import Session
from dflash_mlx.speculation.drafts import Draft
from dflash_mlx.speculation.tree import Tree
from dflash_mlx.types import Block, Plan

COLOURS = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 3}
NAMED = {
    "type": "object",
    "properties": {"a rather long name": {"type": "boolean"}},
    "required": ["a rather long name"],
    "additionalProperties": False,
}
TEXT = (100, 101)  # a generation prompt of the golden tokenizer whose thinking is closed


def ids_of(text: str) -> list[int]:
    return tiny.tokenizer().encode(text, add_special_tokens=False)


@pytest.mark.parametrize(("family", "prompt", "answer", "text", "thinking"), thinking_cases.CASES)
def test_a_grammar_begins_where_the_text_does(
    family: str, prompt: str, answer: str, text: str, thinking: str
) -> None:
    """For every family: what is shown as text is what the grammar rules, but for a line break."""
    tokenizer = templates.tokenizer_of(family)
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    state, place = reasoning_state(tokenizer, tokenizer.encode(prompt)), 0
    while state is not None and place < len(tokens):
        if state.allowed is not None and tokens[place] not in state.allowed:
            break
        state, place = state.advance(tokens[place]), place + 1
    if state is not None and not state.may_end:
        assert not text or "to=functions" in text or "to=wx" in text or text == "no mark at all"
    elif "wait" not in text:  # what comes first is the text, also where the splitter joins two
        ruled = tokenizer.decode(tokens[place:])
        stray = "</think>" if not place else ""  # no grammar allows it, and it is not shown
        assert ruled.removeprefix(stray).lstrip("\n") == text.lstrip("\n")


SAID = '{"sum": 19}'
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
OPENED = [
    ("qwen", f"<think>\nlet me see\n</think>\n{SAID}", {}),
    ("qwen", SAID, {"think": False}),
    ("qwen", SAID, {}),
    ("glm", f"hm, {{}}!</think>{SAID}", {}),
    ("gemma", f"<|channel>thought\nhm\n<channel|>{SAID}", {"think": True}),
    ("gpt_oss", f"{thinking_cases.HARMONY}{SAID}", {}),
    ("muse", f"{thinking_cases.MUSE} to=user<|message|>{SAID}", {}),
]


@pytest.mark.parametrize(("family", "answer", "options"), OPENED)
@pytest.mark.parametrize("mode", ["dflash", "baseline"])
def test_thinking_is_free(family: str, answer: str, options: dict[str, Any], mode: Mode) -> None:
    """A target that thinks and then keeps to the form is not disturbed, and ends with the form."""
    tokenizer = templates.tokenizer_of(family)
    template_options = {k: v for k, v in options.items() if k == "think"}
    ids = Session(speaking("", tokenizer, [0]), mode=mode).tokens("q", **template_options)
    pair = speaking(answer, tokenizer, ids)
    result = api.generate(pair, "q", schema=SUM, mode=mode, max_tokens=200, **options)
    assert (result.text.lstrip("\n"), result.finish_reason) == (SAID, "stop")
    assert result.tokens == tokenizer.encode(answer, add_special_tokens=False)


def test_what_thinking_may_not_do() -> None:
    """End the answer; a marker that was begun is written to its end."""
    for family, answer in (("glm", "hm<|stop|>"), ("gemma", "<|channel>other")):
        tokenizer = templates.tokenizer_of(family)
        options: dict[str, Any] = {"think": True} if family == "gemma" else {}
        ids = Session(speaking("", tokenizer, [0])).tokens("q", **options)
        pair = speaking(answer, tokenizer, ids)
        result = api.generate(pair, "q", schema=SUM, mode="baseline", max_tokens=14, **options)
        assert result.finish_reason == "length"
        assert result.text == ""
        if family == "gemma":
            thought = tokenizer.encode("<|channel>thought", add_special_tokens=False)
            assert result.tokens[: len(thought)] == thought
            state = reasoning_state(tokenizer, ids)
            assert state is not None
            begun = state.advance(thought[0])
            assert begun is not None
            assert (state.may_end, begun.may_end) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("think", [True, None, False])
def test_the_bundled_pair_thinks_and_answers(think: bool | None) -> None:
    """A real answer with thinking is that of plain decoding that knows the markers."""
    pair = load()
    tokenizer, inside = pair.tokenizer, think is True
    prompt = Session(pair).tokens("What is 12 plus 7?", think=think)
    marks = tokenizer.encode("<think></think>", add_special_tokens=False)

    def stock() -> list[int]:
        thinks = (marks[0], marks[1])
        plain = Plain(pair.target, Grammar.of_schema(COLOURS), thinks, inside, tokenizer)
        return plain.answer(prompt, 130)

    wanted = mlx_thread().call(stock)
    for mode in ("baseline", "dflash", "ddtree"):
        found = api.generate(
            pair, "What is 12 plus 7?", schema=COLOURS, think=think, max_tokens=130, mode=mode
        )
        assert found.tokens == wanted
        assert found.finish_reason == "stop"
        assert {*json.loads(found.text)} <= {"red", "blue"}


def test_ends_and_what_follows() -> None:
    """An answer ends with the last token that can be; the session goes on behind it."""
    target = tiny.make_target("qwen3")
    pair = tiny.make_pair(target, tiny.random_drafter(target), "t", "d")
    for mode in ("baseline", "dflash", "ddtree"):
        session = Session(pair, mode=mode)
        ids, grammar = [*tiny.prompt_of(9), *TEXT], Grammar("regex", "(yes|no)!")
        blocks = list(session.stream(ids, grammar=grammar, max_tokens=40))
        said = tiny.joined(blocks)
        assert blocks[-1].finish_reason == "stop"
        assert tiny.tokenizer().decode(said) in ("yes!", "no!")  # and no end token
        following = [*ids, *said, 4, *TEXT]
        free = tiny.joined(list(session.stream(following, max_tokens=12)))
        assert free == tiny.plain(target, following, 12, target.eos_ids)
        assert session.stats.cached_tokens >= len(ids) + len(said) - 1
        again = list(session.stream(following, grammar="start: /[0-9]{5}/", max_tokens=3))
        assert again[-1].finish_reason == "length"
        assert tiny.tokenizer().decode(tiny.joined(again)).isdigit()


def test_an_open_end_is_the_targets_choice() -> None:
    """Where the form may go on or end, the end token is chosen among what is allowed."""
    target = tiny.make_target("qwen3")
    pair = tiny.make_pair(target, tiny.random_drafter(target), "t", "d")
    seen = set[bool]()
    for seed in range(12):
        params = SamplingParams(4.0, seed=seed)
        found = [
            api.generate(
                pair,
                [*tiny.prompt_of(9), *TEXT],
                grammar="start: /[a-z]+/",
                sampling=params,
                mode=mode,
                max_tokens=12,
            )
            for mode in ("baseline", "dflash", "ddtree")
        ]
        assert found[0].tokens == found[1].tokens == found[2].tokens
        ended = found[0].tokens[-1] in target.eos_ids
        assert found[0].finish_reason == ("stop" if ended else "length")
        seen.add(ended)
    assert seen == {True, False}


def test_no_row_is_wasted() -> None:
    """Every draft of a verify is allowed, and what is forced is verified without a drafter."""
    target = tiny.make_target("qwen3")
    grammar = Grammar.of_schema(NAMED)
    wanted = Plain(target, grammar).answer(tiny.prompt_of(9), 60)
    wrong = tiny.scripted_drafter([*tiny.prompt_of(9), *wanted], wrong=True, strict=False)
    engine = Engine(target, wrong, compiler=tiny.compiler_of(target))
    ways: list[tuple[Mode, dict[str, Any]]] = [("dflash", {}), ("ddtree", {"tree_budget": 12})]
    for mode, options in ways:
        sequence = Sequence(target, wrong)
        request = Request(
            tuple(tiny.prompt_of(9)),
            stop_ids=target.eos_ids,
            grammar=grammar,
            generation_prompt=TEXT,
            mode=mode,
            **options,
        )
        engine.begin(sequence, request, -1)
        blocks = list(tiny.rounds(engine, sequence))
        assert tiny.joined(blocks) == wanted
        assert len(blocks) < len(wanted) / 2  # the name is forced, whatever is drafted
        assert sum(b.accepted for b in blocks) > len(wanted) / 2


def test_steered_chains() -> None:
    """A chain is cut, forced tokens take the place of its own, and what follows them is dropped."""
    target = tiny.make_target("qwen3")
    grammar = Grammar.of_schema(NAMED)
    request = Request((5,), stop_ids=target.eos_ids, grammar=grammar, generation_prompt=TEXT)
    state = tiny.compiler_of(target).constrain(grammar, request.reasoning_prefix, request.stop_ids)
    chain = Draft(mx.array(ids_of('"b')))
    assert state.filter_draft(chain, 8, 8).tokens.tolist() == ids_of("{")
    assert state.filter_draft(chain, 8, 8).judged == 0
    state.accept_tokens(tuple(ids_of('{ "a ')))
    kept = state.filter_draft(Draft(mx.array(ids_of("rath3r"))), 9, 9)
    assert (kept.tokens.tolist(), kept.judged) == (ids_of("rather lo"), 4)


def test_drafts_beyond_a_limit_of_the_matcher_leave_no_trace() -> None:
    """A matcher that fails at a draft is made anew, with the committed tokens and no others."""
    target = tiny.make_target("qwen3")
    endings = " | ".join(f'"x" a c{number}' for number in range(40))
    rules = "\n".join(f'c{number}: "x"' for number in range(40))
    # Each x adds 40 items to the parser's row, which has 2,000 at most.
    grammar = Grammar("lark", f'start: "b" a\na: "x" | {endings}\n{rules}')
    committed = tuple(ids_of("b" + 40 * "x"))
    chain = Draft(mx.array(ids_of(20 * "x")))
    grammars = tiny.compiler_of(target)
    expected = grammars.constrain(grammar, TEXT, target.eos_ids)
    constraint = grammars.constrain(grammar, TEXT, target.eos_ids)
    for state in (expected, constraint):
        assert state.accept_tokens(committed) == committed
    assert 0 < constraint.filter_draft(chain, 20, 20).drafted < 20
    logits = mx.zeros((1, target.vocab_size))
    wanted = expected.mask_logits(logits, Draft.none())
    assert mx.array_equal(constraint.mask_logits(logits, Draft.none()), wanted)
    for state in (constraint.fork(), constraint):
        assert state.accept_tokens(committed[-3:]) == committed[-3:]


class LimitedMatcher:
    """A matcher of any text of token 1, which reaches its limit at the fifth."""

    def __init__(self, consumed: int = 0):
        self.consumed = consumed

    def deep_copy(self) -> "LimitedMatcher":
        return LimitedMatcher(self.consumed)

    def consume_tokens(self, tokens: list[int]) -> None:
        self.consumed += len(tokens)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        self.consumed += len(tokens)
        return 0 if self.is_error() else len(tokens)

    def rollback(self, count: int) -> None:
        self.consumed -= count

    def is_error(self) -> bool:
        return self.consumed > 4

    def get_error(self) -> str:
        return "too many items" if self.is_error() else ""

    def is_stopped(self) -> bool:
        return False

    def fill(self, drafts: list[int], rows: np.ndarray) -> None:
        """The bitmasks before and after drafts; after an error it stays in error, as llguidance."""
        for place in range(len(drafts) + 1):
            if self.is_error():
                return
            rows[place] = 2
            self.consumed += place < len(drafts)
        self.consumed -= len(drafts)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_rejected_draft_beyond_a_limit_of_the_matcher_ends_no_answer(shape: str) -> None:
    """Only an answer that comes to the place of the error ends with it, as in plain decoding."""
    bitmask = Bitmask(1, lambda matcher, drafts, rows: cast(Any, matcher).fill(drafts, rows))
    constraint = Constraint(cast(Any, LimitedMatcher()), None, bitmask, frozenset())
    count, message = decoded_plainly(constraint.fork(), 1)
    assert count == 4
    assert "too many items" in message
    chain = (1,) * 6
    draft = Draft(mx.array(chain))
    if shape == "tree":
        draft = Draft.of_tree(Tree(chain, tuple(range(6)), tuple(range(1, 7)), (0.0,) * 6))
    for accepted in (1, count):
        state = constraint.fork()
        state.mask_logits(mx.zeros((7, 32)), draft)
        assert state.accept_tokens(chain[:accepted]) == chain[:accepted]
    state = constraint.fork()
    state.mask_logits(mx.zeros((7, 32)), draft)
    with pytest.raises(DFlashError) as error:
        state.accept_tokens(chain)
    assert error.value.message == message


def decoded_plainly(constraint: Constraint, token: int) -> tuple[int, str]:
    """How often a token can be decoded without drafts, and the error that ends it."""
    count = 0
    while True:
        constraint.mask_logits(mx.zeros((1, 32)), Draft.none())
        try:
            constraint.accept_tokens((token,))
        except DFlashError as error:
            return count, error.message
        count += 1


def test_a_draft_that_is_cut_teaches_nothing() -> None:
    """The mode auto judges a drafter by its own drafts that were allowed, by none forced."""
    policy = AdaptivePolicy(flat_costs(1), 8)
    own = Choice(0, 8)
    (acceptance,) = policy.new_sequence(1)
    good = StepResult(acceptance, Plan(8), verified=7, accepted=7, committed=8, choice=own)
    for _ in range(30):
        policy.update([good], None)
    before = acceptance.survivals(None, 7)
    cut = StepResult(acceptance, Plan(8), verified=5, accepted=5, committed=6, choice=own, judged=2)
    none = StepResult(acceptance, Plan(1), verified=4, accepted=4, committed=5, judged=0)
    for _ in range(30):
        policy.update([cut], None)
        policy.update([none], None)
    assert acceptance.survivals(None, 7)[6] == pytest.approx(before[6], abs=0.05)
    kept = StepResult(
        acceptance, Plan(8), verified=5, accepted=2, committed=3, choice=own, judged=3
    )
    assert (kept.own, kept.kept) == (3, 2)


def request_of(number: int) -> Request:
    """Every second request of `test_engine`'s, and as many that follow grammars."""
    free = engines.request_of(number // 2)
    if number % 2:
        return free
    grammar, _ = asked(number // 2)
    ends = frozenset([98])
    return replace(free, grammar=grammar, generation_prompt=TEXT, stop_ids=ends, max_tokens=20)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gpt_oss"])
def test_answers_do_not_depend_on_company(family: str) -> None:
    """Answers that follow grammars share passes with free ones, in all modes and samplings."""
    engine = engines.engine_of(family)
    requests = [request_of(number) for number in range(10)]
    wanted = [engines.alone(engine, request) for request in requests]
    assert engines.together(engine, requests, random.Random(0)) == wanted
    assert wanted[0] != wanted[2] != wanted[4]


def test_a_fork_goes_on_by_itself() -> None:
    """Two copies in the middle of a text end it alike."""
    engine = engines.engine_of("qwen3")
    request = Request(
        tuple(tiny.prompt_of(9)), stop_ids=frozenset([98]), grammar=Grammar.of_schema(COLOURS),
        generation_prompt=TEXT,
    )  # fmt: skip
    wanted = engines.alone(engine, request)
    sequence, said = Sequence(engine.target, *engine.drafters), list[int]()
    engine.begin(sequence, request, -1)
    while len(said) < 4:
        (block,) = engine.step([sequence])
        assert isinstance(block, Block)
        said += block.tokens
    engine.stop(sequence)
    for one in (sequence.fork(), sequence):
        assert said + tiny.joined(list(tiny.rounds(engine, one))) == wanted


def test_a_grammar_that_gives_up_ends_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason is the fault of that answer; the others of the round go on."""
    engine = engines.engine_of("qwen3")
    hard = Grammar("lark", 'start: a\na: a a | a a a | "x" | "xx" | "xxx" | a "x" a')
    requests = [engines.request_of(0), engines.request_of(1)]
    requests[1] = replace(requests[1], grammar=hard, generation_prompt=TEXT, max_tokens=500)
    wanted = engines.alone(engine, replace(requests[0], max_tokens=60))
    requests[0] = replace(requests[0], max_tokens=60)
    sequences = [Sequence(engine.target, *engine.drafters) for _ in requests]
    for sequence, request in zip(sequences, requests, strict=True):
        engine.begin(sequence, request, -1)
    said, faults = list[int](), list[str]()
    while not sequences[0].answer.finish_reason:
        first, second = engine.step([*sequences[:1], *(sequences[1:] if not faults else ())]) + (
            [None] if faults else []
        )
        assert isinstance(first, Block)
        said += first.tokens
        if isinstance(second, DFlashError):
            faults.append(second.message)
    assert said == wanted
    assert faults


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"type": "objct"}}, "the schema cannot be used (Invalid type: objct)."),
        (
            {"schema": '{"type":'},
            "the schema is not JSON (Expecting value: line 1 column 9 (char 8)).",
        ),
        ({"schema": "[1]"}, "a schema cannot be '[1]'."),
        ({"schema": {"a": {1, 2}}}, "the schema is not JSON"),
        (
            {"schema": {"uniqueItems": True}},
            'cannot be used (Unimplemented keys: ["uniqueItems"]).',
        ),
        ({"schema": {"pattern": "(", "type": "string"}}, "error: unclosed group)."),
        ({"schema": {"const": "\ud800"}}, "the schema cannot be used"),
        ({"grammar": 'start: "a" b'}, 'the grammar cannot be used (at 1(8): unknown name: "b").'),
        ({"grammar": "  "}, "the grammar is empty."),
        ({"grammar": 'start: "\ud800"'}, "the grammar cannot be used"),
        ({"grammar": "start: <nothing>"}, "the grammar cannot be used"),
        ({"grammar": 'start: "a"', "schema": {}}, "follows a schema or a grammar, not both."),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    """A wrong schema or grammar, before anything is computed, with the reason in one line."""
    with pytest.raises(UsageError) as fault:
        Session(tiny.golden_pair("qwen3_full")).stream("hi", **options)
    assert message.replace("error: ", "") in fault.value.message
    assert "\n" not in fault.value.message
    assert fault.value.hint


def test_deep_schemas_are_refused() -> None:
    """Deeper than anybody's stack."""
    with pytest.raises(UsageError):
        Grammar.of_schema('{"items":' * 100_000 + "{}" + "}" * 100_000)
    for grammar in (Grammar("regex", "(" * 9_000), Grammar("lark", "start: " + "(" * 999)):
        with pytest.raises(UsageError):
            check_grammar(grammar)


def test_kinds() -> None:
    """Every kind is compiled once, and only the last are kept; a kind is checked by name."""
    target = tiny.make_target("qwen3")
    grammars = compiler.Compiler(tiny.tokenizer(), target.vocab_size, target.eos_ids)
    for grammar in (
        Grammar("json_object"),
        Grammar("regex", "[ab]+"),
        Grammar.of_schema({"x-guidance": {"whitespace_flexible": False}}),
    ):
        check_grammar(grammar)
        assert grammars.compile(grammar) is grammars.compile(grammar)
    first = grammars.compile(Grammar("json_object"))
    for number in range(compiler.MAX_COMPILED):
        grammars.compile(Grammar("regex", f"{number}"))
    assert grammars.compile(Grammar("json_object")) is not first
    for kind, text in (("ebnf", "a"), ("json_object", "a"), ("regex", "")):
        with pytest.raises(UsageError):
            Grammar(kind, text)  # type: ignore[arg-type]


def test_a_vocabulary_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a server's first forms come at the same time: it takes seconds."""
    read: list[object] = []

    def slow(*args: Any, honest: Any = hf.from_tokenizer, **options: Any) -> Any:
        read.append(args)
        sleep(0.05)
        return honest(*args, **options)

    monkeypatch.setattr(hf, "from_tokenizer", slow)
    grammars = compiler.Compiler(tiny.tokenizer(), tiny.VOCAB, frozenset({1}))
    with ThreadPoolExecutor() as pool:
        list(pool.map(grammars.compile, [Grammar("regex", f"{number}") for number in range(3)]))
    assert len(read) == 1


def test_an_answer_that_is_cut_before_its_form_is_complete(dflash: Callable[..., Result]) -> None:
    """It is printed, and the command fails; one that may end where it was cut is done."""
    start = ("--raw", "hi<think></think>", "--max-tokens", "3")
    result = dflash("--schema", '{"type": "string", "minLength": 20}', *start)
    assert result.exit_code == 1
    assert result.stdout.startswith('"')
    assert "cut before its schema or grammar was complete" in result.stderr
    result = dflash("--grammar", "start: /[a-z]+/", *start)
    assert (result.exit_code, len(result.stdout) > 1) == (0, True)
    assert "cut by --max-tokens, after 3 tokens" in result.stderr


def test_the_command_line(dflash: Callable[..., Result], tmp_path: Any) -> None:
    """Texts and files; a wrong one is told before a model is loaded."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "yes.lark"
    schema.write_text(json.dumps(COLOURS))
    grammar.write_text('start: "yes" | "no"')
    for value in (str(schema), json.dumps(COLOURS)):
        result = dflash("--schema", value, "--raw", "hi<think></think>")
        assert {*json.loads(result.stdout)} <= {"red", "blue"}, result.stderr
    for value in (str(grammar), grammar.read_text()):
        assert dflash("--grammar", value, "--raw", "hi<think></think>").stdout in ("yes\n", "no\n")
    for arguments, message in (
        (("--schema", "no.json"), "there is no file 'no.json'."),
        (("--grammar", "yes"), "there is no file 'yes'."),
        (("--schema", '{"type": "objct"}'), "Invalid type: objct"),
        (("--schema", "{}", "--grammar", 'start: "a"'), "not both"),
    ):
        result = dflash(*arguments, "-m", "no-such-folder", "hi")
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
