"""The parts of an mlx-lm model that this package reads or replaces, found by looking at it run.

mlx-lm's model classes name their parts differently. One pass over a token, of which nothing is
evaluated, shows which module does what:

    tokens -> table -> [1, 1, H] -> layer 0 -> ... -> layer L - 1 -> norm -> head -> [1, 1, V]
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import CacheList, make_prompt_cache

STOCK = "_dflash_stock"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module is in a model; stand-ins may come and go there."""

    owner: nn.Module
    name: str

    @property
    def module(self) -> Any:
        return self.owner[self.name]


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's parts.

    `layers` is the model's own list: what is put into it runs. `caches` are mlx-lm's of one
    sequence after one token; nothing in them is evaluated, and their shapes tell what a token
    takes. For each of them, with each `CacheList` flattened, `readers` has the modules that were
    given the cache, and gave it to no other one, and `used` tells whether one put something into
    it. hidden_size: of the states between layers, 0 if unknown. vocab_size: the
    number of logits. dtype: of embedded tokens. `norm` is the final norm; None if it was not found,
    or if hidden states cannot be read, because the layers do not run once, in order, on states
    [1, S, H]. `table` embeds tokens. `head` is None where the table is the head, too.
    """

    layers: list[Any]
    caches: Sequence[Any]
    readers: list[list[Any]]
    used: list[bool]
    hidden_size: int
    vocab_size: int
    dtype: mx.Dtype
    norm: Any
    table: Place | None
    head: Place | None
    embed_scale: float

    @property
    def reads_hidden(self) -> bool:
        return self.norm is not None and self.table is not None


@dataclass(slots=True, eq=False)
class Call:
    module: Any
    inputs: tuple[Any, ...]
    calls: list["Call"] = field(default_factory=list)
    output: Any = None

    @property
    def caches(self) -> Iterator[Any]:
        """The caches that the module was given, alone or in a `CacheList`."""
        return flat([one for one in self.inputs if hasattr(one, "is_trimmable")])


def look(model: nn.Module) -> Parts:
    """Find a model's parts. Evaluates nothing."""
    layers = layers_of(model)
    caches = make_prompt_cache(model)
    with watching(model) as root:
        logits: Any = model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    numbers = [id(layer) for layer in layers]
    around = list(outside(root, {id(module) for module in holders(model, layers)}))
    of_layers = [at for at, call in enumerate(around) if id(call.module) in numbers]
    before = around[: min(of_layers, default=len(around))]
    after = around[max(of_layers, default=len(around)) + 1 :]
    states = [shape(around[at].output) for at in of_layers]
    tables = [call for call in before if is_table(call)]
    width = shape(tables[0].output)[-1] if tables else 0
    state = (1, 1, width)
    in_order = [id(around[at].module) for at in of_layers] == numbers
    same = [call for call in after if shape(call.inputs) == state == shape(call.output)]
    norms = [call for call in same if call.module.parameters()]  # no dropout of an adapter
    heads = [c for c in after if shape(c.output)[-1:] == logits.shape[-1:]]
    body = next((m for m in model.modules() if any(v is layers for v in m.values())), model)
    given = readers(root)
    return Parts(
        layers,
        caches,
        [given.get(id(cache), []) for cache in flat(caches)],
        [not cache.empty() for cache in flat(caches)],
        width,
        logits.shape[-1],
        tables[0].output.dtype if tables else logits.dtype,
        norms[-1].module if in_order and norms and all(s == state for s in states) else None,
        place_of(model, tables[0].module) if tables else None,
        place_of(model, heads[0].module) if heads else None,
        getattr(body, "embed_scale", 1.0),
    )


def layers_of(model: nn.Module) -> list[Any]:
    """The list of a model's decoder layers: the one whose first layer is that of `model.layers`."""
    lists = [
        value
        for module in model.modules()
        for value in module.values()
        if isinstance(value, list) and value and all(isinstance(one, nn.Module) for one in value)
    ]
    named: Any = getattr(model, "layers", None)
    own = [value for value in lists if named and value[0] is named[0]]
    return max(own or lists, key=len)


def flat(caches: Sequence[Any]) -> Iterator[Any]:
    """Yield the caches of all layers; each `CacheList` is flattened."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from flat(list(cache.caches))
        else:
            yield cache


@contextmanager
def watching(model: nn.Module) -> Iterator[Call]:
    """Record the calls of a model's modules, of this instance only. Yields the root's call."""
    root = Call(None, ())
    running = [root]
    classes: dict[type, type] = {}

    def watched(kind: Any) -> type:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            made = Call(self, (*args, *options.values()))
            running[-1].calls.append(made)
            running.append(made)
            try:
                made.output = kind.__call__(self, *args, **options)
            finally:
                running.pop()
            return made.output

        return subclass(kind, call)

    modules = {id(module): module for module in model.modules()}
    before = [(module, type(module)) for module in modules.values()]
    try:
        for module, kind in before:
            if kind not in classes:
                classes[kind] = watched(kind)
            module.__class__ = classes[kind]
        yield root
    finally:
        for module, kind in before:
            module.__class__ = kind


def outside(call: Call, around: set[int]) -> Iterator[Call]:
    """Yield the outermost calls of modules that are not `around` the layers, in order."""
    for inner in call.calls:
        if id(inner.module) in around:
            yield from outside(inner, around)
        else:
            yield inner


def readers(call: Call) -> dict[int, list[Any]]:
    """For each cache, by id, the modules that were given it and gave it to no other one."""
    found: dict[int, list[Any]] = {}
    for inner in call.calls:
        for cache, modules in readers(inner).items():
            found.setdefault(cache, []).extend(modules)
    if call.module is not None:
        for cache in call.caches:
            found.setdefault(id(cache), [call.module])
    return found


def holders(model: nn.Module, layers: list[Any]) -> list[Any]:
    modules = dict(model.named_modules())
    path = next(name for name, module in modules.items() if module is layers[0]).split(".")
    names = [".".join(path[:count]) for count in range(len(path))]
    return [modules[name] for name in names if name in modules]


def place_of(model: nn.Module, module: nn.Module) -> Place | None:
    return next(
        (
            Place(owner, name)
            for owner in model.modules()
            for name, value in owner.items()
            if value is module
        ),
        None,
    )


def is_table(call: Call) -> bool:
    tokens = first(call.inputs)
    integers = isinstance(tokens, mx.array) and mx.issubdtype(tokens.dtype, mx.integer)
    return integers and hasattr(call.module, "as_linear")


def first(value: Any) -> Any:
    return next(iter(value), None) if isinstance(value, tuple) else value


def shape(value: Any) -> tuple[int, ...]:
    array = first(value)
    return array.shape if isinstance(array, mx.array) else ()


def stand_in(layers: list[Any], kind: type, make: Callable[[Any], nn.Module | None]) -> set[int]:
    """Put `make(net)` in place of the children of layers for which it returns a module.

    A child of that `kind` is made anew from its `net`. Returns the ids of all these nets.
    """
    replaced: set[int] = set()
    for layer in layers:
        for name, child in layer.children().items():
            net = child.net if isinstance(child, kind) else child
            made = make(net) if isinstance(net, nn.Module) else None
            if made is not None:
                layer[name] = made
                replaced.add(id(net))
    return replaced


def call_of(kind: type) -> Any:
    """The function that runs when a module of this class is called; None if there is none."""
    return next((vars(one)["__call__"] for one in kind.__mro__ if "__call__" in vars(one)), None)


class Wrapper(nn.Module):
    """Takes the place of a `plain` module in one model instance, and has its attributes."""

    def __init__(self, plain: nn.Module):
        super().__init__()
        self["plain"] = plain  # before any attribute: __getattr__ needs it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self["plain"], name)


# A module's class may be replaced by a subclass, for one instance alone


def give_class(module: nn.Module, call: Callable[..., Any]) -> None:
    """Let one module instance run `call` when it is called.

    It gets a subclass of its class, because Python looks up `__call__` on the class.
    """
    module.__class__ = subclass(stock_class(module), call)


def subclass(kind: type, call: Callable[..., Any]) -> Any:
    """A subclass of mlx-lm's or MLX's class `kind` whose `__call__` is `call`."""
    return type(kind.__name__, (kind,), {"__call__": call, STOCK: getattr(kind, STOCK, kind)})


def stock_class(module: nn.Module) -> type:
    """mlx-lm's or MLX's class of a module, also after `give_class`."""
    return getattr(type(module), STOCK, type(module))
