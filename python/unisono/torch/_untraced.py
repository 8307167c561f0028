"""Keeps torch.compile out of the functions of this package, as it stays out of the C++ of other backends.

torch.compile follows every call that it meets into Python. It cannot follow one into the native library, and a
method of a backend is called between two pieces of a compiled function, where it must run as it is written.
"""

import sys
import types

from torch._C._dynamo import eval_frame

# Frames of a function, and of all that it calls, run as they are. Nothing is wrapped, so a call costs the same.
_AS_WRITTEN = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
_REASON = "the operations of unisono run outside of compiled code"


def leave_untraced(package):
    """Makes every function of the imported modules of a package one that torch.compile does not trace."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for function in functions_of(module, name):
                # A compiled function breaks its graph at a call that has this mark.
                function._torchdynamo_disable, function._torchdynamo_disable_msg = True, _REASON
                _run_as_written(function.__code__)


def functions_of(holder, module):
    """Yields the functions that a module, or a class in it, defines."""
    for value in list(vars(holder).values()):
        if isinstance(value, type) and value.__module__ == module:
            yield from functions_of(value, module)
        accessors = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
        for accessor in accessors:
            function = getattr(accessor, "__func__", accessor)
            if isinstance(function, types.FunctionType) and function.__module__ == module:
                yield function


def _run_as_written(code):
    eval_frame.set_code_exec_strategy(code, _AS_WRITTEN)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _run_as_written(constant)
