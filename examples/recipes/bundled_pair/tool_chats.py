"""Chats with tools: tasks of one to three calls, errors, and questions that need no call.

A request that fits a tool is done by the tool; anything else is answered as without tools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from arithmetic import stories
from everyday import HONEST, everyday
from functions import functions
from lists import lists
from outside import outside
from read_words import read_words
from sample import Chat, Message, Sample, assistant, user
from system_prompts import instructions
from tool_catalogue import CATALOGUE, Make, catalogue_chain, catalogue_task, choose
from tool_chains import (
    add_chain,
    file_in_folder,
    file_of_file,
    lookup_action,
    lookup_sum,
    number_in_file,
    numbers_in_file,
    numbers_in_folder,
    read_action,
    read_lookup,
    two_files,
)
from tool_schemas import (
    Action,
    Lookup,
    Tool,
    action_tool,
    add_tool,
    list_tool,
    lookup_tool,
    read_tool,
    time_tool,
)
from tool_tasks import (
    Step,
    Task,
    action_task,
    add_task,
    list_task,
    lookup_task,
    read_task,
    time_task,
)
from wording import loosely

ERROR_SHARE = 0.08
ERRORS = read_words("tool_tasks")["errors"]


@dataclass(frozen=True, slots=True)
class Box:
    """The tools of a chat, and what makes tasks for them: of one call, and of several.

    `missing` makes tasks for tools that are not there. `calculates`: whether a tool may do sums.
    """

    tools: list[Tool]
    single: list[Make]
    chains: list[Make]
    missing: list[Make]
    calculates: bool


def a_box(rng: Random) -> Box:
    """Tools of the catalogue, or made-up ones beside those for files, sums and time."""
    return catalogue_box(rng) if rng.random() < 0.45 else made_up_box(rng)


def catalogue_box(rng: Random) -> Box:
    """One to six tools of the catalogue, and maybe two that need each other."""
    entries = rng.sample(CATALOGUE, rng.choice((3, 3, 4, 4, 5, 6, 7, 8)))
    chosen = [choose(rng, entry) for entry in entries[2:]]
    tools = [each.tool for each in chosen]
    single: list[Make] = [partial(catalogue_task, chosen=each) for each in chosen]
    missing: list[Make] = [
        partial(catalogue_task, chosen=choose(rng, entry)) for entry in entries[:2]
    ]
    chains: list[Make] = []
    if rng.random() < 0.6:
        pair, make = catalogue_chain(rng)
        tools += pair
        chains = [make]
        missing = [
            make
            for make, entry in zip(missing, entries[:2], strict=True)
            if not names_of(pair) & set(entry.names)
        ]
    if len(names_of(tools)) < len(tools) or not missing:
        return catalogue_box(rng)
    rng.shuffle(tools)
    return Box(tools, single, chains, missing, calculates=True)


def names_of(tools: Sequence[Tool]) -> set[str]:
    """The names of tools."""
    return {tool.name for tool in tools}


def made_up_box(rng: Random) -> Box:
    """One to eight tools."""
    read = read_tool(rng) if rng.random() < 0.6 else None
    listing = list_tool(rng) if rng.random() < 0.45 else None
    add = add_tool(rng) if rng.random() < 0.55 else None
    time = time_tool(rng) if rng.random() < 0.4 else None
    lookups = [lookup_tool(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    actions = [action_tool(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    if not (read or listing or add or time or lookups or actions):
        lookups = [lookup_tool(rng)]
    tools = [tool for tool in (read, listing, add, time) if tool]
    tools += [each.tool for each in (*lookups, *actions)]
    if len(names_of(tools)) < len(tools):
        return made_up_box(rng)
    single: list[Make] = [partial(lookup_task, lookup=lookup) for lookup in lookups]
    single += [partial(action_task, action=action) for action in actions]
    missing: list[Make] = [
        partial(lookup_task, lookup=lookup_tool(rng)),
        partial(action_task, action=action_tool(rng)),
    ]
    for tool, make, other in (
        (read, read_task, read_tool),
        (listing, list_task, list_tool),
        (time, time_task, time_tool),
    ):
        if tool:
            single.append(partial(make, tool=tool))
        else:
            missing.append(partial(make, tool=other(rng)))
    if add:
        single.append(partial(add_task, tool=add))
    chains = some_chains(read, listing, add, lookups, actions)
    rng.shuffle(tools)
    return Box(tools, single, chains, missing, calculates=add is not None)


def some_chains(
    read: Tool | None,
    listing: Tool | None,
    add: Tool | None,
    lookups: Sequence[Lookup],
    actions: Sequence[Action],
) -> list[Make]:
    """What makes tasks of several calls for these tools."""
    chains: list[Make] = []
    single_text = [action for action in actions if action.kinds == ("string",)]
    if add:
        chains.append(partial(add_chain, add=add))
        chains += [partial(lookup_sum, lookup=lookup, add=add) for lookup in lookups]
    if read:
        chains.append(partial(file_of_file, read=read))
        chains += [partial(read_lookup, read=read, lookup=each, add=add) for each in lookups]
        chains += [partial(read_action, read=read, action=action) for action in single_text]
    if read and add:
        chains += [
            partial(make, read=read, add=add)
            for make in (number_in_file, numbers_in_file, two_files)
        ]
    if listing and read:
        chains.append(partial(file_in_folder, listing=listing, read=read))
        if add:
            chains.append(partial(numbers_in_folder, listing=listing, read=read, add=add))
    chains += [
        partial(lookup_action, lookup=lookup, action=action)
        for lookup in lookups
        for action in single_text
    ]
    return chains


def in_turn(rng: Random, tasks: Sequence[Task]) -> Task:
    """Several tasks in one request, done in the order in which they are named."""
    orders = [task.order for task in tasks]
    listed = " ".join(f"{number}. {order}." for number, order in enumerate(orders, 1))
    order = rng.choice(
        (
            f"{', '.join(orders[:-1])} and {orders[-1]}",
            f"{', '.join(orders[:-1])}, then {orders[-1]}",
            f"first {orders[0]}, then {', then '.join(orders[1:])}",
            f"do this: {listed}",
        )
    )
    steps = tuple(step for task in tasks for step in task.steps)
    return Task(order, (), steps, "\n".join(task.report for task in tasks))


def a_task(rng: Random, box: Box, three: bool) -> Task:
    """A task of the box; with `three` one of three calls."""
    while True:
        dice = rng.random()
        if box.chains and dice < 0.35:
            task = rng.choice(box.chains)(rng)
        elif dice < 0.5 or three:
            count = rng.choice((2, 2, 3)) if not three else 3
            task = in_turn(rng, [rng.choice(box.single)(rng) for _ in range(count)])
        else:
            task = rng.choice(box.single)(rng)
        if not three or len(task.steps) == 3:
            return task


def asked(rng: Random, task: Task) -> str:
    """The user's message."""
    if task.questions and rng.random() < 0.6:
        return loosely(rng, rng.choice(task.questions))
    order = task.order[0].upper() + task.order[1:]
    if rng.random() < 0.15:
        order = f"Please {task.order}"
    mark = "" if order.endswith(".") else "."
    return loosely(rng, order + mark)


def call_message(step: Step, number: int, thinking: bool) -> Message:
    """The answer that calls a tool."""
    function = {"name": step.tool.name, "arguments": step.arguments}
    message = assistant("", f"I call {step.tool.name}." if thinking else "")
    calls = [{"type": "function", "id": f"call{number:05d}", "function": function}]
    return {**message, "tool_calls": calls}


def done(rng: Random, task: Task, thinking: bool, failing: bool, count: int) -> list[Message]:
    """The messages of a task after the user's: calls, results, and what is reported.

    With `failing` one of the calls fails and ends the task. `count`: calls before these.
    """
    fails = rng.randrange(len(task.steps)) if failing else -1
    messages: list[Message] = []
    for number, step in enumerate(task.steps):
        messages.append(call_message(step, count + number + 1, thinking))
        result = step.result
        if number == fails:
            values = [value for value in step.arguments.values() if isinstance(value, str)]
            result = rng.choice(ERRORS).format(value=values[0] if values else step.tool.name)
        identity = f"call{count + number + 1:05d}"
        messages.append(
            {
                "role": "tool",
                "name": step.tool.name,
                "tool_call_id": identity,
                "content": result,
            }
        )
        if number == fails:
            said = assistant(
                f"That did not work: {result}", "There was an error." if thinking else ""
            )
            return [*messages, said]
    said = assistant(task.report, "I have all results." if thinking else "")
    return [*messages, said]


def known(rng: Random, box: Box) -> Sample:
    """A question that needs no tool: known, or outside the toy's world."""
    dice = rng.random()
    if dice < 0.15:
        return without_tool(rng, box)
    if dice < 0.45:
        return outside(rng)
    families = [lists, everyday, functions]
    if not box.calculates:
        families.append(stories)
    return rng.choice(families)(rng)


def without_tool(rng: Random, box: Box) -> Sample:
    """A request for a tool that is not there."""
    task = rng.choice(box.missing)(rng)
    return Sample("outside", asked(rng, task), "I have no tool for this.", HONEST, HONEST)


def request_without_tools(rng: Random) -> Sample:
    """A request for a tool in a chat without tools."""
    return without_tool(rng, a_box(rng))


def tool_chat(rng: Random) -> Chat:
    """A chat with tools: one to five requests, each with calls or without."""
    box = a_box(rng)
    thinking = rng.random() < 0.15
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": instructions(rng, [])})
    calls = 0
    for _ in range(1 if thinking else rng.choice((3, 4, 5, 6))):
        dice = rng.random()
        if dice < 0.3:
            sample = known(rng, box)
            messages += [user(sample.prompt), *answered(sample, thinking)]
            continue
        task = a_task(rng, box, three=rng.random() < 0.2 and bool(box.single))
        messages.append(user(asked(rng, task)))
        messages += done(rng, task, thinking, rng.random() < ERROR_SHARE, calls)
        calls += len(task.steps)
    return Chat(messages, [tool.schema for tool in box.tools], thinking)


def answered(sample: Sample, thinking: bool) -> list[Message]:
    """The answer to a question without calls."""
    if thinking:
        return [assistant(sample.conclusion, sample.thinking)]
    return [assistant(sample.answer)]


def one_call(rng: Random) -> Chat:
    """One task of a single call, which may fail, for measuring."""
    box = a_box(rng)
    task = rng.choice(box.single)(rng)
    fails = rng.random() < 0.2
    messages = [user(asked(rng, task)), *done(rng, task, False, fails, 0)]
    return Chat(messages, [tool.schema for tool in box.tools])


def three_steps(rng: Random) -> Chat:
    """One task of three calls, for measuring."""
    box = a_box(rng)
    task = a_task(rng, box, three=True)
    messages = [user(asked(rng, task)), *done(rng, task, False, False, 0)]
    return Chat(messages, [tool.schema for tool in box.tools])


def no_call(rng: Random) -> Chat:
    """One question that needs no tool, for measuring."""
    box = a_box(rng)
    sample = known(rng, box)
    messages = [user(sample.prompt), *answered(sample, False)]
    return Chat(messages, [tool.schema for tool in box.tools])
