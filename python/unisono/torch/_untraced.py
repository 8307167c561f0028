"""Keeps torch.compile out of the functions of this package, as it stays out of the C++ of other backends.

torch.compile follows every call that it meets into Python. It cannot follow one into the native library, and a
method of a backend is called between two pieces of a compiled function, where it must run as it is written.
"""

import sys
import types

from torch._C._dynamo import eval_frame

if hasattr(eval_frame, "_FrameExecStrategy"):
    # Frames of a function, and of all that it calls, run as they are. Nothing is wrapped, so a call costs the same.
    _AS_WRITTEN = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
else:
    _AS_WRITTEN = None
_REASON = "the operations of unisono run outside of compiled code"


def leave_untraced(package):
    """Makes every function of the imported modules of a package one that torch.compile does not trace."""
    for name, module in list(sys.modules.items()):
        if _is_in(name, package):
            for function in _functions_of(module, package):
                # A compiled function breaks its graph at a call that has this mark.
                function._torchdynamo_disable, function._torchdynamo_disable_msg = True, _REASON
                _run_as_written(function.__code__)


def _is_in(module, package):
    return str(module).split(".")[0] == package


def _functions_of(holder, package):
    """Yields the functions of a package that a module, or a class in it, has, with those that they wrap."""
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
