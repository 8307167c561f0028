"""A group for the manager of `torchft <https://pypi.org/project/torchft/>`_, which replaces ranks that die.

    from torchft import Manager
    from unisono.torch.torchft import ProcessGroupUnisono

    manager = Manager(pg=ProcessGroupUnisono(), ...)
"""

from torchft.process_group import ProcessGroupWrapper

from unisono.torch._backend import UnisonoBackend
from unisono.torch._connect import connect
from unisono.torch._group import UnisonoGroup


class ProcessGroupUnisono(ProcessGroupWrapper):
    """A group that the manager reconnects whenever its ranks change.

    Args:
        timeout: The longest time for which operations wait, and for which ranks wait to connect.
        settings: Settings by name, such as ``transport="tcp"``.
    """

    def __init__(self, timeout=None, **settings):
        super().__init__(*([] if timeout is None else [timeout]))
        self._settings = settings

    def _create_pg(self, store, rank, world_size):
        comm, store = connect(store, rank, world_size, self._timeout, self._settings)
        backend = UnisonoBackend(comm, store, self._timeout, f"torchft_quorum_{self._quorum_id}", self._settings)
        return UnisonoGroup(backend, store)

    def getBackendName(self):
        return "torchft-unisono"
