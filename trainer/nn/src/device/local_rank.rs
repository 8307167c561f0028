//! Number of a rank on its host.

use crate::error::{Error, Result};

/// Returns the number of this process's rank on its host, if a launcher says it.
///
/// # Errors
/// [`Error::Invalid`] names a variable with an impossible value.
pub fn local_rank(var: impl Fn(&str) -> Option<String>) -> Result<Option<usize>> {
    let number = |name: &str| {
        let parse = |text: String| {
            text.parse::<usize>().map_err(|_| Error::invalid(format!("{name}={text} is no number of a rank")))
        };
        var(name).map(parse).transpose()
    };
    // Without a rank, this process is not one of a launcher's.
    if var("RANK").is_none() {
        return Ok(None);
    }
    match (number("LOCAL_RANK")?, number("LOCAL_WORLD_SIZE")?) {
        (Some(rank), Some(ranks)) if rank >= ranks => {
            Err(Error::invalid(format!("LOCAL_RANK={rank} is not below LOCAL_WORLD_SIZE={ranks}")))
        }
        (rank, _) => Ok(rank),
    }
}

#[cfg(test)]
mod tests {
    use super::local_rank;

    #[test]
    fn local_rank_is_read_and_checked() {
        let read = |vars: &[(&str, &str)]| {
            let found = |name: &str| {
                vars.iter().find(|(variable, _)| *variable == name).map(|(_, text)| (*text).to_owned())
            };
            local_rank(found).map_err(|error| error.to_string())
        };
        assert_eq!(read(&[("LOCAL_RANK", "2")]), Ok(None));
        assert_eq!(read(&[("RANK", "9")]), Ok(None));
        assert_eq!(read(&[("RANK", "9"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "8")]), Ok(Some(1)));
        let error = read(&[("RANK", "9"), ("LOCAL_RANK", "8"), ("LOCAL_WORLD_SIZE", "8")]).unwrap_err();
        assert_eq!(error, "LOCAL_RANK=8 is not below LOCAL_WORLD_SIZE=8");
        let error = read(&[("RANK", "0"), ("LOCAL_RANK", "one")]).unwrap_err();
        assert_eq!(error, "LOCAL_RANK=one is no number of a rank");
    }
}
