use crate::engine::membership::agreement::{Phase, View};
use crate::engine::registry::RegisteredComm;
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
    assert_eq!(control.0, [ControlMsg::Failed { by: 0, kind }, ControlMsg::Finalized { reason: None }]);
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
    assert_eq!(control.0, [failed, ControlMsg::Finalized { reason: None }]);

    control.0.clear();
    watchdog.goodbye(&mut control, None);
    assert_eq!(control.0, [ControlMsg::Finalized { reason: None }]);
}

/// A communicator that has nothing to announce.
struct SilentComm;

impl RegisteredComm for SilentComm {
    fn notify_blocked(&self, _: OpDesc) {}
}

/// Returns the reason in the goodbye of a communicator that has not failed.
fn told_reason(watchdog: &Watchdog) -> Option<String> {
    let mut control = RecordingControl::default();
    watchdog.goodbye_without_error(&mut control);
    match &control.0[..] {
        [ControlMsg::Finalized { reason }] => reason.clone(),
        other => panic!("{other:?}"),
    }
}

const RELATED_FAILURE: &str = "a related communicator of 3 ranks failed: rank 1 is gone (it was killed)";

#[test]
fn watchdog_goodbye_tells_unhandled_failure_elsewhere() {
    let (failed, mut healthy) = (watchdog_of_three(), watchdog_of_three());
    healthy.registry = Arc::clone(&failed.registry);
    failed.record_failure(&Error::new(ErrorKind::shrunk(1, &[])));
    assert_eq!(told_reason(&healthy), None, "a shrink without a failure is none");
    failed.record_failure(&Error::new(ErrorKind::PeerFailed { peer: 1, what: "it was killed".to_owned() }));
    failed.record_failure(&Error::new(ErrorKind::PeerFinalized { peer: 2 }));
    assert_eq!(told_reason(&healthy).as_deref(), Some(RELATED_FAILURE));
    let made: Arc<dyn RegisteredComm> = Arc::new(SilentComm);
    healthy.registry.register(Arc::downgrade(&made));
    assert_eq!(told_reason(&healthy), None, "a rank that makes a communicator goes on");
}

#[test]
fn watchdog_reports_why_an_awaited_peer_left() {
    let mut watchdog = watchdog_of_three();
    for (peer, reason) in [(1, None), (2, Some(RELATED_FAILURE.to_owned()))] {
        let bytes = ControlMsg::Finalized { reason }.encode();
        watchdog.on_event(PeerEvent::Message { from: peer, bytes }).unwrap();
    }
    let late = FINALIZE_GRACE + Duration::from_millis(1);
    watchdog.check_failed(std::iter::empty(), late).expect("nobody waits for them");
    watchdog.check_failed([1, 2].into_iter(), FINALIZE_GRACE).expect("data may still arrive");
    let error = watchdog.check_failed([1, 2].into_iter(), late).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::left_after(2, RELATED_FAILURE));

    let what = "it closed its data connection".to_owned();
    let lost = Error::new(ErrorKind::PeerFailed { peer: 2, what });
    let cause = watchdog.root_cause(&mut RecordingControl::default(), lost);
    assert_eq!(*cause.kind(), ErrorKind::left_after(2, RELATED_FAILURE));

    watchdog.record_failure(&error);
    assert_eq!(watchdog.related_failure().as_deref(), Some(RELATED_FAILURE), "it does not grow");
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
