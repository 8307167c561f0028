//! The choice of algorithms: by the library, by name, or by the caller's own schedule.

use crate::communicator::Communicator;
use crate::config::ReductionOrder;
use crate::engine::{Override, Overrides};
use crate::error::{Error, ErrorKind, Result};
use crate::log;
use crate::op_desc;
use crate::schedule::check::{cases, cases_of};
use crate::schedule::{Algorithm, Collective, PeerAccess, find, register};
use crate::select;
use unisono_transports::text::printable;

impl Communicator {
    /// Uses the algorithm called `name` for `collective` in every later operation; `None` leaves
    /// the choice to the library again. Every rank must make the same call.
    ///
    /// Communicators that `duplicate`, `split`, `create_group` and `shrink` make of these ranks
    /// inherit the algorithm. If their ranks cannot run it, the library chooses again and warns.
    /// Children with their own settings and communicators of [`Communicator::grow`] begin without
    /// it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`] lists the algorithms of `collective` if none is called `name`.
    /// [`ErrorKind::Unsupported`] if the algorithm needs another number of ranks or another
    /// transport, or does not keep the order of
    /// [`Config::reduction_order`](crate::Config::reduction_order). The same error is returned for
    /// algorithms that the library chooses itself for symmetric buffers. If an earlier operation
    /// failed, its error is returned.
    ///
    /// ```
    /// use unisono::schedule::Collective;
    /// use unisono::{Communicator, Sum};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// comm.set_algorithm(Collective::AllReduce, Some("ring"))?;
    /// comm.all_reduce(&mut [1.0f32; 8], Sum)?;
    /// assert_eq!(comm.last_algorithm()?.unwrap().name, "ring");
    /// comm.set_algorithm(Collective::AllReduce, None)?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn set_algorithm(&self, collective: Collective, name: Option<&str>) -> Result<()> {
        let algorithm = self.settable_algorithm(collective, name)?;
        self.with_engine(|engine| {
            engine.set_override(collective, algorithm);
            Ok(())
        })
    }

    /// Returns the algorithm of this name, if callers may set it for this communicator.
    pub(in crate::communicator) fn settable_algorithm(
        &self,
        collective: Collective,
        name: Option<&str>,
    ) -> Result<Option<Override>> {
        let algorithm = name.map(|name| self.algorithm_by_name(collective, name)).transpose()?;
        let Some(algorithm) = algorithm else { return Ok(None) };
        self.require_settable(algorithm)?;
        Ok(Some(Override { algorithm, is_proved: !algorithm.is_built_in() }))
    }

    /// Refuses an algorithm that cannot run on these ranks.
    fn require_settable(&self, algorithm: &'static Algorithm) -> Result<()> {
        if algorithm.peer_access == PeerAccess::ZeroCopy {
            let text = format!(
                "{} {} cannot be set: large operations on buffers of Communicator::alloc_symmetric use it by \
                 themselves",
                algorithm.collective, algorithm.name
            );
            return Err(self.attach_rank(Error::new(ErrorKind::Unsupported(text))));
        }
        self.with_engine(|engine| engine.check_settable(algorithm))
    }

    /// Uses an algorithm of the caller for its collective in every later operation. Every rank must
    /// make the same call. [`Communicator::set_algorithm`] with `None` leaves the choice to the
    /// library again.
    ///
    /// The schedule is first proved for this number of ranks, which may take seconds for hundreds
    /// of ranks. Errors contain the name of the algorithm.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`] names the first violation of a schedule that is wrong. Other
    /// errors are those of [`Communicator::set_algorithm`].
    ///
    /// ```
    /// use unisono::Sum;
    /// use unisono::schedule::{Algorithm, Collective, ProgramBuilder, input, output};
    ///
    /// // Both ranks send their input to the other one, and add what comes from it.
    /// let exchange = Algorithm::new("exchange", Collective::AllReduce, |_, rank| {
    ///     let mut program = ProgramBuilder::new(rank);
    ///     program.send(1 - rank, [input(0)]).recv_reduce(1 - rank, [input(0)], [output(0)], true);
    ///     program.finish(0, 0)
    /// })
    /// .with_supports(|spec| spec.ranks == 2)
    /// .leak();
    /// let sums = unisono::local(2, |comm| {
    ///     comm.set_custom_algorithm(exchange)?;
    ///     let mut values = [1.0f32; 8];
    ///     comm.all_reduce(&mut values, Sum)?;
    ///     Ok(values[0])
    /// })?;
    /// assert_eq!(sums, [2.0, 2.0]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn set_custom_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.require_order(algorithm)?;
        self.require_settable(algorithm)?;
        // The proof may take seconds, so the quick checks come first.
        self.prove_algorithm(algorithm)?;
        self.set_own_algorithm(algorithm, true)
    }

    /// Sets an algorithm as [`Communicator::set_custom_algorithm`] does, but without the proof.
    ///
    /// A wrong schedule can deliver wrong results, or wait until
    /// [`Config::timeout`](crate::Config::timeout).
    ///
    /// # Errors
    /// The errors of [`Communicator::set_custom_algorithm`], except violations of the schedule.
    ///
    /// ```
    /// use unisono::Communicator;
    /// use unisono::schedule::{Collective, find};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// comm.set_custom_algorithm_unchecked(find(Collective::Broadcast, "linear").unwrap())?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn set_custom_algorithm_unchecked(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.require_order(algorithm)?;
        self.require_settable(algorithm)?;
        self.set_own_algorithm(algorithm, false)
    }

    fn set_own_algorithm(&self, algorithm: &'static Algorithm, is_proved: bool) -> Result<()> {
        op_desc::register_algorithm(algorithm, self.size());
        self.with_engine(|engine| {
            engine.set_override(algorithm.collective, Some(Override { algorithm, is_proved }));
            Ok(())
        })
    }

    /// Sets the algorithms of this communicator in a communicator that was just made of these
    /// ranks.
    ///
    /// If the ranks of the child cannot run an algorithm, it is left out with a warning. All of
    /// them decide the same, because they have the same number of ranks and the same transport.
    pub(in crate::communicator) fn bequeath_algorithms(&self, child: Communicator) -> Result<Communicator> {
        let overrides = self.with_engine(|engine| Ok(engine.overrides()))?;
        child.inherit_algorithms(&overrides).map(|()| child)
    }

    fn inherit_algorithms(&self, overrides: &Overrides) -> Result<()> {
        for Override { algorithm, is_proved } in overrides.iter().copied().flatten() {
            let proof = || if is_proved { self.prove_algorithm(algorithm) } else { Ok(()) };
            match self.require_settable(algorithm).and_then(|()| proof()) {
                Ok(()) => self.set_own_algorithm(algorithm, is_proved)?,
                Err(error) if error.is_invalid_usage() => log::warn_user(&format!(
                    "the library chooses the algorithm of {} again, because {error}",
                    algorithm.collective
                )),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the algorithm that would run `collective` with shares of `bytes` bytes.
    ///
    /// Reductions of floats of 8 and 16 bits may use a different algorithm, which rounds each sum
    /// only once.
    ///
    /// # Errors
    /// Fails if no algorithm can run the operation, or if the algorithm that was set cannot run it.
    ///
    /// ```
    /// use unisono::Communicator;
    /// use unisono::schedule::Collective;
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// println!("{}", comm.select_algorithm(Collective::AllGather, 1 << 20)?.name);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn select_algorithm(&self, collective: Collective, bytes: usize) -> Result<&'static Algorithm> {
        self.with_engine(|engine| engine.select_algorithm(collective, 0, bytes, false))
    }

    /// Returns the algorithm of this rank's last collective, if there was one.
    ///
    /// # Errors
    /// If an earlier operation panicked.
    ///
    /// ```
    /// let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert!(comm.last_algorithm()?.is_none());
    /// comm.barrier()?;
    /// assert!(comm.last_algorithm()?.is_some());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn last_algorithm(&self) -> Result<Option<&'static Algorithm>> {
        self.with_engine(|engine| Ok(engine.last_algorithm))
    }

    /// Returns the algorithm called `name`, if it keeps the reduction order of the settings. If a
    /// caller has registered it, it is proved for this number of ranks first.
    pub(crate) fn algorithm_by_name(&self, collective: Collective, name: &str) -> Result<&'static Algorithm> {
        let Some(algorithm) = find(collective, name) else {
            let rows = Algorithm::all().into_iter().filter(|row| row.collective == collective);
            let names: Vec<_> = rows.map(|row| row.name).collect();
            let text = format!("{collective} has no algorithm `{name}`; it has {}", names.join(", "));
            return Err(self.attach_rank(Error::invalid_usage(text)));
        };
        self.require_order(algorithm)?;
        if !algorithm.is_built_in() {
            self.prove_algorithm(algorithm)?;
            op_desc::register_algorithm(algorithm, self.size());
        }
        Ok(algorithm)
    }

    /// Refuses an algorithm that does not combine operands in the order of the settings.
    pub(crate) fn require_order(&self, algorithm: &Algorithm) -> Result<()> {
        let any_order = self.config().reduction_order == ReductionOrder::Unspecified;
        if any_order || algorithm.keeps_rank_order(self.size()) {
            return Ok(());
        }
        let text = format!(
            "{} {} is not known to combine operands in rank order, which Config::reduction_order asks for",
            algorithm.collective, algorithm.name
        );
        Err(self.attach_rank(Error::new(ErrorKind::Unsupported(text))))
    }

    /// Proves an algorithm for this number of ranks and every root.
    pub(crate) fn prove_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        select::prove(algorithm, &cases_of(algorithm, self.size())).map_err(|error| self.attach_rank(error))
    }
}

/// Registers an algorithm of your own under its name, so that this process knows it like an
/// algorithm of the library.
///
/// [`Communicator::set_algorithm`], [`Config::algorithms`](crate::Config::algorithms),
/// `UNISONO_ALGO`, tuning files and the commands of `unisono_cli::main_with` then understand the
/// name. Every rank must register the same algorithm, before settings are read.
///
/// The schedule is proved for 1 to 9 ranks before this returns, and for other numbers of ranks
/// before the first operation that uses it.
///
/// # Errors
/// [`ErrorKind::InvalidUsage`] names the first violation of a schedule that is wrong. The same
/// error is returned if the name is taken, or has characters other than letters, digits, `_`, `-`
/// and `.`.
///
/// ```
/// use unisono::schedule::{Algorithm, Collective, ProgramBuilder, input, output};
/// use unisono::select::TuningTable;
/// use unisono::{Communicator, Config};
///
/// // The root sends its buffer to one rank after the other.
/// unisono::register_algorithm(Algorithm::new("star", Collective::Broadcast, |spec, rank| {
///     let mut program = ProgramBuilder::new(rank);
///     if rank == spec.root {
///         let peers = (0..spec.ranks).filter(|&peer| peer != rank);
///         peers.for_each(|peer| _ = program.send(peer, [input(0)]));
///         program.copy(input(0), output(0));
///     } else {
///         program.recv(spec.root, [output(0)]);
///     }
///     program.finish(0, 0)
/// }))?;
/// // Broadcasts of up to 4096 bytes use it; for longer ones, the library chooses.
/// let table = TuningTable::parse("broadcast tcp any 4096 star").expect("a known name");
/// let config = Config::default().with_tuning_table(table);
/// let comm = Communicator::builder().config(&config).local(1)?.remove(0);
/// assert_eq!(comm.select_algorithm(Collective::Broadcast, 4096)?.name, "star");
/// assert_ne!(comm.select_algorithm(Collective::Broadcast, 4097)?.name, "star");
/// # Ok::<(), unisono::Error>(())
/// ```
pub fn register_algorithm(algorithm: Algorithm) -> Result<&'static Algorithm> {
    let Algorithm { collective, name, .. } = algorithm;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) || name == "auto" {
        return Err(Error::invalid_usage(format!(
            "`{}` cannot name an algorithm: give 1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` or `.`, \
             and not `auto`",
            printable(name)
        )));
    }
    // Other threads may use an algorithm as soon as it is registered, so it is proved before that.
    select::require_right(&algorithm, &cases(&algorithm, RANKS_PROVED, false))?;
    register(algorithm).map_err(|known| {
        Error::invalid_usage(format!(
            "{collective} has an algorithm `{name}` already ({}); choose another name",
            known.summary
        ))
    })
}

/// Numbers of ranks, from 1, for which an algorithm is proved when it is registered.
const RANKS_PROVED: usize = 9;
/// Length of the longest name in bytes. The limit keeps tables readable.
const NAME_BYTES_MAX: usize = 40;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::schedule::{GroupSpec, Program, ProgramBuilder, Rank, input, output};
    use crate::{Config, Sum};
    use std::sync::LazyLock;
    use std::time::Duration;

    /// Every rank gives its input to the next rank, which is not an all_reduce for two ranks.
    static SHIFT: LazyLock<Algorithm> =
        LazyLock::new(|| Algorithm::new("shift", Collective::AllReduce, shift));

    fn shift(spec: &GroupSpec, rank: Rank) -> Program {
        let mut program = ProgramBuilder::new(rank);
        let (next, previous) = ((rank + 1) % spec.ranks, (rank + spec.ranks - 1) % spec.ranks);
        program.send(next, [input(0)]).recv(previous, [output(0)]);
        program.finish(0, 0)
    }

    fn pair(config: &Config) -> [Communicator; 2] {
        Communicator::builder().config(config).local(2).unwrap().try_into().unwrap()
    }

    #[test]
    fn set_algorithm_lists_names_for_an_unknown_one() {
        let [comm, _peer] = pair(&Config::default());
        let error = comm.set_algorithm(Collective::AllReduce, Some("rign")).unwrap_err();
        assert!(error.is_invalid_usage(), "{error}");
        assert!(error.to_string().contains("all_reduce has no algorithm `rign`; it has ring, "), "{error}");
    }

    #[test]
    fn set_algorithm_respects_the_reduction_order() {
        let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
        let comms = Communicator::builder().config(&config).local(3).unwrap();
        let error = comms[0].set_algorithm(Collective::AllReduce, Some("ring")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
        assert!(error.to_string().contains("all_reduce ring is not known to combine"), "{error}");
        comms[0].set_algorithm(Collective::AllReduce, Some("rank_ordered")).unwrap();
        comms[0].set_algorithm(Collective::AllGather, Some("ring")).unwrap();
        assert!(comms[0].set_custom_algorithm_unchecked(&SHIFT).is_err());
    }

    #[test]
    fn custom_algorithm_is_proved_before_its_first_use() {
        let [comm, _peer] = pair(&Config::default());
        let error = comm.set_custom_algorithm(&SHIFT).unwrap_err();
        assert!(error.is_invalid_usage(), "{error}");
        assert!(
            error.to_string().contains("the schedule of all_reduce shift is wrong with 2 ranks"),
            "{error}"
        );
    }

    #[test]
    fn errors_name_a_custom_algorithm_by_its_name() {
        let [comm, peer] = pair(&Config::default().with_timeout(Duration::from_millis(200)));
        comm.set_custom_algorithm_unchecked(&SHIFT).unwrap();
        let error = comm.all_reduce(&mut [1.0f32; 3], Sum).unwrap_err();
        assert!(error.to_string().contains("all_reduce #0 (3 x float, sum, shift)"), "{error}");
        drop(peer);
    }
}
