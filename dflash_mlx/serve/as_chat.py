"""Requests of other APIs as requests of OpenAI's chat API: one place knows what can be had."""

import re
from typing import Any

from dflash_mlx.pair import Pair

from .fields import SamplingFields, read_body
from .job import Job
from .openai_chat import ChatBody, job_of
from .problem import Problem
from .settings import Settings


def chat_job(values: dict[str, Any], names: dict[str, str], pair: Pair, settings: Settings) -> Job:
    """The job of a chat body with these values, those that are None left out.

    Problem 400 for what cannot be had; `names` are the other API's names of chat fields.
    """
    told = {name: value for name, value in values.items() if value is not None}
    try:
        return job_of(read_body(ChatBody, told), pair, settings)
    except Problem as problem:
        for chat, own in names.items():
            problem.message = re.sub(rf"\b{chat}\b", own, problem.message)
            problem.param = own if problem.param == chat else problem.param
        raise


def sampling_values(body: SamplingFields) -> dict[str, Any]:
    """A body's own values of the fields that all APIs share."""
    return {name: getattr(body, name) for name in SamplingFields.model_fields}
