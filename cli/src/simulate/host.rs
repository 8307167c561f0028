//! One host of a simulated run. It performs the steps and, after a failure, goes on with the
//! survivors.

use super::history::{Action, CallRecord, Group, History, Outcome};
use super::scenario::{CallMode, Scenario, Step};
use crate::perf::op_case::{OpCase, OpKind};
use crate::perf::pattern::Pattern;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use unisono::{Communicator, DType, Element, ErrorKind, Max, ReduceKind, Sum, bf16};
use unisono_transports::sim::{Node, Observer};
use unisono_transports::{Fabric, Reconnect, RegroupRequest};

/// A host at work.
pub(super) struct Host<'s> {
    host: usize,
    scenario: &'s Scenario,
    observer: &'s Observer,
    reconnect: Arc<RecordingReconnect>,
    history: History,
    /// Communicators that another thread may still hold.
    retained: Vec<Communicator>,
}

/// Records the members of the last meeting.
struct RecordingReconnect {
    inner: Arc<dyn Reconnect>,
    observer: Observer,
    last_group: Mutex<Option<Arc<Group>>>,
}

impl Reconnect for RecordingReconnect {
    fn endpoint(&self) -> unisono_transports::Result<String> {
        self.inner.endpoint()
    }

    fn connect(&self, request: RegroupRequest<'_>, timeout: Duration) -> unisono_transports::Result<Fabric> {
        let fabric = self.inner.connect(request, timeout)?;
        let RegroupRequest { endpoint, group_id, .. } = request;
        let hosts = self.observer.members(endpoint, group_id).unwrap_or_default();
        let group = Group { id: format!("{endpoint} {group_id:?}"), hosts };
        *self.last_group.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(group));
        Ok(fabric)
    }
}

/// A communicator and its members.
struct Member {
    comm: Communicator,
    group: Arc<Group>,
    /// True once the host has started asynchronous operations on it.
    has_async: bool,
}

/// The host is done with this communicator.
struct Stopped;

type CallResult = Result<(), Stopped>;

impl<'s> Host<'s> {
    /// Runs the host until all steps are done or no step is possible any more.
    pub(super) fn run(
        host: usize,
        (fabric, reconnect): Node,
        scenario: &'s Scenario,
        observer: &'s Observer,
    ) -> History {
        let recording = Arc::new(RecordingReconnect {
            inner: reconnect,
            observer: observer.clone(),
            last_group: Mutex::default(),
        });
        let comm = Communicator::builder()
            .config(&scenario.config)
            .reconnect(Arc::clone(&recording) as Arc<dyn Reconnect>)
            .from_fabric(fabric)
            .expect("valid settings");
        let group = Group { id: "at first".to_owned(), hosts: (0..scenario.ranks).collect() };
        let mut host_state = Self {
            host,
            scenario,
            observer,
            reconnect: recording,
            history: History::default(),
            retained: Vec::new(),
        };
        let mut member = Member { comm, group: Arc::new(group), has_async: false };
        let (mut next, mut recovered) = (0, false);
        for _ in 0..MAX_RECOVERIES {
            if host_state.proceed(&mut member, &mut next, recovered).is_ok() {
                break;
            }
            match host_state.recover(member) {
                Ok(smaller) => member = smaller,
                Err(Stopped) => return host_state.history,
            }
            recovered = true;
        }
        host_state.leave(member);
        host_state.history
    }

    fn is_dead(&self) -> bool {
        self.observer.died_at(self.host).is_some()
    }

    /// Makes a call, and records its outcome.
    fn record(
        &mut self,
        group: &Arc<Group>,
        action: Action,
        call: impl FnOnce(&mut Self) -> Outcome,
    ) -> CallResult {
        let begun = self.observer.now();
        let outcome = call(self);
        // A dead host may end its call with any error, and only errors of living hosts are checked.
        let outcome = if self.is_dead() { Outcome::Died } else { outcome };
        let ended = self.observer.now();
        let stopped = !matches!(outcome, Outcome::Correct | Outcome::Shrunk(_));
        self.history.entries.push(CallRecord { group: Arc::clone(group), action, begun, ended, outcome });
        if stopped { Err(Stopped) } else { Ok(()) }
    }

    fn proceed(&mut self, member: &mut Member, next: &mut usize, recovered: bool) -> CallResult {
        if recovered {
            self.agree_on_step(member, next)?;
        }
        self.run_steps(member, next)
    }

    /// Runs the remaining steps.
    fn run_steps(&mut self, member: &mut Member, next: &mut usize) -> CallResult {
        while let Some(&step) = self.scenario.steps.get(*next) {
            let number = *next;
            // Counted before the call, because a step that fails may fail every time, as a planned
            // abort does. The survivors go on with the step that follows it.
            *next += 1;
            match step.mode {
                CallMode::Split => self.split(member, number, &step)?,
                _ => {
                    member.has_async |= step.mode == CallMode::Async;
                    let comm = &member.comm;
                    self.record(&member.group, Action::Step(number), |host| host.step(comm, number, &step))?;
                }
            }
        }
        Ok(())
    }

    /// Recovers from a failure. Checks that a repeated call returns the same error, and goes on
    /// with the ranks that are left.
    fn recover(&mut self, member: Member) -> Result<Member, Stopped> {
        if self.is_dead() {
            return Err(Stopped);
        }
        let Member { comm, group, has_async } = member;
        // The failure of a subgroup says nothing about this communicator.
        if self.history.entries.last().is_some_and(|last| last.group == group && is_poisoning(last)) {
            let again = |_: &mut Self| to_outcome(comm.barrier().map(|()| 0));
            let _ = self.record(&group, Action::Repeat, again);
        }
        let mut smaller = None;
        self.record(&group, Action::Shrink, |host| match comm.shrink() {
            Ok(comm) => {
                let group = host.last_group();
                smaller = Some(Member { comm, group: Arc::clone(&group), has_async: false });
                Outcome::Shrunk(group)
            }
            Err(error) => Outcome::Failed(error),
        })?;
        // It depends on the machine whether the thread of the operations still uses the
        // communicator, and so would the moment at which a drop leaves it. Only the seed may decide
        // that.
        if has_async {
            self.retained.push(comm);
        }
        smaller.ok_or(Stopped)
    }

    /// Returns the group of the last meeting: the members of the communicator just created.
    fn last_group(&self) -> Arc<Group> {
        let met = self.reconnect.last_group.lock().unwrap_or_else(PoisonError::into_inner).clone();
        met.expect("whoever has a new communicator has met the others")
    }

    /// Agrees with the others on the next step.
    fn agree_on_step(&mut self, member: &Member, next: &mut usize) -> CallResult {
        // Ranks may have failed in different steps, and their calls match only if all go on with
        // the same step.
        let mut latest = [*next as u64];
        self.record(&member.group, Action::Resume, |_| {
            to_outcome(member.comm.all_reduce(&mut latest, Max).map(|()| 0))
        })?;
        *next = latest[0] as usize;
        Ok(())
    }

    fn leave(&mut self, member: Member) {
        let _ = self.record(&member.group, Action::Leave, |_| Outcome::Correct);
        drop(member);
    }

    /// Runs the step in two subgroups of every second rank.
    fn split(&mut self, member: &Member, number: usize, step: &Step) -> CallResult {
        let mut subgroup = None;
        self.record(&member.group, Action::Step(number), |_| {
            match member.comm.split(Some(member.comm.rank() as u32 % 2), 0) {
                Ok(made) => subgroup = made,
                Err(error) => return Outcome::Failed(error),
            }
            Outcome::Correct
        })?;
        let Some(subgroup) = subgroup else { return Ok(()) };
        let group = self.last_group();
        let ended =
            self.record(&group, Action::InSubgroup(number), |host| host.step(&subgroup, number, step));
        let _ = self.record(&group, Action::Leave, |_| Outcome::Correct);
        ended
    }

    fn step(&self, comm: &Communicator, number: usize, step: &Step) -> Outcome {
        let insisted = step.kind.collective().map(|collective| match step.algorithm(comm.size()) {
            Some(row) => comm.set_algorithm(collective, Some(row.name)),
            None => comm.set_algorithm(collective, None),
        });
        if let Some(Err(error)) = insisted {
            return Outcome::Failed(error);
        }
        // The iteration depends on the epoch, so that data of another communicator is never right
        // by chance.
        let turn = 7 * number + comm.epoch() as usize;
        to_outcome(match step.dtype {
            DType::F64 => self.call::<f64>(comm, step, turn),
            DType::U8 => self.call::<u8>(comm, step, turn),
            DType::BF16 => self.call::<bf16>(comm, step, turn),
            DType::I64 => self.call::<i64>(comm, step, turn),
            _ => self.call::<f32>(comm, step, turn),
        })
    }

    /// Wrong elements of the result.
    fn call<T: Element>(&self, comm: &Communicator, step: &Step, turn: usize) -> unisono::Result<u64> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let count = step.count + usize::from(step.mismatched_host == Some(self.host));
        match step.mode {
            CallMode::Abort { by } if by == self.host => {
                comm.abort(ABORT_REASON);
                comm.barrier().map(|()| 0)
            }
            CallMode::Async => run_async::<T>(comm, step, count, turn),
            _ => {
                let test = step.op_case(ranks);
                let pattern = Pattern::<T>::with_period(PATTERN_PERIOD, test, ranks, rank);
                match step.mode {
                    CallMode::InPlace => in_place(comm, test, &pattern, count, turn),
                    _ => out_of_place(comm, test, &pattern, count, turn),
                }
            }
        }
    }
}

fn out_of_place<T: Element>(
    comm: &Communicator,
    test: OpCase,
    pattern: &Pattern<T>,
    count: usize,
    turn: usize,
) -> unisono::Result<u64> {
    let (given, gotten) = test.shares(comm.size(), comm.rank());
    let (mut input, mut output) = (vec![T::default(); given * count], vec![T::default(); gotten * count]);
    pattern.fill(&mut input, turn);
    test.call(comm, &input, &mut output)?;
    Ok(pattern.count_wrong(&output, count, turn))
}

fn in_place<T: Element>(
    comm: &Communicator,
    test: OpCase,
    pattern: &Pattern<T>,
    count: usize,
    turn: usize,
) -> unisono::Result<u64> {
    let (given, gotten) = test.shares(comm.size(), comm.rank());
    let (input_at, output_at) = test.in_place_offsets(comm.rank());
    let shares = (input_at + given).max(output_at + gotten);
    let mut buffer = vec![T::default(); shares * count];
    pattern.fill(&mut buffer[input_at * count..][..given * count], turn);
    test.call_in_place(comm, &mut buffer)?;
    Ok(pattern.count_wrong(&buffer[output_at * count..][..gotten * count], count, turn))
}

/// Runs two sums at the same time.
fn run_async<T: Element>(
    comm: &Communicator,
    step: &Step,
    count: usize,
    turn: usize,
) -> unisono::Result<u64> {
    let test = OpCase::new(OpKind::AllReduce, ReduceKind::Sum, 0);
    let pattern = Pattern::<T>::with_period(PATTERN_PERIOD, test, comm.size(), comm.rank());
    let start = |turn| {
        let mut values = vec![T::default(); count];
        pattern.fill(&mut values, turn);
        comm.all_reduce_async(values, Sum)
    };
    let (first, second) = (start(turn), start(turn + step.root));
    // Both are waited for before an error returns, because an operation goes on when its handle is
    // dropped.
    let first = first.wait().map(|sums| pattern.count_wrong(&sums, count, turn));
    let second = second.wait().map(|sums| pattern.count_wrong(&sums, count, turn + step.root));
    Ok(first? + second?)
}

/// Returns whether every later call must fail, too. A failed split leaves the parent usable.
fn is_poisoning(entry: &CallRecord) -> bool {
    entry.error().is_some_and(|error| !matches!(error.kind(), ErrorKind::Bootstrap(_)))
}

fn to_outcome(ended: unisono::Result<u64>) -> Outcome {
    match ended {
        Ok(0) => Outcome::Correct,
        Ok(wrong) => Outcome::Wrong(wrong),
        Err(error) => Outcome::Failed(error),
    }
}

/// Period of the values: a prime, so that a block shifted by a power of two is noticed.
const PATTERN_PERIOD: usize = 61;
/// Upper bound of the number of recoveries. Each recovery removes a rank or completes a step.
const MAX_RECOVERIES: usize = 12;
/// Reason of planned aborts.
pub(super) const ABORT_REASON: &str = "the scenario says so";
