"""Compiled and captured updates. Tests of CUDA are skipped where there is none."""

import contextlib
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from scripts import is_on_policy, needs_compiler
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import exc
from torch._inductor.utils import run_and_get_code
from torch.utils._pytree import tree_flatten

from algos.compile import (
    Captured,
    Places,
    captured,
    check_compiler,
    compiled,
    compiled_at_first,
    multiplies_bf16,
    tune_cpu,
    use_fast_products,
    variant_of,
)  # fmt: skip
from algos.errors import UserError
from algos.optim import Adam

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_a_cpu_function_is_left_alone_unless_asked():
    assert compiled(abs, torch.device("cpu")) is abs
    assert compiled(abs, torch.device("cuda"), eager=True) is abs
    assert captured(abs, torch.device("cpu")) is captured(abs, torch.device("cuda"), eager=True) is abs


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """Linux without a compiler and without Python's headers; no path has a space."""
    for name in ("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "__file__", "/torch/__init__.py")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "/lib")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("device", "needs", "variable"),
    [
        ("cpu", r"--compile needs a C\+\+ compiler, and g\+\+ is", "CXX"),
        ("cuda", "CUDA needs a C compiler, and gcc or clang is", "CC"),
    ],
)
def test_what_compiling_lacks_is_said_in_a_sentence(device, needs, variable, bare_machine, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=needs):
        check_compiler(torch.device(device))
    monkeypatch.setattr(shutil, "which", {"g++": "here", "clang": "here"}.get)
    with pytest.raises(UserError, match=r"needs the headers of Python, and there is no .*Python\.h: install"):
        check_compiler(torch.device(device))
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CPATH", f"/nothing:{tmp_path}")
    check_compiler(torch.device(device))
    monkeypatch.setenv(variable, "ccache gcc")  # which torch and Triton take for one name
    with pytest.raises(UserError, match=rf"and ccache gcc is not on the PATH: install one, set {variable}, or give --"):
        check_compiler(torch.device(device))


@pytest.mark.parametrize("where", ["TORCHINDUCTOR_CACHE_DIR", "temporary files", "the interpreter's library"])
def test_a_space_in_a_path_that_compiling_cannot_take_is_told(bare_machine, monkeypatch, tmp_path, where):
    """torch gives these paths to the compiler as they are."""
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    (tmp_path / "Python.h").touch()
    check_compiler(torch.device("cpu"))
    spaced = "/Library/Application Support/x"
    if where == "TORCHINDUCTOR_CACHE_DIR":
        monkeypatch.setenv(where, spaced)
    elif where == "temporary files":
        monkeypatch.setattr(tempfile, "gettempdir", lambda: spaced)
    else:
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: spaced)
    with pytest.raises(UserError, match=f"^--compile fails where a path has a space, as '{spaced}' has: take a Python"):
        check_compiler(torch.device("cpu"))
    check_compiler(torch.device("cuda"))


def test_a_function_is_not_compiled_without_a_compiler(bare_machine):
    for device in ("cpu", "cuda"):
        with pytest.raises(UserError, match="needs a C"):
            compiled(abs, torch.device(device), compile_on_cpu=True)


@pytest.fixture
def precision():
    """Puts torch's own setting back."""
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    yield settings
    settings.fp32_precision = before


def test_products_keep_the_accuracy_of_float32(precision):
    tune_cpu()
    a, b = torch.randn(4, 300, 256), torch.randn(4, 256, 200)
    error = (torch.bmm(a, b).double() - torch.bmm(a.double(), b.double())).abs().max()
    assert error < 2e-4


def test_a_processor_that_would_round_to_bfloat16_is_found_out(precision, monkeypatch):
    """The setting of an earlier run in this process may be the one that is withdrawn."""
    precision.fp32_precision, product = "ieee", torch.bmm

    def rounding(a, b):
        return product(a, b) if a.dtype == torch.float64 else product(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch, "bmm", rounding)
    use_fast_products()
    assert precision.fp32_precision == "ieee"


@pytest.mark.skipif(
    not (sys.platform == "linux" and platform.machine() == "x86_64" and torch.backends.mkldnn.is_available()),
    reason="needs Linux on x86",
)
def test_bfloat16_is_for_processors_with_instructions_for_it(monkeypatch):
    assert multiplies_bf16() == ("avx512_bf16" in Path("/proc/cpuinfo").read_text().split())
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert multiplies_bf16()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not multiplies_bf16()


class Draws(NamedTuple):
    noise: Tensor
    returns: Tensor


def test_nested_arguments_keep_their_places_in_memory():
    """A CUDA graph reads the same memory at every replay, so a later call copies its tensors there."""
    first = Draws(torch.ones(2, 3), torch.ones(2)), [torch.zeros(1)], True
    leaves, structure = tree_flatten(first)
    places = Places(leaves, structure)
    places.fill(leaves)
    draws, others, due = places.args
    assert isinstance(draws, Draws) and due is True
    assert torch.equal(draws.noise, first[0].noise) and draws.noise is not first[0].noise

    second = Draws(torch.full((3, 2), 2.0).T, torch.full((2,), 3.0)), [torch.full((1,), 4.0)], True
    places.fill(tree_flatten(second)[0])
    assert torch.equal(draws.noise, second[0].noise) and draws.noise.is_contiguous()
    assert draws.returns.tolist() == [3.0, 3.0] and others[0].item() == 4.0


def test_shapes_types_and_plain_values_select_the_captured_variant():
    def key(*args):
        return variant_of(*tree_flatten(args))

    x, y = torch.zeros(2), torch.ones(2)
    assert key(Draws(x, x), True) == key(Draws(y, y), True)
    assert hash(key(Draws(x, x), True)) == hash(key(Draws(y, y), True))
    others = [(Draws(x, x), False), (Draws(x, x), 1), (Draws(x, x[:1]), True), (Draws(x, x.double()), True)]
    others += [((x, x), True), (Draws(x, None), True)]
    for other in others:
        assert key(Draws(x, x), True) != key(*other), other


@pytest.fixture
def compilations(monkeypatch):
    """The number of threads at each compilation. Nothing is compiled, and two threads are the default."""
    seen = []

    def compile_fx(graph, inputs, config_patches):
        seen.append(torch.get_num_threads())
        return graph

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield seen
    torch.set_num_threads(before)


@needs_compiler
def test_another_number_of_threads_compiles_nothing_anew(compilations):
    function = compiled(lambda x: x + 1, torch.device("cpu"), compile_on_cpu=True)
    for threads in (2, 1, 2):
        torch.set_num_threads(threads)
        function(torch.zeros(3))
    assert compilations == [2]


@needs_compiler
def test_each_compilation_is_told_and_nothing_else(compilations):
    told = []

    @contextlib.contextmanager
    def busy():
        told.append(("begins", len(compilations)))
        yield
        told.append(("ends", len(compilations)))

    function = compiled(lambda x, twice: 2 * x if twice else -x, torch.device("cpu"), compile_on_cpu=True, busy=busy)
    for twice in (False, False, True, False, True):
        function(torch.zeros(3), twice)
    first = [("begins", 0), ("begins", 0), ("ends", 1), ("ends", 1)]  # the first call, and the compiler in it
    assert told == [*first, ("begins", 1), ("ends", 2)]


@needs_compiler
def test_kernels_are_compiled_for_all_threads_even_while_there_is_one(compilations):
    function = compiled(lambda x: x - 1, torch.device("cpu"), compile_on_cpu=True)
    torch.set_num_threads(1)
    function(torch.zeros(3))
    assert compilations == [2]
    assert torch.get_num_threads() == 1


@needs_compiler
def test_a_compiled_step_of_adam_computes_its_corrections_once():
    """Not in the loops over weights, where they would take most of the time."""
    weights = [torch.ones(2, 3, 40), torch.ones(2, 50)]
    adam = Adam(weights, lr=0.1)
    torch.compiler.reset()
    _, codes = run_and_get_code(torch.compile(lambda: adam.step([torch.ones_like(x) for x in weights])))
    assert "".join(codes).count("std::expm1(") == 2


@needs_cuda
def test_a_captured_update_is_the_eager_one():
    """Steps of two variants in turns, through warm-up, capture and replay; optimiser and target included."""
    torch.set_float32_matmul_precision("highest")
    device = torch.device("cuda", 0)
    results = []
    for capture in (False, True):
        torch.manual_seed(0)
        weight = torch.ones(2, 3, 4, device=device, requires_grad=True)
        target, adam = torch.zeros_like(weight), Adam([weight], lr=0.1)

        def update(x, due, weight=weight, target=target, adam=adam):
            loss = torch.bmm(x, weight).square().mean((1, 2))
            adam.minimise(loss)
            if due:
                with torch.no_grad():
                    target.lerp_(weight, 0.5)
            return {"loss": loss.detach()}

        function = Captured(torch.compile(update, dynamic=False)) if capture else update
        losses = []
        for k in range(14):
            x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(k)).to(device)
            losses.append(function(x, k % 2 == 0)["loss"].clone())
        results.append((torch.stack(losses), weight.detach(), target, adam.steps))
    for eager, replayed in zip(*results, strict=True):
        torch.testing.assert_close(eager, replayed, atol=1e-5, rtol=1e-5)


@needs_cuda
@pytest.mark.parametrize("script", ["sac", "dsac_t", "mdpo_off_policy", "mdpo_on_policy", "ppo", "trpo"])
def test_a_run_on_cuda_resembles_its_eager_self(script, train):
    short = {
        "env_id": "Pendulum-v1", "seeds": ("0", "1"), "total_steps": 120, "batch_size": 16, "hidden": (32, 32),
        "eval_every": 60, "eval_episodes": 1, "log_every": 10, "device": "cuda",
    }  # fmt: skip
    short |= {"horizon": 20} if is_on_policy(script) else {"learning_starts": 20}
    graph, eager = train(script, out="graph", **short), train(script, out="eager", eager=True, **short)
    for name, tensor in eager.parameters.items():
        if "agent/critic." in name:
            torch.testing.assert_close(tensor, graph.parameters[name], atol=2e-3, rtol=2e-2)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def step(self, x):
        return (self.weight * x).sum()


@needs_compiler
@pytest.mark.slow
def test_each_training_of_a_process_is_compiled():
    """PyTorch's own limit is eight, after which it goes on without compiling."""
    graphs = counters["stats"]["unique_graphs"]
    for _ in range(10):
        compiled(Scaled().step, torch.device("cpu"), compile_on_cpu=True)(torch.ones(3))
    assert counters["stats"]["unique_graphs"] == graphs + 10


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exc.InvalidCxxCompiler(), "No working C\\+\\+ compiler found in [^:]*: .*"),
        (exc.CppCompileError(["g++"], "In file included from a.h\na.cpp:1: error: no\nmore"), "a.cpp:1: error: no"),
        (ImportError("a.so: failed to map segment"), "a.so: failed to map segment"),
    ],
)
def test_a_machine_that_cannot_compile_is_said_in_a_sentence(error, said):
    def compiling():
        raise exc.InductorError(error, None)

    with pytest.raises(UserError, match=rf"^compiling failed \({said}\): mend .* TMPDIR.*TORCHINDUCTOR.*-compile"):
        compiled_at_first(compiling)()


def test_other_errors_of_a_first_call_keep_their_traceback():
    for error in (ValueError("wrong"), OSError("disk"), exc.InductorError(AssertionError("a bug"), None)):

        def function(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)):
            compiled_at_first(function)()
