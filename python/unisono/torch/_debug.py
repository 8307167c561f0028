"""Pages of torch's debug server that show this backend. It needs packages that torch does not install."""

from tabulate import tabulate
from torch.distributed.debug._debug_handlers import FlightRecorderHandler, default_handlers
from torch.distributed.debug._frontend import fetch_all, format_fetch_summary
from torch.distributed.flight_recorder.components.types import Collective, Group, Membership, NCCLCall

from unisono.torch._profile import NAME


class FlightRecorderPages(FlightRecorderHandler):
    """The pages and files of the flight recorder. Their records are this backend's, unless a page requests others."""

    default_backend = NAME

    def dump(self):
        """Returns the text of a file. torch's own method writes only Gloo's records."""
        addresses, answers = fetch_all("fr_trace_json", f"backend={NAME}", timeout=self.fetch_timeout)
        records = self._build_db(addresses, answers)
        tables = [("Groups", records.groups, Group), ("Memberships", records.memberships, Membership),
                  ("Collectives", records.collectives, Collective), ("Calls", records.ncclcalls, NCCLCall)]  # fmt: skip
        texts = [format_fetch_summary(addresses, answers) or "", "=== FR Trace ==="]
        for title, rows, kind in tables:
            texts += [f"--- {title} ---", tabulate(rows, headers=kind._fields, tablefmt="plain")]
        return "\n".join(texts)


def handlers():
    """Returns torch's handlers, in which the flight recorder of this backend replaces Gloo's."""
    return [FlightRecorderPages() if type(one) is FlightRecorderHandler else one for one in default_handlers()]
