//! One host of a simulated run: it does its steps, and after a failure goes on with those that are left.

use super::history::{Act, Company, Entry, History, Outcome};
use super::scenario::{Manner, Scenario, Step};
use crate::perf::pattern::Pattern;
use crate::perf::test::{Kind, Test};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use unisono::{Communicator, DType, Element, ErrorKind, Max, Op, Sum, bf16};
use unisono_transports::sim::{Observer, Place};
use unisono_transports::{Gathering, Mesh, Venue};

/// A host at work.
pub(super) struct Host<'s> {
    host: usize,
    scenario: &'s Scenario,
    observer: &'s Observer,
    witness: Arc<Witness>,
    history: History,
    /// Communicators that a thread beside this one may still hold.
    kept: Vec<Communicator>,
}

/// Remembers who met last.
struct Witness {
    venue: Arc<dyn Venue>,
    observer: Observer,
    met: Mutex<Option<Arc<Company>>>,
}

impl Venue for Witness {
    fn place(&self) -> unisono_transports::Result<String> {
        self.venue.place()
    }

    fn meet(&self, gathering: Gathering<'_>, patience: Duration) -> unisono_transports::Result<Mesh> {
        let mesh = self.venue.meet(gathering, patience)?;
        let Gathering { place, label, .. } = gathering;
        let hosts = self.observer.members(place, label).unwrap_or_default();
        let company = Company { met: format!("{place} {label:?}"), hosts };
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(company));
        Ok(mesh)
    }
}

/// A communicator, and who is in it.
struct Crew {
    comm: Communicator,
    company: Arc<Company>,
    /// Whether operations were started on it.
    started: bool,
}

/// It goes no further with this communicator.
struct Stopped;

type Going = Result<(), Stopped>;

impl<'s> Host<'s> {
    /// Lives one life, until all steps are done or nothing can be done any more.
    pub(super) fn live(
        host: usize,
        (mesh, venue): Place,
        scenario: &'s Scenario,
        observer: &'s Observer,
    ) -> History {
        let witness = Arc::new(Witness { venue, observer: observer.clone(), met: Mutex::default() });
        let comm = Communicator::over_with(mesh, Arc::clone(&witness) as Arc<dyn Venue>, &scenario.config);
        let company = Company { met: "at first".to_owned(), hosts: (0..scenario.ranks).collect() };
        let mut own =
            Self { host, scenario, observer, witness, history: History::default(), kept: Vec::new() };
        let mut crew = Crew { comm, company: Arc::new(company), started: false };
        let (mut next, mut recovered) = (0, false);
        for _ in 0..RECOVERIES_MAX {
            if own.go_on(&mut crew, &mut next, recovered).is_ok() {
                break;
            }
            match own.recover(crew) {
                Ok(smaller) => crew = smaller,
                Err(Stopped) => return own.history,
            }
            recovered = true;
        }
        own.leave(crew);
        own.history
    }

    fn is_dead(&self) -> bool {
        self.observer.died(self.host).is_some()
    }

    /// Makes a call, and keeps what comes of it.
    fn record(&mut self, company: &Arc<Company>, act: Act, call: impl FnOnce(&mut Self) -> Outcome) -> Going {
        let begun = self.observer.now();
        let outcome = call(self);
        let outcome = if self.is_dead() { Outcome::Died } else { outcome };
        let ended = self.observer.now();
        let stopped = !matches!(outcome, Outcome::Right | Outcome::Shrunk(_));
        self.history.entries.push(Entry { company: Arc::clone(company), act, begun, ended, outcome });
        if stopped { Err(Stopped) } else { Ok(()) }
    }

    fn go_on(&mut self, crew: &mut Crew, next: &mut usize, recovered: bool) -> Going {
        if recovered {
            self.resume(crew, next)?;
        }
        self.work(crew, next)
    }

    /// Does what is still to be done.
    fn work(&mut self, crew: &mut Crew, next: &mut usize) -> Going {
        while let Some(&step) = self.scenario.steps.get(*next) {
            let number = *next;
            *next += 1;
            match step.manner {
                Manner::Split => self.split(crew, number, &step)?,
                _ => {
                    crew.started |= step.manner == Manner::Started;
                    let comm = &crew.comm;
                    self.record(&crew.company, Act::Step(number), |own| own.step(comm, number, &step))?;
                }
            }
        }
        Ok(())
    }

    /// After a failure: the same again says the same, and those that are left go on.
    fn recover(&mut self, crew: Crew) -> Result<Crew, Stopped> {
        if self.is_dead() {
            return Err(Stopped);
        }
        let Crew { comm, company, started } = crew;
        if self.history.entries.last().is_some_and(|last| last.company == company && poisons(last)) {
            let again = |_: &mut Self| outcome(comm.barrier().map(|()| 0));
            let _ = self.record(&company, Act::Again, again);
        }
        let mut smaller = None;
        self.record(&company, Act::Shrink, |own| match comm.shrink() {
            Ok(comm) => {
                let company = own.met();
                smaller = Some(Crew { comm, company: Arc::clone(&company), started: false });
                Outcome::Shrunk(company)
            }
            Err(error) => Outcome::Failed(error),
        })?;
        if started {
            self.kept.push(comm);
        }
        smaller.ok_or(Stopped)
    }

    /// Those that met last; what this host has just made is of them.
    fn met(&self) -> Arc<Company> {
        let met = self.witness.met.lock().unwrap_or_else(PoisonError::into_inner).clone();
        met.expect("whoever has a new communicator has met the others")
    }

    /// Agrees with the others on the next step.
    fn resume(&mut self, crew: &Crew, next: &mut usize) -> Going {
        let mut latest = [*next as u64];
        self.record(&crew.company, Act::Resume, |_| {
            outcome(crew.comm.all_reduce(&mut latest, Max).map(|()| 0))
        })?;
        *next = latest[0] as usize;
        Ok(())
    }

    fn leave(&mut self, crew: Crew) {
        let _ = self.record(&crew.company, Act::Leave, |_| Outcome::Right);
        drop(crew);
    }

    /// Every second rank does the step in a group of its own.
    fn split(&mut self, crew: &Crew, number: usize, step: &Step) -> Going {
        let mut group = None;
        self.record(&crew.company, Act::Step(number), |_| {
            match crew.comm.split(Some(crew.comm.rank() as u32 % 2), 0) {
                Ok(made) => group = made,
                Err(error) => return Outcome::Failed(error),
            }
            Outcome::Right
        })?;
        let Some(group) = group else { return Ok(()) };
        let company = self.met();
        let ended = self.record(&company, Act::InGroup(number), |own| own.step(&group, number, step));
        let _ = self.record(&company, Act::Leave, |_| Outcome::Right);
        ended
    }

    fn step(&self, comm: &Communicator, number: usize, step: &Step) -> Outcome {
        let insisted = step.kind.collective().map(|collective| match step.algorithm(comm.ranks()) {
            Some(row) => comm.use_algorithm(row),
            None => comm.use_any_algorithm(collective),
        });
        if let Some(Err(error)) = insisted {
            return Outcome::Failed(error);
        }
        // Of another communicator, nothing is right by chance.
        let turn = 7 * number + comm.epoch() as usize;
        outcome(match step.dtype {
            DType::F64 => self.call::<f64>(comm, step, turn),
            DType::U8 => self.call::<u8>(comm, step, turn),
            DType::BF16 => self.call::<bf16>(comm, step, turn),
            DType::I64 => self.call::<i64>(comm, step, turn),
            _ => self.call::<f32>(comm, step, turn),
        })
    }

    /// Wrong elements of the result.
    fn call<T: Element>(&self, comm: &Communicator, step: &Step, turn: usize) -> unisono::Result<u64> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let count = step.count + usize::from(step.odd == Some(self.host));
        match step.manner {
            Manner::Aborted { by } if by == self.host => {
                comm.abort(REASON);
                comm.barrier().map(|()| 0)
            }
            Manner::Started => started::<T>(comm, step, count, turn),
            _ => {
                let test = step.test(ranks);
                let pattern = Pattern::<T>::of_period(PERIOD, test, ranks, rank);
                match step.manner {
                    Manner::InPlace => in_place(comm, test, &pattern, count, turn),
                    _ => out_of_place(comm, test, &pattern, count, turn),
                }
            }
        }
    }
}

fn out_of_place<T: Element>(
    comm: &Communicator,
    test: Test,
    pattern: &Pattern<T>,
    count: usize,
    turn: usize,
) -> unisono::Result<u64> {
    let (given, gotten) = test.shares(comm.ranks(), comm.rank());
    let (mut input, mut output) = (vec![T::default(); given * count], vec![T::default(); gotten * count]);
    pattern.fill(&mut input, turn);
    test.call(comm, &input, &mut output)?;
    Ok(pattern.wrong(&output, count, turn))
}

fn in_place<T: Element>(
    comm: &Communicator,
    test: Test,
    pattern: &Pattern<T>,
    count: usize,
    turn: usize,
) -> unisono::Result<u64> {
    let (given, gotten) = test.shares(comm.ranks(), comm.rank());
    let (input_at, output_at) = test.own_place(comm.rank());
    let shares = (input_at + given).max(output_at + gotten);
    let mut buffer = vec![T::default(); shares * count];
    pattern.fill(&mut buffer[input_at * count..][..given * count], turn);
    test.call_in_place(comm, &mut buffer)?;
    Ok(pattern.wrong(&buffer[output_at * count..][..gotten * count], count, turn))
}

/// Two sums under way at once.
fn started<T: Element>(comm: &Communicator, step: &Step, count: usize, turn: usize) -> unisono::Result<u64> {
    let test = Test::new(Kind::AllReduce, Op::Sum, 0);
    let pattern = Pattern::<T>::of_period(PERIOD, test, comm.ranks(), comm.rank());
    let start = |turn| {
        let mut values = vec![T::default(); count];
        pattern.fill(&mut values, turn);
        comm.start_all_reduce(values, Sum)
    };
    let (first, second) = (start(turn), start(turn + step.root));
    let first = first.wait().map(|sums| pattern.wrong(&sums, count, turn));
    let second = second.wait().map(|sums| pattern.wrong(&sums, count, turn + step.root));
    Ok(first? + second?)
}

/// Whether no later call can end otherwise: ranks that did not meet after a split still have what they had.
fn poisons(entry: &Entry) -> bool {
    entry.error().is_some_and(|error| !matches!(error.kind(), ErrorKind::Rendezvous(_)))
}

fn outcome(ended: unisono::Result<u64>) -> Outcome {
    match ended {
        Ok(0) => Outcome::Right,
        Ok(wrong) => Outcome::Wrong(wrong),
        Err(error) => Outcome::Failed(error),
    }
}

/// Of the values: a prime, so that no power of two hides a shifted block.
const PERIOD: usize = 61;
/// More cannot be needed: each takes a step or a rank away.
const RECOVERIES_MAX: usize = 12;
/// What a rank says that ends a communicator on purpose.
pub(super) const REASON: &str = "the scenario says so";
