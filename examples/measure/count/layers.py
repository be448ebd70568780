"""The layers, op by op as mlx-lm's models write them (mlx_lm/models, version 0.32.2)."""

from .attention import Heads, attend
from .models import Mixture, Model, Recurrence
from .operations import copy, elementwise, rms_norm, rope, update_cache
from .products import gathered, linear, weights
from .tape import Array, Tape

PAGE = 16384  # bytes of a page of memory, to which MLX rounds a buffer
STEP = 256  # rows by which a cache grows


def product(tape: Tape, x: Array, model: Model, inputs: int, outputs: int, rows: int) -> Array:
    """A layer's linear product with weights of its own."""
    return linear(tape, x, weights(inputs, outputs, model.bits), rows)


def norm(tape: Tape, x: Array, size: int, *, donor: bool = False) -> Array:
    """A norm with a weight of its own."""
    return rms_norm(tape, x, Array(size), donor=donor)


def residual(tape: Tape, x: Array, new: Array) -> Array:
    """x + new, in the buffer of new."""
    return elementwise(tape, "Add", [x, new], donor=new)


def feed_forward(tape: Tape, x: Array, model: Model, rows: int) -> Array:
    """qwen3.MLP and Qwen3NextMLP: swiglu is one kernel by mx.compile (activations.py)."""
    gate = product(tape, x, model, model.hidden, model.width, rows)
    up = product(tape, x, model, model.hidden, model.width, rows)
    both = elementwise(tape, "Compiled", [gate, up], donor=gate)
    return product(tape, both, model, model.width, model.hidden, rows)


def attention(tape: Tape, x: Array, model: Model, rows: int, context: int) -> Array:
    """qwen3.Attention, and Qwen3NextAttention where the model is a hybrid."""
    heads = Heads(model.heads, model.kv_heads, model.size)
    hybrid = model.recurrence is not None
    width = model.heads * model.size
    kv_width = model.kv_heads * model.size
    query = product(tape, x, model, model.hidden, width * (2 if hybrid else 1), rows)
    gate = None
    if hybrid:
        # Queries and gates of a head lie side by side: each is a view with gaps, also of one row.
        whole = query
        query = whole.view(rows * width, contiguous=False, span=whole.elements)
        gate = copy(tape, whole.view(rows * width, contiguous=False), op="Reshape")
    key = product(tape, x, model, model.hidden, kv_width, rows)
    value = product(tape, x, model, model.hidden, kv_width, rows)
    query = norm(tape, query, model.size, donor=True)
    key = norm(tape, key, model.size, donor=True)
    query = rope(tape, query, rows=rows, partial=hybrid)
    key = rope(tape, key, rows=rows, partial=hybrid)
    keys, values = (_cached(tape, new, model, rows, context) for new in (key, value))
    out = attend(tape, query, keys, values, heads, rows)
    if gate is not None:
        opened = elementwise(tape, "Sigmoid", [gate], donor=gate)
        out = elementwise(tape, "Multiply", [out, opened], donor=out)
    return product(tape, out, model, width, model.hidden, rows)


def _cached(tape: Tape, new: Array, model: Model, rows: int, context: int) -> Array:
    """cache.KVCache.update_and_fetch where there is room: the rows seen, a view of the cache."""
    room = -(-(context + rows) // STEP) * STEP
    head = model.size
    cache = Array(model.kv_heads * room * head)
    update_cache(tape, cache, new)
    seen = (context + rows) * head
    span = (model.kv_heads - 1) * room * head + seen
    return cache.view(model.kv_heads * seen, contiguous=False, span=span)


def linear_attention(tape: Tape, x: Array, model: Model, own: Recurrence, rows: int) -> Array:
    """qwen3_5.GatedDeltaNet. Copies are of inputs with gaps, which one row has not."""
    mixed = product(tape, x, model, model.hidden, own.channels, rows)
    gate = product(tape, x, model, model.hidden, own.values, rows)
    b = product(tape, x, model, model.hidden, own.value_heads, rows)
    a = product(tape, x, model, model.hidden, own.value_heads, rows)
    convolved = _convolve(tape, mixed, own, rows)
    gaps = rows > 1
    keys = rows * own.key_heads * own.size
    query, key = (_normalised(tape, convolved.view(keys, contiguous=not gaps)) for _ in range(2))
    value = convolved.view(rows * own.values, contiguous=not gaps)
    beta = elementwise(tape, "Sigmoid", [b], donor=b)
    # gated_delta.compute_g is one kernel by mx.compile; a and dt_bias, A_log are small.
    decay = elementwise(tape, "Compiled", [a], itemsize=4)
    # fast::CustomKernel copies what is not row-contiguous (custom_kernel.cpp, check_input).
    if gaps:
        value = copy(tape, value, more=True)
    state = Array(own.value_heads * own.size * own.size, 4)
    out = Array(rows * own.values)
    taken = [query, key, value, decay, beta, state]
    # One kernel with two outputs: what it writes is both of them.
    tape.launch("CustomKernel", taken, Array(out.elements + 2 * state.elements))
    # Qwen3NextRMSNormGated: a norm, then precise_swiglu, one kernel by mx.compile.
    out = norm(tape, out, own.size)
    out = elementwise(tape, "Compiled", [gate, out], donor=out)
    return product(tape, out, model, own.values, model.hidden, rows)


def _normalised(tape: Tape, x: Array) -> Array:
    """gated_delta.normalize_qk: a norm without a weight, then a scale that nothing fuses."""
    x = rms_norm(tape, x, None)
    return elementwise(tape, "Multiply", [x], donor=x)


def _convolve(tape: Tape, mixed: Array, own: Recurrence, rows: int) -> Array:
    """The last rows before, these, the window kept, the convolution and its SiLU."""
    before = Array((own.window - 1) * own.channels)
    joined = Array(before.elements + mixed.elements)
    # Concatenate copies each input (slicing.cpp, concatenate_gpu).
    tape.launch("Concatenate", [before], joined.view(before.elements), more=True)
    tape.launch("Concatenate", [mixed], joined.view(mixed.elements))
    # mx.contiguous shares the buffer if it is at most 16 KiB larger than what is kept
    # (mlx/backend/gpu/primitives.cpp, Contiguous::eval_gpu; pages by allocator.cpp, malloc).
    if -(-joined.bytes // PAGE) * PAGE > before.bytes + PAGE:
        copy(tape, joined.view(before.elements), op="Contiguous")
    # Depthwise, so that one kernel does it (conv.cpp, conv_1D_gpu).
    taps = Array(own.window * own.channels)
    out = tape.launch("Convolution", [joined, taps], Array(rows * own.channels))
    return elementwise(tape, "Compiled", [out], donor=out)


def mixture(tape: Tape, x: Array, model: Model, own: Mixture, rows: int) -> Array:
    """qwen3_moe.Qwen3MoeSparseMoeBlock and switch_layers.SwitchGLU."""
    pairs = rows * own.taken
    # quant_predicate gives the router 8 bits.
    router = weights(model.hidden, own.experts, 8 if model.bits else None)
    chances = linear(tape, x, router, rows)
    chances = tape.launch("Softmax", [chances], chances.view())
    order = Array(chances.elements, 4)
    # A partition is a whole sort (sort.cpp, ArgPartition::eval_gpu): one block of 128.
    tape.launch("ArgPartition", [chances], order)
    taken = order.view(pairs, contiguous=rows == 1)
    scores = tape.launch("GatherAxis", [chances, taken], Array(pairs), read=pairs * 6)
    total = tape.launch("Reduce", [scores], Array(rows))
    scores = elementwise(tape, "Divide", [scores, total])
    # SwitchGLU sorts the pairs from 64 on.
    inverse = None
    if pairs >= 64:
        x, taken, inverse = _sorted(tape, x, taken, own, rows)
    up, gate, down = (
        weights(inputs, outputs, model.bits, own.experts)
        for inputs, outputs in (
            (model.hidden, own.width),
            (model.hidden, own.width),
            (own.width, model.hidden),
        )
    )
    above = gathered(tape, x, up, taken, pairs)
    opened = gathered(tape, x, gate, taken, pairs)
    both = elementwise(tape, "Compiled", [opened, above], donor=opened)
    out = gathered(tape, both, down, taken, pairs)
    if inverse is not None:
        out = _picked(tape, out, inverse, out.elements)
    weighted = elementwise(tape, "Multiply", [out, scores], donor=out)
    return tape.launch("Reduce", [weighted], Array(rows * model.hidden))


def _picked(tape: Tape, x: Array, indices: Array, elements: int) -> Array:
    """Rows of x by indices: one dispatch (indexing.cpp, Gather::eval_gpu)."""
    given = Array(elements, x.itemsize)
    return tape.launch("Gather", [x, indices], given, read=given.bytes + indices.bytes)


def _sorted(
    tape: Tape, x: Array, taken: Array, own: Mixture, rows: int
) -> tuple[Array, Array, Array]:
    """switch_layers._gather_sort: rows and experts in the order of experts, and the way back."""
    if not taken.contiguous:
        taken = copy(tape, taken, op="Reshape")
    order = tape.launch("ArgSort", [taken], Array(taken.elements, 4))
    inverse = tape.launch("ArgSort", [order], Array(taken.elements, 4))
    row = elementwise(tape, "FloorDivide", [order], itemsize=4)
    x = _picked(tape, x, row, x.elements // rows * taken.elements)
    experts = _picked(tape, taken, order, taken.elements)
    return x, experts, inverse
