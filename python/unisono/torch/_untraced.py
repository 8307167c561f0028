"""Keeps torch.compile from tracing the functions of this package, as it does not trace C++ backends.

torch.compile traces every call of a Python function, but it cannot trace calls into the native library. A method of a
backend is called between two parts of a compiled function, where it must run unchanged.
"""

import sys
import types

from torch._C._dynamo import eval_frame

if hasattr(eval_frame, "_FrameExecStrategy"):
    # Marked functions, and all functions that they call, run unchanged. Nothing is wrapped, so a call takes no longer.
    _AS_WRITTEN = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
else:
    _AS_WRITTEN = None
_REASON = "the operations of unisono run outside of compiled code"


def leave_untraced(package):
    """Keeps torch.compile from tracing the functions of all imported modules of a package."""
    for name, module in list(sys.modules.items()):
        if _is_in(name, package):
            for function in _functions_of(module, package):
                # A compiled function breaks its graph at a call of a marked function.
                function._torchdynamo_disable, function._torchdynamo_disable_msg = True, _REASON
                _run_as_written(function.__code__)


def _is_in(module, package):
    return str(module).split(".")[0] == package


def _functions_of(holder, package):
    """Yields the package's functions in a module and its classes, and the functions that they wrap."""
    for value in list(vars(holder).values()):
        if isinstance(value, type) and _is_in(value.__module__, package):
            yield from _functions_of(value, package)
        accessors = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
        for accessor in accessors:
            function = getattr(accessor, "__func__", accessor)
            while isinstance(function, types.FunctionType) and _is_in(function.__module__, package):
                yield function
                function = getattr(function, "__wrapped__", None)


def _run_as_written(code):
    if _AS_WRITTEN is None:
        eval_frame.skip_code(code)
    else:
        eval_frame.set_code_exec_strategy(code, _AS_WRITTEN)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _run_as_written(constant)
