"""What a rank tells of its calls when ranks made different ones (section 35)."""

from ..call import Call, Kind, Operation
from ..control import Control, ControlError, messages


def text_of(call: Call) -> str:
    """As all ranks say it (rule 22.12)."""
    if call.kind is Kind.BARRIER:
        return "barrier()"
    if call.kind is Kind.BROADCAST:
        how = f"from {call.detail}"
    else:
        how = Operation(call.detail).name.lower()
    return f"{call.kind.name.lower()}({how}, {call.element.name.lower()}, {call.count})"


def report_call(control: Control, number: int, call: Call, named: list[int]) -> str:
    """After a MISMATCH; why the job was aborted. Numbers are from 1 here."""
    calls = [messages.Call(number=number + 1, call=text_of(call))]
    control.stub.ReportCalls(
        messages.ReportCallsRequest(member=control.member, calls=calls, named=named),
        timeout=control.patience,
    )
    try:
        control.wait_for("aborted")
    except ControlError as error:
        return str(error)
    return "not aborted"
