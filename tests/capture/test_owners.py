"""Who holds which storage: names and roles, and nothing of the user's is called or kept."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ipyprof.capture import looking, owners
from ipyprof.capture.owners import Namespaces, namespaces, owners_of
from ipyprof.trace.live import Owner


def look(names: dict[str, Any], **results: Any) -> tuple[tuple[Owner, ...], bool]:
    """What one namespace holds, and whether that is all; ``results``: ``Out`` and ``_``."""
    return owners_of(Namespaces([names], [], results))


def names(**namespace: Any) -> dict[str, tuple[str, int]]:
    """Name → (role, bytes) of what a namespace holds."""
    found, _ = look(namespace)
    return {owner.name: (owner.role, owner.bytes) for owner in found}


def table(**namespace: Any) -> tuple[Owner, ...]:
    return look(namespace)[0]


def test_a_tensor_is_found_under_its_name_with_its_address() -> None:
    x = torch.zeros(100)
    (owner,) = table(x=x)
    assert owner == Owner(
        address=x.untyped_storage().data_ptr(), device=-1, bytes=400, name="x", role="tensor", variable="x"
    )


def test_views_share_a_storage_and_count_once() -> None:
    x = torch.zeros(100)
    assert names(x=x, row=x[:10], other=x.view(10, 10)) == {"x": ("tensor", 400)}


def test_the_shortest_name_wins() -> None:
    x = torch.zeros(10)
    assert list(names(box={"a": [x]}, y=x)) == ["y"]


def test_containers_are_opened() -> None:
    @dataclass
    class Batch:
        image: torch.Tensor

    class Slotted:
        __slots__ = ("label", "unset")

        def __init__(self) -> None:
            self.label = torch.zeros(6)

    found = names(
        rows=[torch.zeros(1)],
        pair=(torch.zeros(2), 3),
        by_name={"a": torch.zeros(3), 4: torch.zeros(4)},
        batch=Batch(image=torch.zeros(5)),
        slotted=Slotted(),
        line=deque([torch.zeros(7)]),
    )

    assert found == {
        "rows[0]": ("tensor", 4),
        "pair[0]": ("tensor", 8),
        "by_name['a']": ("tensor", 12),
        "by_name[4]": ("tensor", 16),
        "batch.image": ("tensor", 20),
        "slotted.label": ("tensor", 24),
        "line[0]": ("tensor", 28),
    }


def test_closures_are_opened() -> None:
    def make() -> Any:
        weight = torch.zeros(10)

        def apply(x: torch.Tensor) -> torch.Tensor:
            return x * weight

        return apply

    assert names(apply=make()) == {"apply()": ("tensor", 40)}


def test_a_training_is_named_by_model_and_layer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3, affine=False))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
    found = names(optimizer=optimizer, parameters=list(model.parameters()), model=model)
    assert found["model.0.weight"] == ("parameter", 48)
    assert found["model.0.weight.grad"] == ("gradient", 48)
    assert found["model.1.running_mean"] == ("buffer", 12)
    assert found["optimizer: exp_avg of model.0.weight"] == ("optimizer state", 48)
    assert found["optimizer: exp_avg_sq of model.0.weight"] == ("optimizer state", 48)
    assert "parameters[0]" not in found


def test_what_only_an_optimizer_tells_is_a_parameter() -> None:
    weight = torch.zeros(5, requires_grad=True)
    assert names(optimizer=torch.optim.SGD([weight]), weight=weight) == {"weight": ("parameter", 20)}
    assert names(optimizer=torch.optim.SGD([weight])) == {"optimizer parameter 0": ("parameter", 20)}


def test_a_kept_loss_names_what_its_graph_has_saved() -> None:
    """E15: the bytes of the leak are not the loss but what its graph saved."""
    weight = torch.zeros(8, 8, requires_grad=True)
    losses = [(weight @ weight).exp().sum() for _ in range(2)]
    found = table(weight=weight, losses=losses)
    saved = [owner for owner in found if owner.role == "graph"]
    assert [(owner.name, owner.bytes, owner.variable) for owner in saved] == [
        ("graph of losses[0]", 256, "losses"),
        ("graph of losses[1]", 256, "losses"),
    ]


def test_a_tensor_that_a_list_holds_too_tells_both() -> None:
    loss = torch.zeros(3)
    (owner,) = table(loss=loss, losses=[loss.detach()])
    assert (owner.name, owner.also) == ("loss", "losses")


def test_a_graph_whose_tensor_a_list_holds_too_tells_both() -> None:
    weight = torch.zeros(8, 8, requires_grad=True)
    loss = weight.exp().sum()
    saved = [owner for owner in table(weight=weight, loss=loss, losses=[loss]) if owner.role == "graph"]
    assert [(owner.variable, owner.also) for owner in saved] == [("loss", "losses")]


@pytest.mark.parametrize("own", ["loss", "box"])
def test_of_several_that_hold_a_loss_too_the_one_that_holds_most_is_told(own: str) -> None:
    """Else the newest loss of a list that grows would not count for it."""
    weight = torch.zeros(8, 8, requires_grad=True)
    losses = [weight.exp().sum() for _ in range(4)]
    newest = losses[-1] if own == "loss" else [losses[-1]]
    found = table(weight=weight, **{own: newest}, last={"loss": losses[-1]}, losses=losses)
    holders = {(owner.variable, owner.also) for owner in found if owner.role in ("graph", "tensor")} - {("weight", "")}
    assert {also or variable for variable, also in holders} == {"losses"}


def test_a_list_that_holds_more_than_any_other_is_not_given_to_another() -> None:
    losses = [torch.zeros(3) for _ in range(4)]
    found = table(losses=losses, newest=[[losses[-1]]])
    assert {(owner.variable, owner.also) for owner in found} == {("losses", "")}


def test_what_a_kept_graph_has_saved_tells_the_list_that_holds_its_loss_too() -> None:
    """``hidden`` has a name in the newest step only; in the steps before it was the list's alone."""
    weight = torch.zeros(8, 8, requires_grad=True)
    losses = []
    for _ in range(3):
        hidden = weight.exp()
        loss = hidden.sum()
        losses.append(loss)
    found = {owner.name: owner for owner in table(weight=weight, hidden=hidden, loss=loss, losses=losses)}
    assert (found["hidden"].variable, found["hidden"].also) == ("hidden", "losses")


class Masked(torch.autograd.Function):
    """Keeps what its backward pass needs as people do: on ``ctx`` itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mask = x > 0
        ctx.scales = [torch.zeros(3)]
        ctx.by_name = {"bias": torch.zeros(5)}
        return x * ctx.mask

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.mask


def test_what_a_function_of_the_users_keeps_on_its_context_is_its_graphs() -> None:
    weight = torch.zeros(100, requires_grad=True)
    found = table(weight=weight, losses=[Masked.apply(weight).sum()])
    assert sorted(owner.bytes for owner in found if owner.role == "graph") == [12, 20, 100]


def test_a_graph_after_backward_holds_nothing() -> None:
    weight = torch.zeros(8, 8, requires_grad=True)
    loss = weight.exp().sum()
    loss.backward()
    assert all(owner.role != "graph" for owner in table(loss=loss))


def test_checkpoints_and_saving_hooks_are_not_run() -> None:
    calls = []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append("forward")
        return x.exp().sin()

    x = torch.zeros(4, requires_grad=True)
    kept = checkpoint(run, x, use_reentrant=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: calls.append("unpack") or one):
        packed = x.exp()
    table(kept=kept, packed=packed)
    assert calls == ["forward"]


class Hostile:
    """Every way into it is a failure."""

    def __init__(self) -> None:
        object.__setattr__(self, "inside", torch.zeros(11))

    def _fail(self, *arguments: Any) -> Any:
        raise AssertionError("the user's code was called")

    __getattr__ = __getattribute__ = __len__ = __iter__ = __eq__ = __bool__ = __repr__ = __str__ = _fail
    __hash__ = __dir__ = __setattr__ = __getitem__ = __contains__ = __instancecheck__ = _fail  # type: ignore[assignment]
    __class__ = property(_fail)  # type: ignore[assignment]


class HostileKind(type):
    def _fail(cls, *arguments: Any) -> Any:
        raise AssertionError("the user's code was called")

    __getattribute__ = __hash__ = __eq__ = __iter__ = __len__ = _fail  # type: ignore[assignment]
    __instancecheck__ = __subclasscheck__ = _fail


class OfHostileKind(metaclass=HostileKind):
    pass


class HostileDict(dict):  # type: ignore[type-arg]
    __getitem__ = __iter__ = items = keys = values = __len__ = Hostile._fail  # type: ignore[assignment]


class HostileList(list):  # type: ignore[type-arg]
    __getitem__ = __iter__ = __len__ = Hostile._fail  # type: ignore[assignment]


class HostileModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._parameters["weight"] = torch.nn.Parameter(torch.zeros(12))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("the user's code was called")

    parameters = named_parameters = state_dict = children = Hostile._fail  # type: ignore[assignment]


class HostileTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("the user's code was called")


def test_hostile_objects_see_no_call_and_are_opened_all_the_same() -> None:
    of_kind = object.__new__(OfHostileKind)
    with torch._C.DisableTorchFunctionSubclass():
        tensor = torch.Tensor.as_subclass(torch.zeros(15), HostileTensor)
    namespace = {
        "hostile": Hostile(),
        "of_kind": of_kind,
        "by_name": HostileDict(a=torch.zeros(13)),
        "rows": HostileList([torch.zeros(14)]),
        "module": HostileModule(),
        "tensor": tensor,
    }

    found, complete = look(namespace)

    assert complete
    assert {owner.name: owner.bytes for owner in found} == {
        "hostile.inside": 44,
        "by_name['a']": 52,
        "rows[0]": 56,
        "module.weight": 48,
        "tensor": 60,
    }


def test_what_caches_iterators_and_waiting_generators_keep_is_named() -> None:
    @functools.cache
    def weights(size: int) -> torch.Tensor:
        return torch.zeros(size)

    @functools.lru_cache(maxsize=3)
    def few(size: int) -> torch.Tensor:
        return torch.zeros(size)

    def states() -> Any:
        kept = torch.zeros(6)
        yield 1
        del kept

    weights(5)
    few(4)
    waiting = states()
    next(waiting)

    found = names(
        weights=weights,
        few=few,
        waiting=waiting,
        rows=iter([torch.zeros(7)]),
        partial=functools.partial(max, torch.zeros(8)),
        pairs=enumerate([torch.zeros(9)]),
    )

    assert found == {
        "weights()[5]": ("tensor", 20),
        "few()": ("tensor", 16),
        "waiting()": ("tensor", 24),
        "rows()[0]": ("tensor", 28),
        "partial()[0]": ("tensor", 32),
        "pairs()()[0]": ("tensor", 36),
    }


def test_what_is_lazy_stays_lazy() -> None:
    started = []

    def numbers() -> Any:
        started.append(1)
        yield torch.zeros(3)

    assert names(stream=numbers(), mapped=map(started.append, [1])) == {}
    assert started == []


@pytest.mark.parametrize("container", [dict, deque, list])
def test_a_huge_container_is_looked_at_from_both_ends(monkeypatch: pytest.MonkeyPatch, container: type) -> None:
    monkeypatch.setattr(looking, "MOST_ITEMS", 4)
    rows = [torch.zeros(at + 1) for at in range(10)]
    found, complete = look({"rows": dict(enumerate(rows)) if container is dict else container(rows)})
    assert not complete
    assert sorted(owner.name for owner in found) == ["rows[0]", "rows[1]", "rows[8]", "rows[9]"]


@pytest.mark.parametrize(("limit", "value"), [("MOST_OBJECTS", 100), ("MOST_NS", 0)])
def test_objects_and_time_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(owners, limit, value)
    found, complete = look({"rows": [[torch.zeros(1)] for _ in range(1_000)]})
    assert not complete
    assert len(found) <= 100


NESTED = 300


def large_notebook() -> dict[str, Any]:
    """More objects than ``test_what_else_is_in_the_notebook`` lets be looked at."""
    return {"texts": [[[] for _ in range(NESTED)] for _ in range(NESTED)]}


def test_what_else_is_in_the_notebook_leaves_room_for_models_results_and_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "MOST_OBJECTS", 10 * NESTED)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False))))
    losses = [model(torch.ones(5, 2)).exp().sum()]
    found, complete = look({**large_notebook(), "model": model, "losses": losses}, Out={3: torch.zeros(7)})
    assert not complete
    assert {"model.0.0.0.weight", "losses[0]", "Out[3]", "graph of losses[0]"} <= {owner.name for owner in found}


def test_when_names_take_all_their_time_there_is_some_for_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**9, 1_000))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(owners, "MOST_NS", 100_000)
    weight = torch.zeros(8, 8, requires_grad=True)
    found, complete = look({"losses": [weight.exp().sum()], **large_notebook()})
    assert not complete
    assert "graph of losses[0]" in {owner.name for owner in found}


def test_of_many_kept_graphs_the_newest_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that were recorded are the last ones."""
    monkeypatch.setattr(owners, "MOST_OBJECTS", 20)
    weight = torch.zeros(8, 8, requires_grad=True)
    losses = [weight.exp().sum() for _ in range(10)]
    found, complete = look({"losses": losses})
    graphs = {owner.name for owner in found if owner.role == "graph"}
    assert not complete
    assert "graph of losses[9]" in graphs
    assert "graph of losses[1]" not in graphs


def test_a_container_in_itself_ends() -> None:
    rows: list[Any] = [torch.zeros(2)]
    rows.append(rows)
    assert names(rows=rows) == {"rows[0]": ("tensor", 8)}


def test_tensors_without_memory_are_left_out() -> None:
    found = names(
        meta=torch.zeros(4, device="meta"), sparse=torch.zeros(4).to_sparse(), empty=torch.zeros(0), none=None
    )
    assert found == {}


def test_looking_keeps_nothing_alive() -> None:
    class Thing:
        def __init__(self) -> None:
            self.weight = torch.zeros(4, requires_grad=True)
            self.kept = [self.weight.exp().sum()]

    thing = Thing()
    watched = [weakref.ref(thing), weakref.ref(thing.weight), weakref.ref(thing.kept[0])]
    before = sys.getrefcount(thing.weight)

    look({"thing": thing})

    after = sys.getrefcount(thing.weight)
    assert after == before
    gc.disable()
    try:
        del thing
        assert [one() for one in watched] == [None, None, None]
    finally:
        gc.enable()


def held(error: BaseException | None = None) -> list[str]:
    with namespaces(error) as spaces:
        found, _ = owners_of(spaces)
    return [owner.name for owner in found]


def test_locals_of_a_running_function_are_named_and_not_kept() -> None:
    def train() -> tuple[list[str], bool]:
        batch = torch.zeros(1_234)
        watched = weakref.ref(batch)
        found = held()
        del batch
        return found, watched() is None

    found, gone = train()
    assert "batch (in train)" in found
    assert gone


def test_what_runs_the_shell_is_looked_at_last(shell: Any) -> None:
    """A server's frames hold all of the server; those of a script that embeds a shell hold the user's tensors."""
    seen: list[tuple[list[str], list[str]]] = []

    def look() -> None:
        with namespaces() as spaces:
            seen.append(([*chain(*spaces.given)], [*chain(*spaces.around)]))

    def serve(connection: object) -> None:
        shell.user_ns["look"] = look
        shell.run_cell("def train(batch):\n    look()\ntrain(1)").raise_error()

    serve(None)
    ((given, around),) = seen
    assert "batch (in train)" in given
    assert "connection (in serve)" in around
    assert "connection (in serve)" not in given


def test_a_copy_of_locals_that_the_user_keeps_is_left_alone() -> None:
    def train() -> dict[str, Any]:
        batch = torch.zeros(1_234)
        mine = locals()
        held()
        assert mine["batch"] is batch
        return mine

    assert "batch" in train()


def test_what_the_frames_of_an_error_keep_is_named() -> None:
    def forward() -> None:
        hidden = torch.zeros(4_321)
        raise ValueError(hidden.shape)

    try:
        forward()
    except ValueError as caught:
        error = caught
    assert "hidden (in forward)" in held(error)


def test_the_frames_of_the_error_behind_an_error_count_too() -> None:
    def forward() -> None:
        hidden = torch.zeros(4_321)
        raise ValueError(hidden.shape)

    def wrapped() -> None:
        try:
            forward()
        except ValueError as error:
            raise RuntimeError("again") from error

    with pytest.raises(RuntimeError) as caught:
        wrapped()
    assert "hidden (in forward)" in held(caught.value)


def test_what_the_last_error_of_the_notebook_keeps_is_named(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(sys, name, None, raising=False)
    shell.run_cell("import torch\ndef forward():\n    hidden = torch.zeros(4_321)\n    1 / 0\nforward()")
    assert "hidden (in forward, last error)" in held()


def test_results_in_out_are_named_and_private_names_are_not(shell: Any) -> None:
    shell.run_cell("import torch\n_private = torch.zeros(77)\ntorch.zeros(9)", store_history=True)
    found = held()
    assert f"Out[{shell.execution_count - 1}]" in found
    assert not {"_", "__", "_private"} & set(found)


def test_a_result_that_has_a_name_too_is_held_by_the_name_however_deep_it_is(shell: Any) -> None:
    cell = "import torch\nbox = {'a': [torch.zeros(9)]}\nbox['a'][0]"
    shell.run_cell(cell, store_history=True)
    with namespaces() as spaces:
        found, _ = owners_of(spaces)
    assert [(one.name, one.also) for one in found if one.bytes == 4 * 9] == [("box['a'][0]", "")]


def test_a_model_that_only_out_and_its_optimizer_hold_is_named_by_the_optimizer() -> None:
    layer = torch.nn.Linear(3, 5, bias=False)
    optimizer = torch.optim.SGD(layer.parameters())
    (owner,) = look({"optimizer": optimizer}, Out={4: layer}, _=layer)[0]
    assert (owner.name, owner.role) == ("optimizer parameter 0", "parameter")


def test_out_goes_before_the_last_result_and_before_what_a_graph_saved() -> None:
    weight = torch.zeros(8, 8, requires_grad=True)
    hidden = weight.exp()
    loss = hidden.sum()
    found, _ = look({"weight": weight, "loss": loss}, Out={4: hidden.detach()}, _=hidden)
    assert {owner.name for owner in found} == {"weight", "loss", "Out[4]"}


def test_what_the_allocator_gave_is_what_a_name_holds() -> None:
    x, y = torch.zeros(100), torch.zeros(7)
    address = x.untyped_storage().data_ptr()
    found, _ = owners_of(Namespaces([{"x": x, "y": y}], [], {}), {(-1, address): 512})
    assert [(one.name, one.bytes) for one in found] == [("x", 512), ("y", 28)]
