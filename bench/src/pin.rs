//! Which two cores are measured, and how a thread is tied to one. Pin before a thread starts others: children inherit it.

use std::fmt;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::BenchError;

/// The client's core and the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Where the measuring side runs.
    pub client: usize,
    /// Where the measured side runs.
    pub server: usize,
}

impl Cores {
    /// The first two cores that this process may use.
    pub fn pick() -> Result<Cores, BenchError> {
        match allowed()?.as_slice() {
            [client, server, ..] => Ok(Cores { client: *client, server: *server }),
            few => Err(BenchError::TooFewCores { available: few.len() }),
        }
    }

    /// The cores asked for, checked, or the first two.
    pub fn pick_or(asked: Option<Cores>) -> Result<Cores, BenchError> {
        let Some(cores) = asked else { return Cores::pick() };
        let allowed = allowed()?;
        if cores.client == cores.server || !allowed.contains(&cores.client) || !allowed.contains(&cores.server) {
            return Err(BenchError::Cores { given: cores.to_string() });
        }
        Ok(cores)
    }
}

impl FromStr for Cores {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Cores, BenchError> {
        let bad = || BenchError::Cores { given: text.to_owned() };
        let (client, server) = text.split_once(',').ok_or_else(bad)?;
        let cores = Cores { client: client.trim().parse().map_err(|_| bad())?, server: server.trim().parse().map_err(|_| bad())? };
        if cores.client == cores.server { Err(bad()) } else { Ok(cores) }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.client, self.server)
    }
}

/// Ties the calling thread to `core`.
pub fn pin(core: usize) -> Result<(), BenchError> {
    if core >= CpuSet::MAX_CPU {
        return Err(BenchError::Cores { given: core.to_string() });
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(BenchError::system("pinning a thread to its core"))
}

/// Lets the calling thread, and those it starts from now on, run on either of the two cores.
pub fn unpin(cores: Cores) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    set.set(cores.client);
    set.set(cores.server);
    sched_setaffinity(None, &set).map_err(BenchError::system("freeing a thread from its core"))
}

/// The cores this process may use, in order.
pub fn allowed() -> Result<Vec<usize>, BenchError> {
    let set = sched_getaffinity(None).map_err(BenchError::system("asking which cores may be used"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_cores_is_read_and_nonsense_is_refused() {
        assert_eq!("3, 1".parse::<Cores>().unwrap(), Cores { client: 3, server: 1 });
        for bad in ["", "1", "1,1", "a,b", "1,2,3", "-1,0"] {
            let error = bad.parse::<Cores>().unwrap_err().to_string();
            assert!(error.contains("like 0,1"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(pin(CpuSet::MAX_CPU).is_err());
        assert!(Cores::pick_or(Some(Cores { client: 0, server: CpuSet::MAX_CPU - 1 })).is_err());
    }

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        let core = allowed().unwrap()[0];
        std::thread::spawn(move || {
            pin(core).unwrap();
            assert_eq!(allowed().unwrap(), [core]);
            assert_eq!(rustix::thread::sched_getcpu(), core);
        })
        .join()
        .unwrap();
    }
}
