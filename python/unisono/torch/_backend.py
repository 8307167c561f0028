"""The backend, which carries out every operation of torch as steps of a native communicator."""

import json
import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Backend

from unisono import _native
from unisono.errors import Aborted, Error, InvalidUsage, Timeout
from unisono.torch import _lists, _monitor, _sparse
from unisono.torch._coalescing import Coalescing
from unisono.torch._exchange import Exchanges
from unisono.torch._forms import accept_all_forms
from unisono.torch._profile import NAME, entry
from unisono.torch._subgroups import Subgroups
from unisono.torch._tensors import Staged, carrier, direct, even, is_usable, parts, reducible, reduction_of
from unisono.torch._versions import HAS_BACKENDS
from unisono.torch._whole_group import PlainBackend
from unisono.torch._work import UnisonoWork

_BARRIER = _native.Operation.even("barrier", "uint8", [], [])


class UnisonoBackend(Exchanges, Subgroups, Coalescing, Backend if HAS_BACKENDS else PlainBackend):
    """The operations of one rank of a group.

    Args:
        comm: The native communicator.
        store: The group's store, for the monitored barrier and for groups of its ranks.
        timeout: The time for which operations may wait.
        group: The name of the group.
        settings: The settings of the user, by name. Groups of its ranks have them as well.
    """

    # The work of a thread's last call, which the group takes from here at once. Nothing may stay here, because it would
    # be dropped when the thread ends.
    last_work = threading.local()
    hands_over_work = False
    # True in a group of several backends, which then takes the work of a receive of any source from `last_work`.
    is_one_of_several = False

    # torch's trampoline reads these attributes, and the inherited properties would call the trampoline again. No Python
    # class can be a window, because torch gives `Window` no constructor.
    supports_window = _supports_time_estimate = False

    def __init__(self, comm, store, timeout, group, settings=None):
        super().__init__(comm.rank, comm.size)
        self._comm, self._store, self._timeout = comm, store, timeout
        self._group, self._sequence, self._monitored = group, 0, 0
        self._settings = dict(settings or {})
        # Timeout in seconds of calls that give none, if it differs from the communicator's timeout.
        self._seconds = None

    # -- Methods of every torch backend ------------------------------------------------------

    def getBackendName(self):
        return NAME

    name = getBackendName

    # torch's own methods return the values of the constructor, but `reconfigure` changes these values.
    def rank(self):
        return self._comm.rank

    def size(self):
        return self._comm.size

    @property
    def options(self):
        options = Backend.Options(NAME, self._timeout)
        options._timeout = self._timeout
        return options

    def set_timeout(self, timeout):
        """Sets the time for which later operations may wait."""
        self._timeout, self._seconds = timeout, timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        """Does nothing, because all ranks count from 0."""

    def _get_sequence_number_for_group(self):
        return self._sequence

    def eager_connect_single_device(self, device):
        """Does nothing, because ranks are connected when the group is made."""

    def abort(self):
        """Ends the operations of this group on all ranks, with an error."""
        try:
            self._comm.abort(f"torch called abort on the group `{self._group}`")
        except InvalidUsage:
            pass  # It has been shut down before.

    def get_error(self):
        """Returns the kind of error that ended the group, as torch names it. `abort` by the program is no error."""
        kinds, error = torch._C._distributed_c10d.ErrorType, self._comm.error()
        if error is None or (isinstance(error, Aborted) and not error.is_recoverable):
            return kinds.SUCCESS
        return kinds.TIMEOUT if isinstance(error, Timeout) else kinds.COMM_ERROR

    def shutdown(self):
        """Leaves the group."""
        self._comm.close()

    @property
    def store(self):
        """The part of torch's store that is this group's."""
        return self._store

    def flight_record(self):
        """Returns the last operations of this rank, as JSON."""
        return self._comm.flight_record()

    # -- Starting ------------------------------------------------------------------------------

    def _start(self, title, steps, inputs, results, opts=None, finish=None, keep=None):
        """Starts steps. If torch is going to wait for them at once, runs them instead.

        Args:
            title: The name in torch's profiler.
            inputs: The tensors whose shapes the profiler shows.
            results: The tensors that the work returns.
            finish: The function to call after the steps, or None.
            keep: The owners of the memory.
        """
        self._sequence += 1
        native = error = None
        seconds = self._seconds_of(opts)
        with entry(title, inputs):
            try:
                if getattr(opts, "asyncOp", True):
                    native = self._comm.start(steps, (inputs, results, keep), seconds)
                else:
                    self._comm.run(steps, seconds)
            except Error as failure:
                error = self._with_timeout(failure, seconds)
        explain = None if native is None else lambda failure: self._with_timeout(failure, seconds)
        return self._returned(UnisonoWork(native, results, finish, error, self._waits_for, None, explain))

    def _returned(self, work):
        if self._together is not None:
            self._together.append(work)
        if self.hands_over_work or getattr(self.last_work, "is_wanted", False):
            self.last_work.work = work
        return work

    def own_work_of(self, call, *arguments, **named):
        """Makes a call of torch that calls a method of this backend, and returns the backend's work, not torch's."""
        last = self.last_work
        last.work, last.is_wanted = None, True
        try:
            returned = call(self, *arguments, **named)
        finally:
            work, last.work, last.is_wanted = last.work, None, False
        return returned if work is None else work

    def _with_timeout(self, error, seconds):
        """Adds torch's words to a timeout error, because programs search for "timeout" and "timed out"."""
        if isinstance(error, Timeout) and "timed out" not in str(error):
            seconds = seconds or self._comm.timeout
            error.args = (f"{error} (it timed out: the timeout of this call on `{self._group}` is {seconds} s)",)
        return error

    def _seconds_of(self, opts):
        """Returns the timeout of a call in seconds, or None to use the communicator's timeout."""
        given = getattr(opts, "timeout", None)
        if isinstance(given, timedelta) and given > timedelta(0) and given != self._timeout:
            return given.total_seconds()
        return self._seconds

    def _waits_for(self):
        """Returns the rank for which the oldest unfinished operation waited last, as text, or ""."""
        record = json.loads(self._comm.flight_record())
        for operation in record["operations"]:
            if operation["state"] == "started" and operation["peer"] is not None:
                return f"rank {self.rank()} in {operation['call']} last waited for rank {operation['peer']}"
        return ""

    def _reduce(self, collective, inputs, outputs, opts, root=0):
        """Starts a reduction from inputs to outputs. Both are lists, or lists of lists, of pairs."""
        steps, keep, left, where = [], [], [], self._where(collective)
        has_results = collective != "reduce" or root == self.rank()
        for sources, targets in zip(inputs, outputs, strict=True):
            staged, dtype = Staged(where, [*sources, *targets]), sources[0].dtype
            reducible(dtype, where)
            reduction = reduction_of(opts.reduceOp, dtype)
            same = len(sources) == len(targets) and all(a is b for a, b in zip(sources, targets, strict=True))
            targets = [staged.output(tensor) if has_results else staged.input(tensor) for tensor in targets]
            sources = targets if same else [staged.input(tensor) for tensor in sources]
            steps.append(even(collective, dtype, sources, targets, reduction, root))
            keep.append((sources, targets))
            left.append(staged.finish)
        return steps, keep, _all_of(left)

    def _move(self, collective, inputs, outputs, root=0, lists=False):
        """Returns the step of a move of tensors, the tensors to keep, and the function to call afterwards.

        If `lists` is true, each share is a separate tensor on the side that has several shares.
        """
        step = direct(collective, inputs, outputs, None, root, lists)
        if step is not None:
            return step, (inputs, outputs), None
        staged = Staged(self._where(collective), [*inputs, *outputs])
        outputs = staged.outputs(outputs)
        inputs = [staged.input(tensor) for tensor in inputs]
        dtype = (inputs or outputs)[0].dtype
        return even(collective, dtype, inputs, outputs, None, root, lists), (inputs, outputs), staged.finish

    # -- Reductions ----------------------------------------------------------------------------

    def allreduce(self, tensors, opts):
        if len(tensors) != 1:
            return self._all_reduce_list(tensors, opts)
        step = direct("all_reduce", tensors, tensors, opts.reduceOp)
        if step is not None:
            return self._start("all_reduce", [step], tensors, tensors, opts)
        if tensors[0].is_sparse:
            return self.allreduce_sparse(tensors, opts)
        return self._all_reduce_by_type(tensors, opts)

    def _all_reduce_list(self, tensors, opts):
        if tensors and tensors[0].is_sparse:
            return self.allreduce_sparse(tensors, opts)
        step, keep, finish = _lists.all_reduce(tensors, opts, self._where("all_reduce"))
        return self._start("all_reduce", [step], tensors, tensors, opts, finish, keep)

    def allreduce_coalesced(self, tensors, opts):
        step = direct("all_reduce", tensors, tensors, opts.reduceOp)
        if step is not None:
            return self._start("all_reduce", [step], tensors, tensors, opts)
        return self._all_reduce_by_type(tensors, opts)

    def _all_reduce_by_type(self, tensors, opts):
        groups = _by_type(tensors)
        steps, keep, finish = self._reduce("all_reduce", groups, groups, opts)
        return self._start("all_reduce", steps, tensors, tensors, opts, finish, keep)

    def allreduce_sparse(self, tensors, opts):
        work = _sparse.all_reduce(self, tensors, opts)
        return self._returned(work)

    def reduce(self, tensors, opts):
        root = self._root(opts, "reduce")
        if len(tensors) != 1:
            raise InvalidUsage(f"{self._where('reduce')}: a call takes one tensor, not {len(tensors)}; call it for each")
        step = direct("reduce", tensors, tensors, opts.reduceOp, root)
        if step is not None:
            return self._start("reduce", [step], tensors, tensors, opts)
        steps, keep, finish = self._reduce("reduce", [tensors], [tensors], opts, root)
        return self._start("reduce", steps, tensors, tensors, opts, finish, keep)

    def reduce_scatter(self, outputs, inputs, opts):
        pairs = zip(inputs, outputs, strict=True)
        if any(tensor.numel() != output.numel() for tensors, output in pairs for tensor in tensors):
            return self._uneven_reduce_scatter(outputs, inputs, opts)
        return self._reduce_scatter(list(inputs), [[output] for output in outputs], outputs, opts)

    def reduce_scatter_single(self, output, input, opts):
        step = direct("reduce_scatter", [input], [output], opts.reduceOp)
        if step is not None:
            return self._start("reduce_scatter", [step], [input], [output], opts)
        return self._reduce_scatter([[input]], [[output]], [output], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        singles = [[tensor] for tensor in inputs], [[tensor] for tensor in outputs]
        return self._reduce_scatter(*singles, outputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(self, inputs, outputs, results, opts):
        steps, keep, finish = self._reduce("reduce_scatter", inputs, outputs, opts)
        return self._start("reduce_scatter", steps, _flat(inputs), results, opts, finish, keep)

    def _uneven_reduce_scatter(self, outputs, inputs, opts):
        moves = [self._reduce_uneven(output, tensors, opts) for output, tensors in zip(outputs, inputs, strict=True)]
        return self._start_moves("reduce_scatter", moves, _flat(inputs), outputs, opts)

    def _reduce_uneven(self, output, tensors, opts):
        where, counts = self._where("reduce_scatter"), [tensor.numel() for tensor in tensors]
        staged = Staged(where, [output, *tensors])
        target, sources = staged.output(output), [staged.input(tensor) for tensor in tensors]
        dtype = reducible(output.dtype, where)
        reduction = reduction_of(opts.reduceOp, output.dtype)
        step = _native.Operation.reduce_scatter_v(dtype, parts(sources), parts([target]), counts, reduction)
        return step, (sources, target), staged.finish

    # -- Moves ---------------------------------------------------------------------------------

    def broadcast(self, tensors, opts):
        root = self._root(opts, "broadcast")
        if len(tensors) == 1:
            step = direct("broadcast", tensors if self.rank() == root else [], tensors, None, root)
            if step is not None:
                return self._start("broadcast", [step], tensors, tensors, opts)
            return self._start_moves("broadcast", [self._broadcast_one(tensors[0], root)], tensors, tensors, opts)
        move = _lists.broadcast(tensors, opts, self.rank(), self._where("broadcast"))
        return self._start_moves("broadcast", [move], tensors, tensors, opts)

    def _broadcast_one(self, tensor, root):
        staged, at_root = Staged(self._where("broadcast"), [tensor]), self.rank() == root
        usable = staged.input(tensor) if at_root else staged.output(tensor)
        sources = [usable] if at_root else []
        step = even("broadcast", usable.dtype, sources, [usable], None, root)
        return step, usable, staged.finish

    def allgather(self, outputs, inputs, opts=None):
        moves = [self._gather_list(targets, source) for targets, source in zip(outputs, inputs, strict=True)]
        return self._start_moves("all_gather", moves, inputs, _flat(outputs), opts)

    def _gather_list(self, targets, source):
        lengths = [tensor.nbytes for tensor in targets]
        if len(set(lengths)) <= 1:
            return self._move("all_gather", [source], targets, lists=True)
        staged = Staged(self._where("all_gather"), [source, *targets])
        targets = staged.outputs(targets)
        source = staged.input(source)
        step = _native.Operation.all_gather_v(parts([source]), parts(targets), lengths, carrier(source.dtype))
        return step, (source, targets), staged.finish

    def allgather_coalesced(self, output_lists, inputs, opts):
        """Gathers several tensors. Output list r has the tensors of rank r."""
        moves = [
            self._gather_list([outputs[index] for outputs in output_lists], source)
            for index, source in enumerate(inputs)
        ]
        return self._start_moves("all_gather", moves, inputs, _flat(output_lists), opts)

    def all_gather_single(self, output, input, opts):
        return self._start_moves("all_gather", [self._move("all_gather", [input], [output])], [input], [output], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        pairs = zip(outputs, inputs, strict=True)
        moves = [self._move("all_gather", [source], [target]) for target, source in pairs]
        return self._start_moves("all_gather", moves, inputs, outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs, inputs, opts):
        root = self._root(opts, "gather")
        at_root = self.rank() == root
        targets = list(outputs[0]) if at_root else []
        if at_root and len(targets) != self.size():
            raise self._refused("gather", f"there are {len(targets)} outputs for {self.size()} ranks")
        move = self._move("gather", inputs, targets, root, lists=True)
        return self._start_moves("gather", [move], inputs, targets, opts)

    def gather_single(self, output, input, opts):
        root = self._root(opts, "gather")
        at_root = self.rank() == root
        move = self._move("gather", [input], [output] if at_root else [], root)
        return self._start_moves("gather", [move], [input], [output] if at_root else [], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs, inputs, opts):
        root = self._root(opts, "scatter")
        at_root = self.rank() == root
        sources = list(inputs[0]) if at_root else []
        if at_root and len(sources) != self.size():
            raise self._refused("scatter", f"there are {len(sources)} inputs for {self.size()} ranks")
        move = self._move("scatter", sources, outputs, root, lists=True)
        return self._start_moves("scatter", [move], sources, outputs, opts)

    def all_to_all_single(self, output, input, output_splits, input_splits, opts):
        # Calls with and without splits are the same operation, because one rank may give splits and another none.
        sends = self._row_bytes(input, input_splits, "input")
        receives = self._row_bytes(output, output_splits, "output")
        if is_usable(input, input.dtype) and is_usable(output, input.dtype):
            memory = parts([input]), parts([output])
            step = _native.Operation.all_to_all_v(*memory, sends, receives, carrier(input.dtype))
            return self._start("all_to_all", [step], [input], [output], opts)
        return self._all_to_all_v([output], [input], receives, sends, opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts):
        sizes = [[tensor.nbytes for tensor in tensors] for tensors in (outputs, inputs)]
        return self._all_to_all_v(outputs, inputs, *sizes, opts)

    def _row_bytes(self, tensor, splits, side):
        """Returns the bytes for each rank of a tensor that is split along its first dimension."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self._comm.size
        if not splits:
            if rows % size:
                raise self._refused("all_to_all", f"the {side} has {rows} rows, which do not divide by {size} ranks")
            return [tensor.nbytes // size] * size
        if len(splits) != size:
            raise self._refused("all_to_all", f"there are {len(splits)} {side} splits for {size} ranks")
        if min(splits) < 0:
            peer = next(peer for peer, split in enumerate(splits) if split < 0)
            raise self._refused("all_to_all", f"the {side} split of rank {peer} is {splits[peer]}, which is below zero")
        if sum(splits) != rows:
            raise self._refused("all_to_all", f"the {side} splits add up to {sum(splits)}, but it has {rows} rows")
        row = tensor.nbytes // rows if rows else 0
        return [count * row for count in splits]

    def _where(self, title):
        """Returns the beginning of an error text, which names the rank and the call."""
        return f"rank {self.rank()} in {title}"

    def _refused(self, title, what):
        return InvalidUsage(f"{self._where(title)}: {what}; correct the call; nothing was sent")

    def _root(self, opts, title):
        """Returns the root of a call, or raises an error that names it if there is no such rank."""
        root = opts.rootRank
        if not 0 <= root < self._comm.size:
            raise self._refused(title, f"the root is {root}, where ranks are 0 to {self._comm.size - 1}")
        return root

    def _all_to_all_v(self, outputs, inputs, receives, sends, opts):
        staged = Staged(self._where("all_to_all"), [*outputs, *inputs])
        dtype = carrier((*inputs, *outputs)[0].dtype)
        targets = staged.outputs(outputs)
        sources = [staged.input(tensor) for tensor in inputs]
        step = _native.Operation.all_to_all_v(parts(sources), parts(targets), sends, receives, dtype)
        return self._start_moves("all_to_all", [(step, (sources, targets), staged.finish)], inputs, outputs, opts)

    def barrier(self, opts=None):
        return self._start("barrier", [_BARRIER], [], [], opts)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        timeout = getattr(timeout, "timeout", timeout)  # torch calls it with options.
        timeout = self._timeout if timeout is None or timeout < timedelta(0) else timeout
        number, self._monitored = self._monitored, self._monitored + 1
        _monitor.barrier(self._store, number, self.rank(), self.size(), timeout, wait_all_ranks)

    def _start_moves(self, title, moves, inputs, results, opts):
        steps = [step for step, _, _ in moves]
        finish = _all_of([finish for _, _, finish in moves])
        return self._start(title, steps, inputs, results, opts, finish, [keep for _, keep, _ in moves])


if HAS_BACKENDS:
    accept_all_forms(UnisonoBackend)


def _all_of(left):
    """Returns one function that calls all functions for the end of several steps, or None if there are none."""
    left = [finish for finish in left if finish is not None]
    return (lambda: [finish() for finish in left]) if left else None


def _flat(lists):
    return [tensor for tensors in lists for tensor in tensors]


def _by_type(tensors):
    """Returns a list for each type of the tensors, in the order of their first tensors."""
    groups = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())
