"""Compiled update functions, and settings that make small networks fast on a CPU."""

import contextlib
import ctypes
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from algos.errors import UserError
from algos.signals import interruptible
from algos.threads import children, thread_count

Context = Callable[[], contextlib.AbstractContextManager]

WARM_UP = 3  # eager calls before a capture: they make optimiser states and library workspaces


class Captured:
    """A function of tensors, replayed as a CUDA graph: one launch for everything in it, optimiser steps included.

    Arguments may be tensors, tuples, NamedTuples, lists and dictionaries of them, and plain values. Tensors are copied
    into fixed places; plain values select a variant, and each variant is captured by itself. The first calls of a
    variant run eagerly, on the capture stream, and count as calls like any other. Each call overwrites the result of
    the one before, so read that, or add it up, first. The function must not touch the host.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.variants: dict[tuple, Variant] = {}
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree_flatten(args)
        key = variant_of(leaves, structure)
        if key not in self.variants:
            self.variants[key] = Variant(self, Places(leaves, structure))
        return self.variants[key](leaves)


def variant_of(leaves: list[Any], structure: TreeSpec) -> tuple:
    """Two calls with the same key can share one CUDA graph: only the contents of their tensors differ."""
    return (structure, *((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else (type(x), x) for x in leaves))


class Places:
    """Arguments of a function whose tensors keep their places in memory, for a CUDA graph to read."""

    def __init__(self, leaves: list[Any], structure: TreeSpec):
        self.leaves = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if isinstance(x, Tensor) else x for x in leaves
        ]
        self.args: tuple = tree_unflatten(self.leaves, structure)

    def fill(self, leaves: list[Any]) -> None:
        """Copies the tensors of another call with the same structure into their places."""
        for place, leaf in zip(self.leaves, leaves, strict=True):
            if isinstance(leaf, Tensor):
                place.copy_(leaf)


class Variant:
    """A captured function for one set of plain values, shapes and types."""

    def __init__(self, owner: Captured, places: Places):
        self.owner, self.places, self.calls, self.graph = owner, places, 0, torch.cuda.CUDAGraph()

    def __call__(self, leaves: list[Any]) -> Any:
        self.places.fill(leaves)
        self.calls += 1
        if self.calls <= WARM_UP:
            self.owner.stream.wait_stream(torch.cuda.current_stream())
            first = compiling() if self.calls == 1 else contextlib.nullcontext()
            with first, torch.cuda.stream(self.owner.stream):
                result = self.owner.function(*self.places.args)
            torch.cuda.current_stream().wait_stream(self.owner.stream)
            return result
        if self.calls == WARM_UP + 1:
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, pool=self.owner.pool, stream=self.owner.stream):
                self.result = self.owner.function(*self.places.args)
        self.graph.replay()
        return self.result


def compiled(
    function: Callable[..., Any],
    device: torch.device,
    compile_on_cpu: bool = False,
    eager: bool = False,
    busy: Context = contextlib.nullcontext,
) -> Callable[..., Any]:
    """A function compiled and captured on CUDA, or compiled on a CPU if `compile_on_cpu`; unchanged if `eager`.

    It is compiled in its first call, and for some functions again in a later one, inside a context that `busy` makes.
    Raises UserError where a compiler is missing.
    """
    if eager or (device.type == "cpu" and not compile_on_cpu):
        return function
    check_compiler(device)
    import torch._dynamo.config as dynamo  # not at the top, because it takes a second
    import torch._inductor.config as inductor

    dynamo.trace_autograd_ops = True  # gradients and steps become part of one graph
    dynamo.recompile_limit = max(dynamo.recompile_limit, 64)  # each training of a process compiles; from then on, none
    if device.type == "cpu":
        if not shutil.which("openssl"):  # with which torch names compiled headers
            inductor.cpp_cache_precompile_headers = False
        backend = with_threads(torch.get_num_threads(), busy)
        options: dict[str, Any] = {"guard_filter_fn": without_threads}
        return compiled_at_first(torch.compile(function, dynamic=False, backend=backend, options=options), busy)
    fast = torch.compile(function, dynamic=False, options={"triton.cudagraphs": False})  # see Captured
    return Captured(compiled_at_first(fast, busy))


def check_compiler(device: torch.device) -> None:
    """Raises UserError if what compiles for a device lacks a compiler or Python's headers. On CUDA, that is Triton.

    It looks where torch and Triton look on Linux and macOS, and leaves other systems to them.
    """
    if sys.platform not in ("linux", "darwin"):
        return
    if device.type == "cpu":
        why, language, variable, instead = "--compile", "C++", "CXX", "--no-compile"
        names = ["g++" if sys.platform == "linux" else "clang++"]
    else:
        why, language, variable, instead = "CUDA", "C", "CC", "--eager"
        names = ["gcc", "clang"]
    if os.environ.get(variable):
        names = [os.environ[variable]]
    if not any(shutil.which(name) for name in names):
        missing = f"{' or '.join(names)} is not on the PATH"
        raise UserError(
            f"{why} needs a {language} compiler, and {missing}: install one, set {variable}, or give {instead}"
        )
    folders = [sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix")]
    for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"):
        folders += os.environ.get(name, "").split(os.pathsep)
    if sys.platform == "linux" and not any(Path(folder, "Python.h").exists() for folder in folders):
        raise UserError(
            f"{why} needs the headers of Python, and there is no {Path(folders[0], 'Python.h')}: install them "
            f"(python3-dev on Debian and Ubuntu), or give {instead}"
        )
    # torch puts these into the compiler's command line as they are
    paths = [str(Path(torch.__file__).parent), sysconfig.get_config_var("LIBDIR") or "", tempfile.gettempdir()]
    paths.append(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if device.type == "cpu" and (spaced := next((path for path in paths if re.search(r"\s", path)), "")):
        raise UserError(
            f"{why} fails where a path has a space, as {spaced!r} has: take a Python and a virtual environment in "
            f"folders without one, set TMPDIR (and TORCHINDUCTOR_CACHE_DIR, if it is set), or give {instead}"
        )


def can_compile() -> bool:
    """Whether this machine has what compiles for its CPU, as far as `check_compiler` knows."""
    try:
        check_compiler(torch.device("cpu"))
    except UserError:
        return False
    return True


def compiled_at_first(function: Callable[..., Any], busy: Context = contextlib.nullcontext) -> Callable[..., Any]:
    """Wraps a function that compiles in its first call, and perhaps again for other plain values: see `compiling`.

    A call raises UserError if the machine cannot compile, or cannot load what was compiled.
    """
    compiles = True

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiles
        try:
            if not compiles:
                return function(*args, **kwargs)
            with compiling(), busy():
                result = function(*args, **kwargs)
        except Exception as error:
            if why := fault_of_machine(error):
                raise UserError(
                    f"compiling failed ({why}): mend the compiler, set TMPDIR to a folder with room whose programs may "
                    "run (and TORCHINDUCTOR_CACHE_DIR, if it is set), or give --no-compile, or --eager on a GPU"
                ) from error
            raise
        compiles = False
        return result

    return call


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """While it is entered, a signal ends the program at once, with its compilers."""
    earlier = children()
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        stop_compilers(earlier)
        raise


def fault_of_machine(error: Exception) -> str:
    """What the machine lacks if an error of torch.compile says that it cannot compile; empty for other errors."""
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor import exc

    inner = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
    faults = exc.InvalidCxxCompiler, exc.CppCompileError, exc.TritonMissing, exc.GPUTooOldForTriton
    if isinstance(inner, faults) or (
        inner is not error and isinstance(inner, OSError | ImportError | CalledProcessError)
    ):
        said = inner.output if isinstance(inner, exc.CppCompileError) else str(inner)
        lines = [line.strip() for line in said.splitlines() if line.strip()] or [type(inner).__name__]
        return next((line for line in lines if "error" in line.lower()), lines[0])
    return ""


def stop_compilers(earlier: set[psutil.Process]) -> None:
    """Ends the compilers that are at work, and what waits for them: the program would end after all of it only.

    Children of this process that were there `earlier` are none of them.
    """
    from torch._inductor.async_compile import AsyncCompile

    if AsyncCompile.pool.cache_info().currsize:  # none is made on a single core
        AsyncCompile.pool().shutdown(wait=False, cancel_futures=True)
        AsyncCompile.pool.cache_clear()  # a program that goes on can compile again
    for child in children() - earlier:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def captured(function: Callable[..., Any], device: torch.device, eager: bool = False) -> Callable[..., Any]:
    """A function captured on CUDA as it is, for what takes a compiler minutes; unchanged on a CPU, and if `eager`."""
    return function if eager or device.type == "cpu" else Captured(function)


def without_threads(guards: Sequence[Any]) -> list[bool]:
    """Drops the condition by which a function is compiled again when the number of threads changes.

    That condition also covers torch's global settings, which a run does not change.
    """
    return [guard.guard_type != "GLOBAL_STATE" for guard in guards]


# Two threads share a loop of 16,384 elements or more. Below that, a barrier costs more than it gains, and a short sum
# is the same with any number of threads, which `algos.threads` changes while a run goes on.
CPU_OPTIONS: dict[str, Any] = {"cpp.min_chunk_size": 8192}


def with_threads(threads: int, busy: Context) -> Callable[..., Any]:
    """A backend of torch.compile whose kernels can use this many threads, even if the run has fewer at the moment.

    Kernels that are compiled while there is one thread would stay on one.
    """

    def compile_graph(graph: Any, inputs: Any, **options: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx  # here, because it takes a second

        with thread_count(threads), compiling(), busy():
            return compile_fx(graph, inputs, config_patches=CPU_OPTIONS)

    return compile_graph


def tune_cpu() -> None:
    """Settings that make small networks fast on a CPU without changing what is computed, beyond float32 rounding."""
    keep_memory()
    use_fast_products()


def keep_memory() -> None:
    """Lets glibc keep freed memory instead of giving it back to the system, and asking for it again, at every step."""
    trim_threshold, mmap_threshold = -1, -3  # names of mallopt's parameters
    with contextlib.suppress(OSError, AttributeError):  # the C library is another one
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for products in bfloat16, AVX-512 BF16 or ARM's, and PyTorch uses them.

    Without them, PyTorch's products in bfloat16 take many times as long as those in float32.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported()  # processors with AMX have it too
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def use_fast_products() -> None:
    """Lets oneDNN instead of MKL multiply float32 matrices, where that keeps float32's accuracy.

    MKL keeps to AVX2 on processors that are not Intel's; oneDNN uses AVX-512 and is about twice as fast there. PyTorch
    hands float32 products to oneDNN only with the permission to round them to bfloat16, which oneDNN uses on processors
    with AMX alone. So a product is measured, and the permission withdrawn if it was used.
    """
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, settings.fp32_precision = settings.fp32_precision, "bf16"
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 256, 256, generator=generator, dtype=torch.float32) for _ in range(2))
    error = (torch.bmm(a, b).double() - torch.bmm(a.double(), b.double())).abs().max()
    if error > 1e-3:  # float32: about 5e-5; bfloat16: about 0.2
        settings.fp32_precision = before
