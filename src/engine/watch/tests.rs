use super::super::recorder::Owner;
use super::*;
use crate::call::Kind;
use unisono_cuda::DType;

const TIMEOUT: Duration = Duration::from_secs(10);

fn call(sequence: u64) -> Call {
    Call::new(sequence, Kind::SendRecv, DType::F32, None, 0, 1)
}

/// Rank 0 of three, in an operation.
fn watch() -> Watch {
    let host = "here".to_owned();
    let owner = Owner { communicator: 7, epoch: 0, rank: 0, ranks: 3, host, transport: "threads" };
    let mut watch =
        Watch::new(0, 3, TIMEOUT, (Arc::default(), Arc::new(Recorder::new(owner)), Arc::default()));
    watch.begin(call(4));
    watch
}

/// What a rank that gives up at `now` says of those that it waits for.
fn given_up(watch: &mut Watch, now: Duration) -> (Vec<(Rank, Option<Call>)>, Vec<Rank>) {
    watch.now = now;
    match watch.timed_out([1, 2].into_iter(), TIMEOUT).kind() {
        ErrorKind::Timeout { waiting_for, elsewhere, .. } => (waiting_for.clone(), elsewhere.clone()),
        other => panic!("{other}"),
    }
}

#[test]
fn words_count_for_a_while_and_then_no_more_wherever_they_were_said() {
    let mut watch = watch();
    let note = |note: Note, from| Event::Note { from, bytes: note.encode() };
    watch.hear(note(Note::Waiting(call(4)), 1)).unwrap();
    watch.hear(note(Note::Elsewhere(call(9)), 2)).unwrap();
    let (just, late) = (WORD_TIME - Duration::from_millis(1), WORD_TIME);
    assert_eq!(given_up(&mut watch, just), (vec![(1, Some(call(4))), (2, Some(call(9)))], vec![2]));
    #[cfg(feature = "gpu")]
    assert_eq!((watch.last_word(1), watch.last_word(2)), (Some(call(4)), None));
    assert_eq!(given_up(&mut watch, late), (vec![(1, None), (2, None)], vec![]));
    #[cfg(feature = "gpu")]
    assert_eq!(watch.last_word(1), None);
}

/// Keeps what is posted.
#[derive(Default)]
struct Board(Vec<Note>);

impl Control for Board {
    fn post(&mut self, note: &[u8]) {
        self.0.push(Note::decode(note).unwrap());
    }

    fn poll(&mut self) -> Option<Event> {
        None
    }
}

/// Its goodbye may be faster than the word of whoever failed.
#[test]
fn who_leaves_after_a_failure_that_others_told_of_says_why() {
    let (mut watch, mut board) = (watch(), Board::default());
    let kind = ErrorKind::Aborted { by: 1, reason: "it may".to_owned() };
    let note = Note::Failed { by: 1, kind: kind.clone() };
    let heard = watch.hear(Event::Note { from: 1, bytes: note.encode() }).unwrap_err();
    watch.spread(&mut board, &heard);
    assert_eq!(board.0, [], "whoever failed tells all others itself");
    watch.farewell(&mut board, Some(&heard));
    assert_eq!(board.0, [Note::Failed { by: 0, kind }, Note::Goodbye]);
}

#[test]
fn who_failed_itself_says_so_once_and_who_did_not_says_goodbye_alone() {
    let (mut watch, mut board) = (watch(), Board::default());
    let error = Error::new(ErrorKind::PeerLeft { peer: 2 });
    watch.spread(&mut board, &error);
    watch.farewell(&mut board, Some(&error));
    let failed = Note::Failed { by: 0, kind: error.kind().clone() };
    assert_eq!(board.0, [failed, Note::Goodbye]);

    board.0.clear();
    watch.farewell(&mut board, None);
    assert_eq!(board.0, [Note::Goodbye]);
}
