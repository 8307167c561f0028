//! Builders, which make communicators with settings of the caller.

use crate::bootstrap::{self, RANKS_MAX, RankInfo, Store, UniqueId};
use crate::communicator::Communicator;
use crate::communicator::lifecycle::split::{self, Origin};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::schedule::Rank;
use std::sync::Arc;
use unisono_transports::{Fabric, Reconnect};

/// Makes communicators with settings of the caller.
///
/// [`Communicator::builder`] returns one. Without [`config`](CommunicatorBuilder::config), the
/// settings are those of the environment.
#[derive(Clone, Default)]
#[must_use = "a builder makes a communicator only when one of its last methods is called"]
pub struct CommunicatorBuilder {
    config: Option<Config>,
    reconnect: Option<Arc<dyn Reconnect>>,
}

impl Communicator {
    /// Returns a builder for communicators whose settings differ from those of the environment.
    ///
    /// ```
    /// use unisono::{Communicator, Config};
    ///
    /// let config = Config::default().with_channels(1);
    /// let ranks = Communicator::builder().config(&config).local(2)?;
    /// assert_eq!(ranks[1].config().channels, 1);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// Returns a builder for communicators of the same ranks with other settings.
    ///
    /// ```
    /// use unisono::Communicator;
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let config = comm.config().clone().with_check_finite(true);
    /// let checked = comm.child().config(&config).duplicate()?;
    /// assert!(checked.config().check_finite && !comm.config().check_finite);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn child(&self) -> ChildBuilder<'_> {
        ChildBuilder { parent: self, config: None }
    }
}

impl CommunicatorBuilder {
    /// Uses `config` instead of the environment. All ranks must use the same sizes.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = Some(config.clone());
        self
    }

    /// Sets how ranks over a custom fabric connect again, so that the communicator can be split,
    /// shrunk and grown. Only [`CommunicatorBuilder::from_fabric`] uses it.
    pub fn reconnect(mut self, reconnect: Arc<dyn Reconnect>) -> Self {
        self.reconnect = Some(reconnect);
        self
    }

    /// Makes the communicators of `ranks` threads of this process, by rank.
    ///
    /// # Errors
    /// If a setting is out of its range, `ranks` is zero, or memory for the links runs out.
    ///
    /// ```
    /// use unisono::{Communicator, Config};
    ///
    /// let ranks = Communicator::builder().config(&Config::default()).local(3)?;
    /// assert_eq!((ranks.len(), ranks[2].rank(), ranks[2].size()), (3, 2, 3));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn local(self, ranks: usize) -> Result<Vec<Communicator>> {
        let config = self.checked_config()?;
        if ranks == 0 || ranks > RANKS_MAX {
            let text = format!("a communicator has from 1 to {RANKS_MAX} ranks, not {ranks}");
            return Err(Error::invalid_usage(text));
        }
        let fabrics = unisono_transports::threads::fabrics(ranks, config.geometry())?;
        let (exchange, group) = (Arc::default(), split::next_group_id());
        let make = |fabric| Communicator::new(fabric, &config, Origin::Threads(Arc::clone(&exchange), group));
        Ok(fabrics.into_iter().map(make).collect())
    }

    /// Connects to the other ranks with the settings that the launcher has put into the
    /// environment. See [`Communicator::from_env`].
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    ///
    /// ```no_run
    /// use unisono::{Communicator, Config};
    ///
    /// let config = Config::from_env()?.with_check_finite(true);
    /// let comm = Communicator::builder().config(&config).from_env()?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    #[allow(clippy::wrong_self_convention, reason = "the last method of a builder, named as the shortcut")]
    pub fn from_env(self) -> Result<Communicator> {
        let config = self.checked_config()?;
        connect(RankInfo::from_env()?, &config)
    }

    /// Connects to the other ranks, or makes the communicator of a single rank if no launcher has
    /// started the process. See [`Communicator::from_env_or_alone`].
    ///
    /// # Errors
    /// As [`Communicator::from_env_or_alone`].
    ///
    /// ```no_run
    /// use unisono::{Communicator, Config};
    ///
    /// let config = Config::from_env()?.with_check_finite(true);
    /// let comm = Communicator::builder().config(&config).from_env_or_alone()?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    #[allow(clippy::wrong_self_convention, reason = "the last method of a builder, named as the shortcut")]
    pub fn from_env_or_alone(self) -> Result<Communicator> {
        if RankInfo::is_in_env() {
            return self.from_env();
        }
        self.local(1).map(|mut ranks| ranks.remove(0))
    }

    /// Connects rank `rank` to the other `ranks - 1` ranks. Rank 0 listens at the address in `id`.
    ///
    /// # Errors
    /// As [`Communicator::join`].
    ///
    /// ```
    /// use unisono::{Communicator, Config, UniqueId};
    ///
    /// let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?;
    /// let comm = Communicator::builder().config(&Config::default()).join(&id, 0, 1)?;
    /// assert_eq!(comm.size(), 1);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn join(self, id: &UniqueId, rank: Rank, ranks: usize) -> Result<Communicator> {
        let config = self.checked_config()?;
        connect(RankInfo { rank, ranks, id: id.clone() }, &config)
    }

    /// Connects rank `rank` to the other `ranks - 1` ranks, which meet through a store under
    /// `name`.
    ///
    /// Rank 0 listens at [`Config::bind_addr`], or at the interface of the default route, and
    /// writes the address into the store. A name can be used for one communicator only. The
    /// environment may hold a secret, and [`Store`] says who may then read and write the store.
    ///
    /// # Errors
    /// The errors of [`Communicator::join`]. If the store fails or rank 0 writes nothing,
    /// [`ErrorKind::Bootstrap`](crate::ErrorKind::Bootstrap) names the key.
    ///
    /// ```
    /// use unisono::{Communicator, FileStore};
    ///
    /// let folder = std::env::temp_dir().join(format!("unisono-store-{}", std::process::id()));
    /// std::fs::create_dir(&folder).unwrap();
    /// let comm = Communicator::builder().join_through(&FileStore::new(&folder), "job-7", 0, 1)?;
    /// assert_eq!(comm.size(), 1);
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn join_through(
        self,
        store: &dyn Store,
        name: &str,
        rank: Rank,
        ranks: usize,
    ) -> Result<Communicator> {
        let config = self.checked_config()?;
        if rank >= ranks {
            return Err(Error::invalid_usage(format!("rank {rank} of {ranks} does not exist")));
        }
        let stored = bootstrap::exchange_id(store, name, rank, &config)?;
        let identity = RankInfo { rank, ranks, id: stored.id.clone() };
        connect(identity, &config).map_err(|error| stored.explain(error))
    }

    /// Makes a communicator over a fabric of the caller, such as a simulated network.
    ///
    /// Without [`CommunicatorBuilder::reconnect`], the communicator cannot be split or shrunk. The
    /// settings must be the same on all ranks, but the library does not check this.
    ///
    /// # Errors
    /// If a setting is out of its range.
    #[allow(clippy::wrong_self_convention, reason = "the last method of a builder, beside `from_env`")]
    pub fn from_fabric(self, fabric: Fabric) -> Result<Communicator> {
        // The fabric exists already and has these sizes, so they are not rounded.
        let config = self.config.map_or_else(Config::from_env, Ok)?.checked()?;
        Ok(Communicator::new(fabric, &config, Origin::Custom(self.reconnect, 0)))
    }

    fn checked_config(&self) -> Result<Config> {
        match &self.config {
            Some(config) => config.checked(),
            None => Config::from_env()?.checked(),
        }
        .map(Config::page_aligned)
    }
}

fn connect(identity: RankInfo, config: &Config) -> Result<Communicator> {
    let (fabric, id) = bootstrap::join_and_locate(&identity, config)?;
    identity.id.release();
    Ok(Communicator::new(fabric, config, Origin::Bootstrap(id)))
}

/// Makes communicators of the ranks of a parent communicator, with settings of the caller.
///
/// [`Communicator::child`] returns one. Without [`config`](ChildBuilder::config), the parent's
/// settings apply.
#[derive(Clone, Debug)]
#[must_use = "a builder makes a communicator only when `split` or `duplicate` is called"]
pub struct ChildBuilder<'c> {
    parent: &'c Communicator,
    config: Option<Config>,
}

impl ChildBuilder<'_> {
    /// Uses `config` instead of the parent's settings. The algorithms that were
    /// [set](Communicator::set_algorithm) on the parent are not inherited either. All ranks of a
    /// group need the same sizes.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = Some(config.clone());
        self
    }

    /// Splits the parent into groups; see [`Communicator::split`].
    ///
    /// # Errors
    /// Fails before any rank is contacted if a setting is out of its range. Other errors are those
    /// of [`Communicator::split`].
    pub fn split(self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let Self { parent, config } = self;
        let Some(config) = config else { return parent.split(color, key) };
        let config = config.checked().map_err(|error| parent.attach_rank(error))?.page_aligned();
        parent.split_with(color, key, &config)
    }

    /// Duplicates the parent; see [`Communicator::duplicate`].
    ///
    /// # Errors
    /// As [`ChildBuilder::split`].
    pub fn duplicate(self) -> Result<Communicator> {
        let rank = self.parent.rank() as i32;
        let same = self.split(Some(0), rank)?;
        same.ok_or_else(|| Error::new(crate::ErrorKind::Bug("a duplicate has every rank".to_owned())))
    }
}

impl std::fmt::Debug for CommunicatorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommunicatorBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
