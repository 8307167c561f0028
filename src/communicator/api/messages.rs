//! Messages with tags: `isend`, `irecv` and `probe`.

use crate::communicator::calls::background;
use crate::communicator::calls::work::Completion;
use crate::communicator::lifecycle::leaving::process_is_ending;
use crate::communicator::{Communicator, Shared, Work};
use crate::engine::messages::{INTERNAL_TAGS, MessageInfo, Pattern, RecvTask, SendTask, Submission};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::schedule::Rank;
use crate::sync::AtomicU64;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use unisono_reducers::{Element, as_bytes, as_bytes_mut};

/// Memory that [`Communicator::isend`] sends. Its length must not change while it is sent.
pub trait SendBuffer: Send + 'static {
    /// Returns the bytes of the message.
    fn message(&self) -> &[u8];
}

/// Memory into which [`Communicator::irecv`] receives. Its length must not change while it
/// receives.
pub trait RecvBuffer: Send + 'static {
    /// Returns the bytes into which the message is received.
    fn message_mut(&mut self) -> &mut [u8];
}

impl<T: Element> SendBuffer for Vec<T> {
    fn message(&self) -> &[u8] {
        as_bytes(self)
    }
}

impl<T: Element> SendBuffer for Box<[T]> {
    fn message(&self) -> &[u8] {
        as_bytes(self)
    }
}

impl<T: Element> SendBuffer for Arc<[T]> {
    fn message(&self) -> &[u8] {
        as_bytes(self)
    }
}

impl<T: Element> RecvBuffer for Vec<T> {
    fn message_mut(&mut self) -> &mut [u8] {
        as_bytes_mut(self)
    }
}

impl<T: Element> RecvBuffer for Box<[T]> {
    fn message_mut(&mut self) -> &mut [u8] {
        as_bytes_mut(self)
    }
}

impl Communicator {
    /// Starts to send `buffer` to rank `to` under `tag`, and returns at once.
    ///
    /// An [`irecv`](Communicator::irecv) of that rank receives the message. Messages progress in
    /// the background, at the same time as collectives and other messages. Their calls need no
    /// common order among ranks. Two messages to the same rank with the same tag arrive in the
    /// order sent. The handle returns the buffer when it may be written again, which need not mean
    /// that the message was received. Before a rank receives them, it stores the short messages of
    /// each sender and the announcements of up to 16,384 long messages. Further messages wait until
    /// the rank receives some of these.
    ///
    /// [`Communicator::send`] and [`Communicator::recv`] are separate from messages: a `recv` does
    /// not receive a message that `isend` sends.
    ///
    /// # Errors
    /// The handle returns the errors. An error of one message does not affect other messages.
    ///
    /// - [`ErrorKind::InvalidUsage`]: the rank does not exist, or the tag is not below 2⁶³.
    /// - [`ErrorKind::CountMismatch`]: the message is longer than the buffer that receives it.
    /// - [`ErrorKind::PeerFinalized`]: the rank leaves before the message is received.
    /// - [`ErrorKind::MessageTimeout`]: no part of the message moves for
    ///   [`Config::timeout`](crate::Config::timeout) while a thread waits for it. This error ends
    ///   the communicator.
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let peer = 1 - comm.rank();
    /// let received = comm.irecv(vec![0u32; 4], peer, 7);
    /// let sent = comm.isend(vec![1u32, 2, 3], peer, 7);
    /// let (buffer, info) = received.wait().unwrap();
    /// assert_eq!((&buffer[..3], info.bytes), (&[1, 2, 3][..], 12));
    /// sent.wait().unwrap();
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn isend<B: SendBuffer>(&self, buffer: B, to: Rank, tag: u64) -> Work<B> {
        match self.check_tag(Some(tag)) {
            Ok(()) => self.isend_any_tag_space(buffer, to, tag),
            Err(error) => Work::failed(&self.shared, error),
        }
    }

    /// Sends under any tag, including the tags that are reserved for the library.
    pub(in crate::communicator) fn isend_any_tag_space<B: SendBuffer>(
        &self,
        buffer: B,
        receiver: Rank,
        tag: u64,
    ) -> Work<B> {
        let bytes = buffer.message().len();
        let message = MessageDesc { sends: true, peer: Some(receiver), tag: Some(tag), bytes };
        let completion = Completion::of_message(&self.shared, message);
        let checked = self.arg_check(OpKind::SendRecv).require_rank("to", receiver);
        match checked {
            Ok(()) => {
                let task = Box::new(Sending { buffer: Some(buffer), completion: Arc::clone(&completion) });
                self.post(Submission::Send { to: receiver, tag, task });
            }
            Err(error) => completion.complete(Err(error)),
        }
        Work::of(completion)
    }

    /// Starts to receive a message from rank `from` under `tag`, and returns at once. `None` as
    /// `from` accepts every rank, and `None` as `tag` accepts every tag.
    ///
    /// The handle returns the buffer, and the source, tag and length of the message. The message
    /// may be shorter than the buffer. Messages of one rank are matched in the order sent, and
    /// receives in the order posted. See [`Communicator::isend`] for an example and for errors.
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(3)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// if comm.rank() > 0 {
    ///     comm.isend(vec![comm.rank() as u64], 0, 5).wait().unwrap();
    /// } else {
    ///     for _ in 1..comm.size() {
    ///         let (value, info) = comm.irecv(vec![0u64], None, 5).wait().unwrap();
    ///         assert_eq!(value[0] as usize, info.source);
    ///     }
    /// }
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn irecv<B: RecvBuffer>(
        &self,
        buffer: B,
        from: impl Into<Option<Rank>>,
        tag: impl Into<Option<u64>>,
    ) -> Work<(B, MessageInfo)> {
        let tag = tag.into();
        match self.check_tag(tag) {
            Ok(()) => self.irecv_any_tag_space(buffer, from, tag),
            Err(error) => Work::failed(&self.shared, error),
        }
    }

    /// Receives under any tag, including the tags that are reserved for the library.
    pub(in crate::communicator) fn irecv_any_tag_space<B: RecvBuffer>(
        &self,
        mut buffer: B,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u64>>,
    ) -> Work<(B, MessageInfo)> {
        let pattern = Pattern { source: source.into(), tag: tag.into() };
        let bytes = buffer.message_mut().len();
        let message = MessageDesc { sends: false, peer: pattern.source, tag: pattern.tag, bytes };
        let completion = Completion::of_message(&self.shared, message);
        let args = self.arg_check(OpKind::SendRecv);
        match pattern.source.map_or(Ok(()), |source| args.require_rank("from", source)) {
            Ok(()) => {
                let task = Box::new(Receiving { buffer: Some(buffer), completion: Arc::clone(&completion) });
                self.post(Submission::Recv { pattern, task });
            }
            Err(error) => completion.complete(Err(error)),
        }
        Work::of(completion)
    }

    /// Returns the first message that has arrived from rank `from` under `tag` and that no receive
    /// has taken. `None` accepts every rank, or every tag. The message can still be received
    /// afterwards.
    ///
    /// The length is the one that the sender has announced, and the bytes need not have arrived.
    /// Compare the length with the length that you expect before you allocate memory for the
    /// message.
    ///
    /// # Errors
    /// The error that ended the communicator.
    pub fn probe(
        &self,
        from: impl Into<Option<Rank>>,
        tag: impl Into<Option<u64>>,
    ) -> Result<Option<MessageInfo>> {
        let pattern = Pattern { source: from.into(), tag: tag.into() };
        self.check_tag(pattern.tag)?;
        if let Some(source) = pattern.source {
            self.arg_check(OpKind::SendRecv).require_rank("from", source)?;
        }
        self.with_engine(|engine| engine.probe(&pattern))
    }

    /// Fails if a tag is reserved for the library.
    fn check_tag(&self, tag: Option<u64>) -> Result<()> {
        match tag {
            Some(tag @ INTERNAL_TAGS..) => {
                let text = format!("the tag is {tag}, and tags are below {INTERNAL_TAGS}");
                Err(self.arg_check(OpKind::SendRecv).invalid(text))
            }
            _ => Ok(()),
        }
    }

    /// Gives a message to the engine or, if the engine is busy, to its queue.
    fn post(&self, submission: Submission) {
        if self.is_forked() {
            return submission.fail(&self.fork_error());
        }
        let shared = &self.shared;
        if shared.op_queue.is_idle()
            && let Ok(mut engine) = shared.engine.try_lock()
        {
            let _mark = shared.engine_user.set();
            engine.post_message(submission);
            if !engine.has_messages() {
                return;
            }
        } else {
            shared.submissions.push(submission);
            // The engine may sleep in an operation that waits for a peer, and this peer may wait
            // for this message.
            shared.engine_waker.wake_by_ref();
        }
        if !shared.is_simulated {
            background::attend(shared);
        }
    }
}

struct Sending<B> {
    /// The buffer, until the message is done.
    buffer: Option<B>,
    completion: Arc<Completion<B>>,
}

impl<B> Drop for Sending<B> {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            self.completion.finish_lost();
        }
    }
}

impl<B: SendBuffer> SendTask for Sending<B> {
    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], SendBuffer::message)
    }

    fn progressed(&self) {
        self.completion.note_progress();
    }

    fn finish(mut self: Box<Self>, result: Result<()>) {
        if let Some(buffer) = self.buffer.take() {
            // In a process that ends, no handle is waited for or dropped any more.
            if let (Err(error), true) = (&result, process_is_ending()) {
                self.completion.warn_of_loss(error);
            }
            self.completion.finish_message(result.map(|()| buffer));
        }
    }
}

struct Receiving<B> {
    /// The buffer, until the message is done.
    buffer: Option<B>,
    completion: Arc<Completion<(B, MessageInfo)>>,
}

impl<B> Drop for Receiving<B> {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            self.completion.finish_lost();
        }
    }
}

impl<B: RecvBuffer> RecvTask for Receiving<B> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], RecvBuffer::message_mut)
    }

    fn progressed(&self) {
        self.completion.note_progress();
    }

    fn finish(mut self: Box<Self>, result: Result<MessageInfo>) {
        if let Some(buffer) = self.buffer.take() {
            self.completion.finish_message(result.map(|info| (buffer, info)));
        }
    }
}

/// The description of a message, as its call gave it.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct MessageDesc {
    sends: bool,
    pub(in crate::communicator) peer: Option<Rank>,
    tag: Option<u64>,
    bytes: usize,
}

impl fmt::Display for MessageDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sends { "isend to " } else { "irecv from " })?;
        match self.peer {
            Some(peer) => write!(f, "rank {peer}")?,
            None => f.write_str("any rank")?,
        }
        match self.tag {
            Some(tag) => write!(f, " with tag {tag}")?,
            None => f.write_str(" with any tag")?,
        }
        write!(f, " ({} bytes)", self.bytes)
    }
}

/// The message of a handle, and its progress.
#[derive(Debug)]
pub(in crate::communicator) struct MessageState {
    pub(in crate::communicator) desc: MessageDesc,
    /// Number of times that bytes moved.
    pub(in crate::communicator) moves: AtomicU64,
    /// Nanoseconds for which threads have waited since bytes last moved.
    pub(in crate::communicator) waited_nanos: AtomicU64,
}

/// A handle of an operation, which may be a message.
pub(in crate::communicator) trait MessageHandle: Send + Sync {
    /// Returns the message, if the handle belongs to one.
    fn message(&self) -> Option<&MessageState>;
}

impl<R: Send> MessageHandle for Completion<R> {
    fn message(&self) -> Option<&MessageState> {
        self.message_state()
    }
}

impl<R> Completion<R> {
    fn of_message(shared: &Arc<Shared>, desc: MessageDesc) -> Arc<Self> {
        let state = MessageState { desc, moves: AtomicU64::new(0), waited_nanos: AtomicU64::new(0) };
        Self::with_message(Arc::downgrade(shared), Some(state))
    }

    fn note_progress(&self) {
        if let Some(message) = &self.message {
            message.moves.fetch_add(1, Ordering::Relaxed);
            message.waited_nanos.store(0, Ordering::Relaxed);
        }
    }

    /// Ends a message that the engine does not know any more, so that nobody waits for it.
    fn finish_lost(&self) {
        let bug = ErrorKind::Bug("a message was dropped without a result".to_owned());
        self.finish_message(Err(Error::new(bug)));
    }

    /// Warns that a sent message is lost. This is needed because no handle will report it.
    ///
    /// A communicator warns only of its first lost message, which is enough to find the cause.
    pub(in crate::communicator) fn warn_of_loss(&self, error: &Error) {
        let (Some(shared), Some(message)) = (self.shared.upgrade(), &self.message) else { return };
        if message.desc.sends && !shared.loss_told.swap(true, Ordering::Relaxed) {
            let reason = match error.kind() {
                ErrorKind::Aborted { reason, .. } => reason.clone(),
                kind => kind.to_string(),
            };
            crate::log::warn_user(&format!(
                "rank {} of {} on {}: the {} is lost: {reason}. Wait for the handle of every send before that",
                shared.rank, shared.ranks, shared.host, message.desc
            ));
        }
    }

    pub(in crate::communicator) fn finish_message(&self, result: Result<R>) {
        let attach = |error: Error| match self.shared.upgrade() {
            Some(shared) => error.with_rank(shared.rank, &shared.host, None),
            None => error,
        };
        self.complete(result.map_err(attach));
    }
}
