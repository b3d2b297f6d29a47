//! Short rounds between placement probes: those of one placement are kept, the others run again, a bounded number of times.

use tautline_net::clock::Clock;

use crate::error::BenchError;
use crate::pin::Cores;
use crate::placement::{Distance, Placement, probe};

/// The rounds that may be compared with each other.
#[derive(Debug)]
pub struct Kept<T> {
    /// What each round gave, in order.
    pub rounds: Vec<T>,
    /// The placement they share: the median of their probes.
    pub placement: Placement,
    /// Near or far.
    pub distance: Distance,
    /// Rounds thrown away because the placement changed, or was another one.
    pub discarded: usize,
}

/// Runs `round` until `wanted` rounds of one placement have been measured. After twice as many and two, settles for the
/// largest group if that is at least half of what was wanted.
pub fn run<T>(
    cores: Cores,
    clock: &Clock,
    wanted: usize,
    round: impl FnMut(usize) -> Result<T, BenchError>,
) -> Result<Kept<T>, BenchError> {
    collect(wanted, || probe(cores, clock), round)
}

fn collect<T>(
    wanted: usize,
    mut probe: impl FnMut() -> Result<Placement, BenchError>,
    mut round: impl FnMut(usize) -> Result<T, BenchError>,
) -> Result<Kept<T>, BenchError> {
    let wanted = wanted.max(1);
    let most = wanted * 2 + 2;
    let mut groups: Vec<Vec<(Placement, T)>> = Vec::new();
    let mut shortest = probe()?;
    let mut attempts = 0;
    while attempts < most && groups.iter().all(|group| group.len() < wanted) {
        let before = probe()?;
        let result = round(attempts)?;
        let after = probe()?;
        attempts += 1;
        for seen in [before, after] {
            if seen.round_trip_ns < shortest.round_trip_ns {
                shortest = seen;
            }
        }
        if !before.same_as(after) {
            continue;
        }
        match groups.iter_mut().find(|group| group[0].0.same_as(before)) {
            Some(group) => group.push((before, result)),
            None => groups.push(vec![(before, result)]),
        }
    }
    let kept = groups.into_iter().max_by_key(Vec::len).unwrap_or_default();
    let discarded = attempts - kept.len();
    if kept.len() * 2 < wanted {
        return Err(BenchError::Unsettled { discarded, attempts });
    }
    let mut probes: Vec<f64> = kept.iter().map(|(placement, _)| placement.round_trip_ns).collect();
    probes.sort_by(f64::total_cmp);
    let placement = Placement { round_trip_ns: probes[probes.len() / 2] };
    Ok(Kept {
        distance: placement.distance(shortest),
        placement,
        rounds: kept.into_iter().map(|(_, result)| result).collect(),
        discarded,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `collect` with the probes given, one after the other, the last for ever.
    fn with_probes(wanted: usize, probes: &[f64]) -> Result<Kept<usize>, BenchError> {
        let mut next = 0;
        let probe = || {
            let seen = Placement { round_trip_ns: probes[next.min(probes.len() - 1)] };
            next += 1;
            Ok(seen)
        };
        collect(wanted, probe, Ok)
    }

    #[test]
    fn a_steady_machine_discards_nothing() {
        let kept = with_probes(3, &[120.0]).unwrap();
        assert_eq!((kept.rounds, kept.discarded, kept.distance), (vec![0, 1, 2], 0, Distance::Near));
    }

    #[test]
    fn a_round_during_which_the_cores_moved_is_run_again() {
        let kept = with_probes(2, &[120.0, 120.0, 480.0, 120.0]).unwrap();
        assert_eq!((kept.rounds, kept.discarded), (vec![1, 2], 1));
    }

    #[test]
    fn rounds_of_two_placements_are_not_mixed() {
        let kept = with_probes(2, &[120.0, 120.0, 120.0, 480.0, 480.0, 480.0]).unwrap();
        assert_eq!((kept.rounds, kept.discarded, kept.distance), (vec![1, 2], 1, Distance::Far));
    }

    #[test]
    fn a_machine_that_never_settles_ends_in_an_error_and_not_in_a_loop() {
        let restless: Vec<f64> = (0..100).map(|n| if n % 2 == 0 { 100.0 } else { 400.0 }).collect();
        assert!(matches!(with_probes(4, &restless), Err(BenchError::Unsettled { attempts: 10, .. })));
    }

    #[test]
    fn an_error_in_a_round_ends_the_run() {
        let silent = |_| Err::<(), _>(BenchError::Silent { what: "x", seconds: 1 });
        assert!(collect(2, || Ok(Placement { round_trip_ns: 100.0 }), silent).is_err());
    }
}
