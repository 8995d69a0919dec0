"""Whose bytes they are, on built lives of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ipyprof.analysis.allocations import lifetimes
from ipyprof.analysis.attribution import NODE_PREFIX
from ipyprof.analysis.holders import (
    ACTIVATIONS,
    BEFORE,
    GRAPHS,
    MOST_HOLDERS,
    OTHERS,
    TENSORS,
    UNREACHABLE,
    Ownership,
    held_by_name,
    layer_of,
)
from ipyprof.analysis.memory import DeviceMemory, memory_view
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.live import LiveRecord, OutOfMemory, Owner
from ipyprof.trace.reader import read_trace
from tests.builder import TraceBuilder
from tests.heap import Heap

MB = 1_000_000
STEADY = settings(deadline=None)  # the machine may be busy
AUTOGRAD = 2
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "gpt2_training_slow.json.gz"


def owner(address: int, size: int, name: str, role: str) -> Owner:
    variable = name.split(":")[0].split(".")[0].split("[")[0].removeprefix("graph of ")
    return Owner(address=address, device=0, bytes=size, name=name, role=role, variable=variable)


def view_of(builder: TraceBuilder, owners: list[Owner] | None = None, **live: object) -> DeviceMemory:
    record = LiveRecord(owners=None if owners is None else tuple(owners), **live)  # type: ignore[arg-type]
    trace = builder.trace()
    (view,) = memory_view(trace, find_steps(trace, live=True), record).devices
    return view


def held(view: DeviceMemory) -> dict[str, int]:
    return {holder.name: holder.bytes for holder in view.memory.holders}


class Training:
    """Steps of 1,000 us: forward on line 4, backward on line 5, the optimizer on line 6, on one fake heap."""

    def __init__(self, *, before: int = 100 * MB) -> None:
        self.builder = TraceBuilder()
        self.heap = Heap(self.builder, held=before)
        self.steps = 0
        self.gradient = 0

    def step(self, *, keep_graph: bool = False) -> dict[str, int]:
        """Addresses: ``saved`` by the forward pass, ``loss``, ``gradient``."""
        at, builder, heap = 1_000 * self.steps, self.builder, self.heap
        builder.step(self.steps, at=at, end=at + 1_000)
        builder.line(4, at + 100, at + 300)
        builder.op("aten::linear", at + 110, at + 290, sequence=self.steps)
        builder.op("aten::addmm", at + 120, at + 200, sequence=self.steps)
        saved = heap.alloc(at + 130, 40 * MB)
        scratch = heap.alloc(at + 140, 7 * MB)
        heap.free(at + 150, scratch)
        loss = heap.alloc(at + 250, 512)
        builder.line(5, at + 400, at + 600)
        builder.op(f"{NODE_PREFIX}: AddmmBackward0", at + 410, at + 590, tid=AUTOGRAD)
        builder.op("AddmmBackward0", at + 420, at + 500, tid=AUTOGRAD)
        builder.op("aten::mm", at + 430, at + 490, tid=AUTOGRAD)
        through = heap.alloc(at + 440, 30 * MB, tid=AUTOGRAD)
        gradient = heap.alloc(at + 450, 20 * MB, tid=AUTOGRAD)
        heap.free(at + 550, through, tid=AUTOGRAD)
        if not keep_graph:
            heap.free(at + 560, saved, tid=AUTOGRAD)
        builder.line(6, at + 700, at + 900)
        builder.annotation("Optimizer.step#AdamW.step", at + 710, at + 890)
        builder.op("aten::_foreach_add", at + 720, at + 800)
        buffer = heap.alloc(at + 730, 5 * MB)
        heap.free(at + 790, buffer)
        self.steps += 1
        return {"saved": saved, "loss": loss, "gradient": gradient}

    def end_step(self, found: dict[str, int], *, loss: bool = True) -> None:
        """The next iteration lets go of the last one's gradient and loss."""
        at = 1_000 * self.steps + 10
        self.heap.free(at, found["gradient"])
        if loss:
            self.heap.free(at + 5, found["loss"])


def test_the_peak_of_a_training_step_is_given_to_its_holders() -> None:
    training = Training()
    weight, moment = training.heap.older(50 * MB), training.heap.older(60 * MB)
    first = training.step()
    training.end_step(first)
    second = training.step()

    view = view_of(
        training.builder,
        [
            owner(weight, 50 * MB, "model.0.weight", "parameter"),
            owner(moment, 60 * MB, "optimizer: exp_avg of model.0.weight", "optimizer state"),
            owner(second["gradient"], 20 * MB, "model.0.weight.grad", "gradient"),
            owner(second["loss"], 512, "loss", "tensor"),
        ],
    )

    assert held(view) == {
        UNREACHABLE: 100 * MB,
        "state of optimizer": 60 * MB,
        "parameters of model": 50 * MB,
        "activations of line 4": 40 * MB,
        "temporaries of aten::mm": 30 * MB,
        "gradients of model": 20 * MB,
        "loss": 512,
    }
    assert sum(held(view).values()) == view.memory.peak_bytes == 300 * MB + 512


def test_each_holder_tells_its_line_and_its_layers() -> None:
    training = Training()
    head, body = training.heap.older(10 * MB), training.heap.older(50 * MB)
    training.step()

    view = view_of(
        training.builder,
        [owner(head, 10 * MB, "model.head.weight", "parameter"), owner(body, 50 * MB, "model.h.3.mlp.w", "parameter")],
    )

    lines = {holder.name: holder.line for holder in view.memory.holders}
    assert lines["activations of line 4"] == 4
    assert lines["temporaries of aten::mm"] == 5
    assert lines["parameters of model"] is None
    assert view.parts == {"parameters of model": (("model.h.3", 50 * MB), ("model.head", 10 * MB))}


@pytest.mark.parametrize(("models", "name"), [(0, "gradients"), (1, "gradients of model")])
def test_a_gradient_without_a_name_is_told_by_its_life(models: int, name: str) -> None:
    training = Training()
    weight = training.heap.older(50 * MB)
    training.end_step(training.step())
    training.step()

    view = view_of(training.builder, [owner(weight, 50 * MB, "model.0.weight", "parameter")] * models)

    assert held(view)[name] == 20 * MB


def test_without_a_look_at_names_what_is_older_is_only_older() -> None:
    training = Training()
    training.step()

    assert held(view_of(training.builder))[BEFORE] == 100 * MB


def test_names_that_do_not_fit_into_the_allocated_bytes_are_other_memory() -> None:
    """A tensor over memory that this allocator did not give."""
    training = Training(before=10 * MB)
    training.step()

    view = view_of(training.builder, [owner(0x1234, 900 * MB, "foreign", "tensor")])

    assert "foreign" not in held(view)
    assert sum(held(view).values()) == view.memory.peak_bytes


def test_kept_losses_are_a_leak_under_their_variable() -> None:
    """E15: the graph that a list of losses keeps."""
    training = Training()
    steps = []
    for _ in range(4):
        steps.append(training.step(keep_graph=True))
        training.end_step(steps[-1], loss=False)
    owners = []
    for number, found in enumerate(steps):
        owners.append(owner(found["loss"], 512, f"losses[{number}]", "tensor"))
        owners.append(owner(found["saved"], 40 * MB, f"graph of losses[{number}]", "graph"))

    view = view_of(training.builder, owners)

    (leak,) = view.growing
    assert (leak.name, leak.role, leak.bytes, leak.line) == ("losses", GRAPHS, 40 * MB + 512, 4)
    assert view.memory.growth_bytes_per_step == 40 * MB + 512
    # The last step's own graph is its activations, the others are the leak's.
    assert held(view)["activations of line 4"] == 40 * MB
    assert held(view)["graph kept by losses"] == 3 * 40 * MB


def test_detached_losses_are_no_leak_of_that_size() -> None:
    """E15, the counterpart: 512 bytes a step are what they are."""
    training = Training()
    steps = []
    for _ in range(4):
        steps.append(training.step())
        training.end_step(steps[-1], loss=False)

    view = view_of(training.builder, [owner(s["loss"], 512, f"losses[{n}]", "tensor") for n, s in enumerate(steps)])

    assert [(leak.name, leak.bytes) for leak in view.growing] == [("losses", 512)]


def test_a_tensor_that_is_made_anew_and_larger_in_each_step_grows() -> None:
    """E8: history = torch.cat([history, new])."""
    builder = TraceBuilder()
    heap = Heap(builder)
    history = heap.older(10 * MB)
    for number in range(4):
        at = 100 * number
        builder.step(number, at=at, end=at + 100)
        builder.line(7, at + 10, at + 50)
        builder.op("aten::cat", at + 20, at + 40)
        longer = heap.alloc(at + 30, (12 + 2 * number) * MB)
        heap.free(at + 45, history)
        history = longer

    view = view_of(builder, [owner(history, 18 * MB, "history", "tensor")])

    (grown,) = view.growing
    assert (grown.name, grown.role, grown.bytes, grown.line) == ("history", TENSORS, 2 * MB, 7)


def kept_results(sizes: list[int], *, kept: bool = True) -> tuple[TraceBuilder, list[int]]:
    """A step per size that makes one tensor on line 7, and the addresses; without ``kept`` only the newest stays."""
    builder = TraceBuilder()
    heap = Heap(builder)
    made: list[int] = []
    for number, size in enumerate(sizes):
        at = 100 * number
        builder.step(number, at=at, end=at + 100)
        builder.line(7, at + 10, at + 50)
        builder.op("aten::zeros", at + 20, at + 40)
        made.append(heap.alloc(at + 30, size))
        if not kept and number:
            heap.free(at + 45, made[-2])
    return builder, made


@pytest.mark.parametrize("sizes", [[MB] * 4, [MB, 3 * MB, 2 * MB, 4 * MB]])
def test_what_no_name_reaches_grows_though_the_newest_has_a_name(sizes: list[int]) -> None:
    """A cache behind ``x = cached(step)``: no name reaches it, and ``x`` is the newest of what it keeps."""
    builder, made = kept_results(sizes)

    view = view_of(builder, [owner(made[-1], sizes[-1], "x", "tensor")])

    (leak,) = view.growing
    assert (leak.name, leak.line) == ("kept by line 7 (aten::zeros)", 7)
    assert leak.bytes == view.memory.growth_bytes_per_step == int(np.median(sizes))


def test_a_list_grows_though_the_newest_is_not_in_it_yet() -> None:
    """The mark of a function's loop is the optimizer's step, and the loss is kept behind it."""
    builder, made = kept_results([MB] * 4)
    owners = [owner(address, MB, f"losses[{number}]", "tensor") for number, address in enumerate(made[:-1])]

    view = view_of(builder, [*owners, owner(made[-1], MB, "loss", "tensor")])

    assert [(leak.name, leak.bytes) for leak in view.growing] == [("losses", MB)]


def test_a_name_that_is_given_to_another_tensor_in_each_step_does_not_grow() -> None:
    builder, made = kept_results([MB] * 4, kept=False)

    view = view_of(builder, [owner(made[-1], MB, "x", "tensor")])

    assert view.growing == ()


def test_the_last_two_tensors_of_a_loop_do_not_grow() -> None:
    """``before, x = x, make()``: what came before has a name of its own, and memory stays as it is."""
    builder = TraceBuilder()
    heap = Heap(builder)
    made = [heap.older(MB), heap.older(MB)]
    for number in range(2):
        at = 100 * number
        builder.step(number, at=at, end=at + 100)
        builder.line(7, at + 10, at + 50)
        builder.op("aten::zeros", at + 20, at + 40)
        made.append(heap.alloc(at + 30, MB))
        heap.free(at + 45, made[-3])

    view = view_of(builder, [owner(made[-1], MB, "x", "tensor"), owner(made[-2], MB, "before", "tensor")])

    assert view.growing == ()


def test_a_steady_training_grows_nothing() -> None:
    training = Training()
    found = training.step()
    for _ in range(3):
        training.end_step(found)
        found = training.step()
    training.end_step(found)

    view = view_of(training.builder, [])

    assert view.growing == ()
    assert view.memory.growth_bytes_per_step == 0


@pytest.mark.parametrize("grows", [[1, 1, 0], [1, 0, 0], [3, 2, 1, 0]])
def test_a_cache_that_has_filled_is_no_leak(grows: list[int]) -> None:
    """E8: a growing cache that settles."""
    builder = TraceBuilder()
    heap = Heap(builder)
    cached = []
    for number, count in enumerate(grows):
        builder.step(number, at=100 * number, end=100 * number + 100)
        cached += [heap.alloc(100 * number + 10 + at, MB) for at in range(count)]

    view = view_of(builder, [owner(address, MB, f"cache[{at}]", "tensor") for at, address in enumerate(cached)])

    assert view.growing == ()
    assert view.memory.growth_bytes_per_step == 0


def test_growth_with_accumulation_is_counted_over_whole_cycles() -> None:
    builder = TraceBuilder()
    heap = Heap(builder)
    for number in range(6):
        builder.step(number, at=100 * number, end=100 * number + 100)
        if number % 2 == 0:
            held_over = heap.alloc(100 * number + 10, 8 * MB)
        else:
            heap.free(100 * number + 10, held_over)

    assert view_of(builder, [], cycle=2).memory.growth_bytes_per_step == 0


def test_a_result_that_lives_into_the_next_step_is_its_lines() -> None:
    builder = TraceBuilder()
    heap = Heap(builder)
    for number in range(2):
        builder.step(number, at=100 * number, end=100 * number + 100)
        builder.line(3, 100 * number + 20, 100 * number + 80)
    first = heap.alloc(30, 4 * MB)
    heap.alloc(130, 5 * MB)
    heap.free(140, first)

    view = view_of(builder, [])

    assert held(view) == {"results of line 3": 4 * MB, "kept by line 3": 5 * MB}


def test_a_bare_allocation_is_named_by_the_operator_around_it() -> None:
    builder = TraceBuilder()
    heap = Heap(builder)
    builder.step(0, at=0, end=100)
    builder.op("aten::softmax", 10, 60)
    builder.op("aten::empty_strided", 20, 40)
    block = heap.alloc(30, MB)
    heap.free(50, block)

    assert held(view_of(builder, [])) == {"temporaries of aten::softmax": MB}


def test_a_request_that_failed_counts_the_step_that_it_ended() -> None:
    """The peak is in the step that never became whole."""
    training = Training()
    training.end_step(training.step())
    training.builder.annotation("unfinished step 1", 1_000, 1_900)
    training.builder.line(4, 1_100, 1_900)
    kept = training.heap.alloc(1_200, 400 * MB)

    view = view_of(
        training.builder,
        [owner(kept, 400 * MB, "graph of hidden (in forward)", "graph")],
        out_of_memory=OutOfMemory(tried_bytes=10**9),
    )

    assert view.memory.peak_bytes == 500 * MB
    assert held(view)["activations of line 4"] == 400 * MB


def test_a_request_that_failed_before_the_first_step_was_whole_has_a_view() -> None:
    builder = TraceBuilder()
    heap = Heap(builder, held=5 * MB)
    builder.annotation("unfinished step 0", 10, 90)
    builder.op("aten::mm", 20, 60)
    heap.alloc(30, 4 * MB)

    view = view_of(builder, [], out_of_memory=OutOfMemory())

    assert view.memory.peak_bytes == 9 * MB
    assert view.memory.growth_bytes_per_step is None


def test_addresses_that_the_file_lacks_give_no_holders() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.memory(10, MB, 2 * MB, 3 * MB, address=0)

    view = view_of(builder, [])

    assert (view.memory.peak_bytes, view.memory.holders) == (2 * MB, ())


def test_many_holders_are_cut_to_the_largest_and_the_others() -> None:
    builder = TraceBuilder()
    heap = Heap(builder)
    builder.step(0, at=0, end=200)
    for number in range(MOST_HOLDERS + 9):
        builder.op(f"aten::op{number}", 2 * number + 1, 2 * number + 2)
        heap.alloc(2 * number + 1.5, (number + 1) * MB)

    view = view_of(builder, [])

    last = view.memory.holders[-1]
    assert (len(view.memory.holders), last.name, last.bytes) == (MOST_HOLDERS + 1, f"9 {OTHERS}", 45 * MB)
    assert sum(held(view).values()) == view.memory.peak_bytes


Actions = st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 10), st.booleans()), max_size=60)


@STEADY
@given(Actions, st.integers(0, 1_000))
def test_whatever_happens_the_holders_add_up_to_the_total(
    actions: list[tuple[bool, int, int, bool]], before: int
) -> None:
    """Also where records are missing."""
    builder = TraceBuilder()
    heap = Heap(builder, held=before)
    builder.step(0, at=0, end=1_000)
    builder.op("aten::mm", 100, 300)
    old = [heap.older(size) for size in (3, 5, 8)]
    blocks = list(old)
    for at, (gives, size, which, unseen) in enumerate(actions, start=1):
        if gives or not blocks:
            blocks.append(heap.alloc(10 * at, size))
        else:
            heap.free(10 * at, blocks.pop(which % len(blocks)))
        if unseen:
            builder.events.pop()
    trace = builder.trace()
    blocks_of = lifetimes(trace, find_steps(trace, live=True), None, 0)
    if blocks_of is None:
        return
    whose = Ownership(trace, blocks_of, [owner(address, 3, "old", "tensor") for address in old])

    for record in range(-1, len(blocks_of.time_ns)):
        holders = whose.at(record, (record + 1) // 20)
        assert sum(holder.bytes for holder in holders) == blocks_of.total(record)
        assert len({holder.name for holder in holders}) == len(holders)


def test_a_recorded_gpt2_training_on_an_h200() -> None:
    """Two steps of the fixture, which has two layers; line 7 is the loss, line 8 the backward pass."""
    trace = read_trace(FIXTURE)
    steps = find_steps(trace, live=True)
    blocks = lifetimes(trace, steps, trace.live, 0)
    assert blocks is not None
    whose = Ownership(trace, blocks, None)

    assert all(
        sum(holder.bytes for holder in whose.at(record, 0)) == blocks.total(record)
        for record in range(-1, len(blocks.time_ns))
    )
    peak = int(np.argmax(blocks.allocated_bytes)) - 1
    held_then = {holder.name: holder.bytes for holder in whose.at(peak, 0)}
    logits = 16 * 1024 * 50_304
    assert blocks.total(peak) == 11_692_587_520
    assert held_then["temporaries of aten::nll_loss_backward"] == 4 * logits
    # the loss keeps the logits in float32 and their log-softmax in bfloat16
    assert held_then["activations of line 7"] == 4 * logits + 2 * logits + 512
    most_gradients = max(
        holder.bytes
        for record in range(len(blocks.time_ns))
        for holder in whose.at(record, 0)
        if holder.name == "gradients"
    )
    # float32, of the words, the places, two blocks and the last norm
    block = 4 * 768 + 768 * 4 * 768 + 4 * 768 + 768 * 8 * 768 + 5 * 768
    assert most_gradients == 4 * (50_304 * 768 + 1_024 * 768 + 2 * block + 2 * 768)


def test_blocks_know_their_birth_and_death() -> None:
    builder = TraceBuilder()
    heap = Heap(builder)
    builder.step(0, at=0, end=100)
    older = heap.older(2 * MB)
    block = heap.alloc(10, MB)
    heap.free(20, older)
    heap.free(30, block)
    trace = builder.trace()

    blocks = lifetimes(trace, find_steps(trace, live=True), None, 0)

    assert blocks is not None
    assert blocks.born.tolist() == [-1, 0]
    assert blocks.died.tolist() == [1, 2]
    assert blocks.size.tolist() == [2 * MB, MB]
    assert blocks.allocated_bytes.tolist() == [2 * MB, 3 * MB, MB, 0]
    assert np.flatnonzero(blocks.alive(1)).tolist() == [1]


def test_names_alone_are_summed_by_holder() -> None:
    found = held_by_name(
        [owner(1, 5, "model.a", "parameter"), owner(2, 6, "model.b", "parameter"), owner(3, 20, "x", "tensor")], 0
    )

    assert [(holder.name, holder.bytes) for holder in found] == [("x", 20), ("parameters of model", 11)]


def test_the_graph_of_a_variable_is_activations_and_that_of_a_lists_tensor_was_kept() -> None:
    found = held_by_name(
        [
            owner(1, 30, "graph of loss (in train)", "graph"),
            owner(2, 20, "graph of losses[0]", "graph"),
            replace(owner(3, 10, "graph of last", "graph"), also="losses"),
        ],
        0,
    )

    assert [(one.name, one.role) for one in found] == [
        ("activations behind loss (in train)", ACTIVATIONS),
        ("graph kept by losses", GRAPHS),
    ]
    assert [one.bytes for one in found] == [30, 30]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.h.3.attn.weight", "model.h.3"),
        ("model.head.weight", "model.head"),
        ("model.weight.grad", "model"),
        ("optimizer: exp_avg of model.0.weight", "model.0"),
        ("losses[3]", ""),
    ],
)
def test_layers_of_names(name: str, layer: str) -> None:
    assert layer_of(name) == layer
