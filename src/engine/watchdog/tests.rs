use crate::engine::telemetry::recorder::Owner;
use crate::engine::watchdog::*;
use crate::op_desc::OpKind;
use unisono_cuda::DType;

const TIMEOUT: Duration = Duration::from_secs(10);

fn call(sequence: u64) -> OpDesc {
    OpDesc::new(sequence, OpKind::SendRecv, DType::F32, None, 0, 1)
}

/// Rank 0 of three, in an operation.
fn watchdog() -> Watchdog {
    let host = "here".to_owned();
    let owner = Owner { communicator: 7, epoch: 0, rank: 0, ranks: 3, host, transport: "threads" };
    let mut watch =
        Watchdog::new(0, 3, TIMEOUT, (Arc::default(), Arc::new(Recorder::new(owner)), Arc::default()));
    watch.begin_op(call(4));
    watch
}

/// What a rank that gives up at `now` says of those that it waits for.
fn timeout_report(watch: &mut Watchdog, now: Duration) -> (Vec<(Rank, Option<OpDesc>)>, Vec<Rank>) {
    watch.now = now;
    match watch.timeout_error([1, 2].into_iter(), TIMEOUT).kind() {
        ErrorKind::Timeout { waiting_for, elsewhere, .. } => (waiting_for.clone(), elsewhere.clone()),
        other => panic!("{other}"),
    }
}

#[test]
fn watchdog_reports_expire_after_ttl() {
    let mut watch = watchdog();
    let note = |note: ControlMsg, from| PeerEvent::Message { from, bytes: note.encode() };
    watch.on_event(note(ControlMsg::Waiting(call(4)), 1)).unwrap();
    watch.on_event(note(ControlMsg::WaitingElsewhere(call(9)), 2)).unwrap();
    let (just, late) = (REPORT_TTL - Duration::from_millis(1), REPORT_TTL);
    assert_eq!(timeout_report(&mut watch, just), (vec![(1, Some(call(4))), (2, Some(call(9)))], vec![2]));
    #[cfg(feature = "gpu")]
    assert_eq!((watch.last_report(1), watch.last_report(2)), (Some(call(4)), None));
    assert_eq!(timeout_report(&mut watch, late), (vec![(1, None), (2, None)], vec![]));
    #[cfg(feature = "gpu")]
    assert_eq!(watch.last_report(1), None);
}

/// Keeps what is posted.
#[derive(Default)]
struct RecordingControl(Vec<ControlMsg>);

impl ControlChannel for RecordingControl {
    fn post(&mut self, note: &[u8]) {
        self.0.push(ControlMsg::decode(note).unwrap());
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        None
    }
}

/// Its goodbye may be faster than the word of whoever failed.
#[test]
fn watchdog_goodbye_repeats_error_heard_from_peer() {
    let (mut watch, mut board) = (watchdog(), RecordingControl::default());
    let kind = ErrorKind::Aborted { by: 1, reason: "it may".to_owned() };
    let note = ControlMsg::Failed { by: 1, kind: kind.clone() };
    let heard = watch.on_event(PeerEvent::Message { from: 1, bytes: note.encode() }).unwrap_err();
    watch.broadcast_error(&mut board, &heard);
    assert_eq!(board.0, [], "whoever failed tells all others itself");
    watch.goodbye(&mut board, Some(&heard));
    assert_eq!(board.0, [ControlMsg::Failed { by: 0, kind }, ControlMsg::Finalized]);
}

#[test]
fn watchdog_sends_own_error_once_before_goodbye() {
    let (mut watch, mut board) = (watchdog(), RecordingControl::default());
    let error = Error::new(ErrorKind::PeerFinalized { peer: 2 });
    watch.broadcast_error(&mut board, &error);
    watch.goodbye(&mut board, Some(&error));
    let failed = ControlMsg::Failed { by: 0, kind: error.kind().clone() };
    assert_eq!(board.0, [failed, ControlMsg::Finalized]);

    board.0.clear();
    watch.goodbye(&mut board, None);
    assert_eq!(board.0, [ControlMsg::Finalized]);
}
