use crate::engine::membership::agreement::{Phase, View};
use crate::engine::telemetry::flight::Owner;
use crate::engine::watchdog::peer_state::REPORT_TTL;
use crate::engine::watchdog::*;
use crate::op_desc::OpKind;
use crate::schedule::Collective;
use unisono_reducers::DType;

const TIMEOUT: Duration = Duration::from_secs(10);

fn call(sequence: u64) -> OpDesc {
    OpDesc::new(sequence, OpKind::SendRecv, DType::F32, None, 0, 1)
}

/// Returns the watchdog of rank 0 of three, in an operation.
fn watchdog_of_three() -> Watchdog {
    let host = "here".to_owned();
    let owner = Owner { communicator: 7, epoch: 0, rank: 0, ranks: 3, host, transport: "threads" };
    let mut watchdog =
        Watchdog::new(0, 3, TIMEOUT, (Arc::default(), Arc::new(Recorder::new(owner)), Arc::default()));
    watchdog.begin_op(call(4));
    watchdog
}

/// Returns the ranks waited for, and those that wait elsewhere, in the timeout error at `now`.
fn timeout_report(watchdog: &mut Watchdog, now: Duration) -> (Vec<(Rank, Option<OpDesc>)>, Vec<Rank>) {
    watchdog.now = now;
    match watchdog.timeout_error([1, 2].into_iter(), TIMEOUT).kind() {
        ErrorKind::Timeout { waiting_for, elsewhere, .. } => (waiting_for.clone(), elsewhere.clone()),
        other => panic!("{other}"),
    }
}

#[test]
fn watchdog_reports_expire_after_ttl() {
    let mut watchdog = watchdog_of_three();
    let event = |message: ControlMsg, sender| PeerEvent::Message { from: sender, bytes: message.encode() };
    watchdog.on_event(event(ControlMsg::Waiting(call(4)), 1)).unwrap();
    watchdog.on_event(event(ControlMsg::WaitingElsewhere(call(9)), 2)).unwrap();
    let (in_time, late) = (REPORT_TTL - Duration::from_millis(1), REPORT_TTL);
    assert_eq!(
        timeout_report(&mut watchdog, in_time),
        (vec![(1, Some(call(4))), (2, Some(call(9)))], vec![2])
    );
    #[cfg(feature = "gpu")]
    assert_eq!((watchdog.last_report(1), watchdog.last_report(2)), (Some(call(4)), None));
    assert_eq!(timeout_report(&mut watchdog, late), (vec![(1, None), (2, None)], vec![]));
    #[cfg(feature = "gpu")]
    assert_eq!(watchdog.last_report(1), None);
}

/// A control channel that records what is posted.
#[derive(Default)]
struct RecordingControl(Vec<ControlMsg>);

impl ControlChannel for RecordingControl {
    fn post(&mut self, message: &[u8]) {
        self.0.push(ControlMsg::decode(message, 3).unwrap());
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        None
    }
}

/// The goodbye of a rank may arrive before the message of the rank that failed.
#[test]
fn watchdog_goodbye_repeats_error_heard_from_peer() {
    let (mut watchdog, mut control) = (watchdog_of_three(), RecordingControl::default());
    let kind = ErrorKind::abort_request(1, "it may");
    let message = ControlMsg::Failed { by: 1, kind: kind.clone() };
    let received = watchdog.on_event(PeerEvent::Message { from: 1, bytes: message.encode() }).unwrap_err();
    watchdog.broadcast_error(&mut control, &received);
    assert_eq!(control.0, [], "the rank that failed tells all others itself");
    watchdog.goodbye(&mut control, Some(&received));
    assert_eq!(control.0, [ControlMsg::Failed { by: 0, kind }, ControlMsg::Finalized]);
}

/// A rank that hears of a failure from a peer may shrink before the peer's message arrives at all.
#[test]
fn watchdog_repeats_error_of_peer_before_a_shrink() {
    let (mut watchdog, mut control) = (watchdog_of_three(), RecordingControl::default());
    let kind = ErrorKind::PeerFailed { peer: 2, what: "it is gone".to_owned() };
    let message = ControlMsg::Failed { by: 1, kind: kind.clone() };
    let received = watchdog.on_event(PeerEvent::Message { from: 1, bytes: message.encode() }).unwrap_err();
    watchdog.broadcast_error(&mut control, &received);
    watchdog.repeat_error(&mut control, &received);
    assert_eq!(control.0, [ControlMsg::Failed { by: 0, kind }]);
}

#[test]
fn watchdog_names_failed_ranks_of_a_peer_that_shrinks() {
    let cause_of = |failed: Vec<bool>| {
        let (phase, endpoint) = (Phase::Proposing, String::new());
        let view = View { attempt: 0, phase, failed, endpoint, settings: 0, value: 0 };
        let bytes = ControlMsg::Membership(view).encode();
        watchdog_of_three().on_event(PeerEvent::Message { from: 1, bytes }).unwrap_err()
    };
    let known = cause_of(vec![false, false, true]).with_rank(0, "here", None);
    assert_eq!((known.peer(), known.is_recoverable()), (Some(2), true), "{known}");
    let unknown = cause_of(vec![false; 3]).with_rank(0, "here", None);
    assert_eq!((unknown.peer(), unknown.is_recoverable()), (Some(1), true), "{unknown}");
    assert!(matches!(cause_of(vec![true, false, false]).kind(), ErrorKind::Excluded { by: 1 }));
}

#[test]
fn watchdog_sends_own_error_once_before_goodbye() {
    let (mut watchdog, mut control) = (watchdog_of_three(), RecordingControl::default());
    let error = Error::new(ErrorKind::PeerFinalized { peer: 2 });
    watchdog.broadcast_error(&mut control, &error);
    watchdog.goodbye(&mut control, Some(&error));
    let failed = ControlMsg::Failed { by: 0, kind: error.kind().clone() };
    assert_eq!(control.0, [failed, ControlMsg::Finalized]);

    control.0.clear();
    watchdog.goodbye(&mut control, None);
    assert_eq!(control.0, [ControlMsg::Finalized]);
}

fn broadcast(sequence: u64, root: Rank) -> OpDesc {
    OpDesc::new(sequence, OpKind::Collective(Collective::Broadcast), DType::F32, None, root, 8)
}

/// Reads that rank 1 called a broadcast from itself.
fn tell(watchdog: &mut Watchdog, sequence: u64) -> Result<()> {
    let bytes = ControlMsg::Called(broadcast(sequence, 1)).encode();
    watchdog.on_event(PeerEvent::Message { from: 1, bytes })
}

/// A rank that is ahead may tell its calls before this rank has made any of them.
#[test]
fn watchdog_compares_told_calls_once_it_has_made_them() {
    for early in 0..=5 {
        let mut watchdog = watchdog_of_three();
        (1..=early).for_each(|sequence| tell(&mut watchdog, sequence).unwrap());
        (1..=5).for_each(|sequence| watchdog.recorder.begin(sequence, &broadcast(sequence, 0)));
        let found = match early {
            5 => watchdog.read_events(&mut RecordingControl::default()),
            _ => tell(&mut watchdog, early + 1),
        };
        let (op, other_op) = (broadcast(1, 0), broadcast(1, 1));
        let expected = ErrorKind::Mismatch { rank: 0, op, other: 1, other_op };
        assert_eq!(*found.unwrap_err().kind(), expected, "{early} calls told early");
    }
}

#[test]
fn watchdog_keeps_few_told_calls_of_a_peer() {
    let mut watchdog = watchdog_of_three();
    (1..=1000).for_each(|sequence| tell(&mut watchdog, sequence).unwrap());
    assert_eq!(watchdog.told_calls.len(), CALLS_TOLD);
}

#[test]
fn watchdog_forgets_told_calls_that_it_makes_alike() {
    let mut watchdog = watchdog_of_three();
    watchdog.recorder.begin(1, &broadcast(1, 1));
    tell(&mut watchdog, 1).unwrap();
    assert!(watchdog.told_calls.is_empty());
    tell(&mut watchdog, 2).unwrap();
    watchdog.recorder.begin(2, &broadcast(2, 1));
    watchdog.read_events(&mut RecordingControl::default()).unwrap();
}
