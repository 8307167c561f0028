//! The place of this process in its job: what the environment says without a meeting point.

use crate::bootstrap::RankInfo;
use crate::bootstrap::env::parse_var;
use crate::bootstrap::launcher::Placement;
use crate::schedule::Rank;

impl RankInfo {
    /// Returns true if the environment has the variables of a rank, or some of them. Then call
    /// [`RankInfo::from_env`], whose error names a missing variable.
    ///
    /// The only process of a launcher, such as the shell of `salloc`, is not taken for a rank,
    /// because it may start ranks itself. `MASTER_ADDR`, `MASTER_PORT` and `UNISONO_ID` alone do
    /// not make a process a rank either, because the shell of a job may have them, too.
    pub fn is_in_env() -> bool {
        // A value that is not valid text is present, too. `from_env` refuses it.
        Self::is_in_vars(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Returns the rank of this process, if the environment says it. The variables are those of
    /// [`RankInfo::from_env`], and neither the meeting point nor the secret is read.
    ///
    /// ```no_run
    /// use unisono::bootstrap::RankInfo;
    ///
    /// if RankInfo::rank_in_env().is_none_or(|rank| rank == 0) {
    ///     println!("one line for the whole job");
    /// }
    /// ```
    pub fn rank_in_env() -> Option<Rank> {
        Place::of_this_process().rank
    }

    /// Returns the number of ranks of the job, if the environment says it. The variables are those
    /// of [`RankInfo::rank_in_env`].
    ///
    /// ```no_run
    /// use unisono::bootstrap::RankInfo;
    ///
    /// println!("{:?} ranks", RankInfo::size_in_env());
    /// ```
    pub fn size_in_env() -> Option<usize> {
        Place::of_this_process().ranks
    }

    /// Works as [`RankInfo::is_in_env`], for the variables that `var` returns.
    fn is_in_vars(var: impl Fn(&str) -> Option<String>) -> bool {
        ["RANK", "WORLD_SIZE"].into_iter().any(|name| var(name).is_some())
            || match Placement::from_vars(&var) {
                Ok(placement) => placement.is_some_and(|placement| placement.ranks > 1),
                Err(_) => true,
            }
    }
}

/// The numbers of a process, as far as variables say them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    rank: Option<Rank>,
    ranks: Option<usize>,
}

impl Place {
    fn of_this_process() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        if ["RANK", "WORLD_SIZE"].into_iter().any(|name| var(name).is_some()) {
            let [rank, ranks] = ["RANK", "WORLD_SIZE"].map(|name| parse_var(&var, name).ok());
            return Self { rank, ranks };
        }
        let placement = Placement::from_vars(&var).ok().flatten();
        placement.map_or_else(Self::default, |placement| Self {
            rank: Some(placement.rank),
            ranks: Some(placement.ranks),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

    fn variables(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    #[test]
    fn a_part_of_an_environment_counts_as_one() {
        let is_in = |set: &[(&str, &str)]| RankInfo::is_in_vars(variables(set));
        for (missing, _) in GOOD {
            let set: Vec<_> = GOOD.into_iter().filter(|(name, _)| *name != missing).collect();
            assert!(is_in(&set), "without {missing}");
            assert!(RankInfo::from_vars(variables(&set)).is_err(), "without {missing}");
        }
        assert!(is_in(&GOOD) && is_in(&GOOD[..1]) && is_in(&GOOD[1..2]));
        assert!(is_in(&[("OMPI_COMM_WORLD_RANK", "1")]), "a launcher's variables without their number");
        assert!(!is_in(&[]) && !is_in(&GOOD[2..]), "a meeting point is no place");
    }

    #[test]
    fn place_is_read_without_a_meeting_point() {
        let place = |set: &[(&str, &str)]| Place::from_vars(variables(set));
        let expected = |rank, ranks| Place { rank, ranks };
        assert_eq!(place(&GOOD[..2]), expected(Some(1), Some(2)));
        assert_eq!(place(&GOOD[..1]), expected(Some(1), None));
        assert_eq!(place(&[("RANK", "1"), ("WORLD_SIZE", "two")]), expected(Some(1), None));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(place(&open_mpi), expected(Some(3), Some(4)));
        for unknown in [&[][..], &GOOD[2..], &open_mpi[..1]] {
            assert_eq!(place(unknown), Place::default(), "{unknown:?}");
        }
    }
}
