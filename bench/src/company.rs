//! What else ran on the machine while something was measured.

use std::fs;
use std::time::Instant;

/// Ticks a second in what Linux tells user space, on every architecture that Tautline runs on.
const TICKS: f64 = 100.0;

/// Time that processors spent on anything, and that of this process and its children, since the start.
#[derive(Debug)]
pub struct Company {
    since: Instant,
    before: Option<Spent>,
}

/// Seconds of processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spent {
    machine: f64,
    own: f64,
}

impl Company {
    /// Starts to count. Children that end later must have been started later too.
    pub fn start() -> Company {
        Company { since: Instant::now(), before: Spent::now() }
    }

    /// Nobody, whatever runs.
    #[cfg(test)]
    pub(crate) fn none() -> Company {
        Company { since: Instant::now(), before: None }
    }

    /// How many cores other processes kept busy since the start; none where the system does not say.
    pub fn others(&self) -> f64 {
        match (self.before, Spent::now()) {
            (Some(before), Some(after)) => others(before, after, self.since.elapsed().as_secs_f64()),
            _ => 0.0,
        }
    }
}

fn others(before: Spent, after: Spent, seconds: f64) -> f64 {
    // Counted in ticks of 10 ms: less than a few of them says nothing.
    if seconds < 0.2 {
        return 0.0;
    }
    ((after.machine - before.machine) - (after.own - before.own)).max(0.0) / seconds
}

impl Spent {
    fn now() -> Option<Spent> {
        let machine = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = own_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
        Some(Spent { machine: machine as f64 / TICKS, own: own as f64 / TICKS })
    }
}

/// User, nice, system, interrupts; not idle, nor what a host took away.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

/// Of the process and of its children that have ended and been waited for.
fn own_ticks(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain anything; utime is the twelfth field after it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_the_tables() {
        assert_eq!(busy_ticks("cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 1 1 1\n"), Some(163));
        assert_eq!(busy_ticks("intr 1 2 3"), None);
        assert_eq!(own_ticks("7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 100 20 3 4 20 0 1"), Some(127));
    }

    #[test]
    fn others_are_what_is_not_this_process() {
        let (before, after) = (Spent { machine: 10.0, own: 1.0 }, Spent { machine: 16.0, own: 5.0 });
        assert_eq!(others(before, after, 2.0), 1.0);
        assert_eq!(others(before, after, 0.01), 0.0);
        assert_eq!(others(before, Spent { machine: 12.0, own: 5.0 }, 2.0), 0.0);
    }

    #[test]
    fn this_system_says_what_it_spent() {
        assert!(Spent::now().is_some_and(|spent| spent.machine > 0.0));
    }
}
