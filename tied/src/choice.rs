//! Which replica a copy goes to: standings of the replicas as this client sees them, and a choice between two at random.
//!
//! Every client draws its own pair of candidates, so clients with the same view do not all pick the same "best" server. A replica of
//! which nothing is known counts as an average one, neither best nor worst. One that looked slow drifts back towards the average while
//! it is not used, so it is tried again; one that pushed back, or can't be reached, rests: it gets no extra copies, and no
//! originals while there is another. So does one that is silent, until something is heard from it. One that refused a tie is not tied to for a while. No replica is ever ruled out for an original: if all rest, the one that is back first gets it.

use std::time::Duration;

use smallvec::SmallVec;
use tautline_net::clock::Time;

use crate::policy::Choice;

/// The replicas' standings, and the dice.
#[derive(Debug)]
pub struct Standings {
    choice: Choice,
    rest: Duration,
    replicas: Vec<Standing>,
    rng: fastrand::Rng,
}

#[derive(Clone, Debug, Default)]
struct Standing {
    outstanding: u32,
    /// A moving mean of the latency of copies, in nanoseconds, and when it last moved.
    latency: Option<f64>,
    measured: Time,
    rests_until: Time,
    /// Failures to reach it in a row.
    failures: u32,
    /// Copies given up unanswered in a row.
    unanswered: u32,
    /// Nothing is heard from it, though it owes an acknowledgement.
    silent: bool,
    /// It was silent, and has not been heard since.
    lost: bool,
    /// Until when it is taken to take no ties; it was never heard to refuse one if that is zero.
    untied_until: Time,
}

/// The weight of a new latency in its mean.
const WEIGHT: f64 = 0.1;
/// In how long an unused replica's distance from the average halves.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// A longer rest is not believed, whatever a server asks for.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// How long a replica that refused a tie is not tied to: an upgrade of a fleet takes minutes, and a refusal costs a round trip.
pub const UNTIED: Duration = Duration::from_secs(30);
/// So many copies in a row without an answer mean that a replica is silent, not slow.
const SILENT: u32 = 16;

impl Standings {
    /// Standings of `replicas` replicas of which nothing is known.
    pub fn new(replicas: usize, choice: Choice, rest: Duration, rng: fastrand::Rng) -> Standings {
        Standings { choice, rest, replicas: vec![Standing::default(); replicas], rng }
    }

    /// A replica for a call's first copy: any, if there is one at all.
    pub fn original(&mut self, now: Time) -> Option<usize> {
        let well = self.candidates(&[], now);
        let first = self.choose(&well, now).or_else(|| {
            // All are silent or rest. A silence of all may be the network's: any of them may be back first.
            let silent = (0..self.replicas.len()).filter(|replica| self.replicas[*replica].rests_until <= now);
            let silent: SmallVec<[usize; 16]> = silent.collect();
            self.choose(&silent, now)
        });
        first.or_else(|| (0..self.replicas.len()).min_by_key(|replica| self.replicas[*replica].rests_until))
    }

    /// A replica for another copy of a call: not one of `taken`, and none that rests.
    pub fn extra(&mut self, taken: &[usize], now: Time) -> Option<usize> {
        let well = self.candidates(taken, now);
        self.choose(&well, now)
    }

    /// A replica for a call's first copy, of those that are well and take ties; `None` if fewer than two do, for one can't be tied.
    pub fn tied(&mut self, now: Time) -> Option<usize> {
        let mut well = self.candidates(&[], now);
        well.retain(|replica| self.takes_ties(*replica, now));
        if well.len() < 2 { None } else { self.choose(&well, now) }
    }

    /// A replica for another copy of a tie: not one of `taken`, none that rests, and none that takes no ties.
    pub fn tied_to(&mut self, taken: &[usize], now: Time) -> Option<usize> {
        let mut well = self.candidates(taken, now);
        well.retain(|replica| self.takes_ties(*replica, now));
        self.choose(&well, now)
    }

    /// A copy is on its way.
    pub fn sent(&mut self, replica: usize) {
        self.replicas[replica].outstanding += 1;
    }

    /// A copy is no longer under way, however it ended.
    pub fn ended(&mut self, replica: usize) {
        let standing = &mut self.replicas[replica];
        standing.outstanding = standing.outstanding.saturating_sub(1);
    }

    /// A copy was answered after `latency`.
    pub fn answered(&mut self, replica: usize, latency: Duration, now: Time) {
        let standing = &mut self.replicas[replica];
        standing.failures = 0;
        standing.unanswered = 0;
        standing.rests_until = Time::ZERO;
        self.measure(replica, latency.as_nanos() as f64, now);
    }

    /// A copy was given up unanswered after `waited`. That tells something only if it is longer than usual.
    pub fn given_up(&mut self, replica: usize, waited: Duration, now: Time) {
        let standing = &mut self.replicas[replica];
        standing.unanswered = standing.unanswered.saturating_add(1);
        let waited = waited.as_nanos() as f64;
        if standing.latency.is_none_or(|latency| waited > latency) {
            self.measure(replica, waited, now);
        }
    }

    /// A replica pushed back, perhaps with a time to come again.
    pub fn pushed_back(&mut self, replica: usize, retry_after: Option<Duration>, now: Time) {
        let standing = &mut self.replicas[replica];
        standing.rests_until = standing.rests_until.max(now + retry_after.unwrap_or(self.rest).min(LONGEST_REST));
    }

    /// A replica refused a tie: it has no part in any for [`UNTIED`]. `true` the first time.
    pub fn refused_tie(&mut self, replica: usize, now: Time) -> bool {
        std::mem::replace(&mut self.replicas[replica].untied_until, now + UNTIED) == Time::ZERO
    }

    /// Whether a replica takes ties, as far as is known.
    pub fn takes_ties(&self, replica: usize, now: Time) -> bool {
        self.replicas[replica].untied_until <= now
    }

    /// A replica could not be reached.
    pub fn unreachable(&mut self, replica: usize, now: Time) {
        let standing = &mut self.replicas[replica];
        standing.rests_until = now + (self.rest * (1 << standing.failures.min(5))).min(LONGEST_REST);
        standing.failures = standing.failures.saturating_add(1);
    }

    /// A replica has been heard, or nobody waits for a word from it.
    pub fn heard(&mut self, replica: usize) {
        let standing = &mut self.replicas[replica];
        (standing.silent, standing.lost) = (false, false);
    }

    /// A replica has owed a word for too long.
    pub fn silent(&mut self, replica: usize) {
        let standing = &mut self.replicas[replica];
        (standing.silent, standing.lost) = (true, true);
    }

    /// Nothing is under way to a replica, not even an attempt to reach it: if it was silent, the next call may be one, and the others wait for
    /// what becomes of that ([`Standings::is_lost`]).
    pub fn untried(&mut self, replica: usize) {
        self.replicas[replica].silent = false;
    }

    /// Whether a replica was silent and has not been heard since.
    pub fn is_lost(&self, replica: usize) -> bool {
        self.replicas[replica].lost
    }

    /// Whether a replica answers at all: what is given up there says nothing of latency otherwise.
    pub fn is_silent(&self, replica: usize) -> bool {
        self.replicas[replica].unanswered >= SILENT
    }

    /// Whether a replica rests at `now`, or is silent.
    pub fn rests(&self, replica: usize, now: Time) -> bool {
        let standing = &self.replicas[replica];
        standing.silent || standing.rests_until > now
    }

    /// Copies under way at a replica.
    pub fn outstanding(&self, replica: usize) -> u32 {
        self.replicas[replica].outstanding
    }

    fn candidates(&self, taken: &[usize], now: Time) -> SmallVec<[usize; 16]> {
        (0..self.replicas.len()).filter(|replica| !taken.contains(replica) && !self.rests(*replica, now)).collect()
    }

    fn choose(&mut self, candidates: &[usize], now: Time) -> Option<usize> {
        let count = candidates.len();
        match self.choice {
            _ if count <= 1 => candidates.first().copied(),
            Choice::Ordered => candidates.first().copied(),
            Choice::Random => Some(candidates[self.rng.usize(..count)]),
            Choice::TwoRandom => {
                let one = self.rng.usize(..count);
                let other = (one + 1 + self.rng.usize(..count - 1)) % count;
                let (one, other) = (candidates[one], candidates[other]);
                let average = self.average();
                // Both orders of a pair are equally likely, so equals share.
                Some(if self.load(other, average, now) < self.load(one, average, now) { other } else { one })
            }
        }
    }

    /// The time that a call more would take: that of those before it, and its own.
    fn load(&self, replica: usize, average: f64, now: Time) -> f64 {
        let latency = self.latency(replica, average, now).unwrap_or(average);
        (f64::from(self.replicas[replica].outstanding) + 1.0) * latency.max(1.0)
    }

    /// What is left of a replica's measured latency, if there was one.
    fn latency(&self, replica: usize, average: f64, now: Time) -> Option<f64> {
        let standing = &self.replicas[replica];
        let age = now.since(standing.measured).as_secs_f64() / HALF_LIFE.as_secs_f64();
        Some(average + (standing.latency? - average) * 0.5f64.powf(age))
    }

    /// A replica took so long. That adds to what is left of its latency: else one call would bring all of an old one back.
    fn measure(&mut self, replica: usize, nanos: f64, now: Time) {
        let before = self.latency(replica, self.average(), now).unwrap_or(nanos);
        let standing = &mut self.replicas[replica];
        standing.latency = Some(before + (nanos - before) * WEIGHT);
        standing.measured = now;
    }

    /// The mean latency of the replicas. Those measured lately count for more: a bad one that is not used any more would draw the average up, and
    /// then never come back to it.
    fn average(&self) -> f64 {
        let latest = self.replicas.iter().filter(|replica| replica.latency.is_some()).map(|replica| replica.measured).max();
        let Some(latest) = latest else { return 1.0 };
        let known = self.replicas.iter().filter_map(|replica| Some((replica.latency?, replica.measured)));
        let (weight, sum) = known.fold((0.0, 0.0), |(all, sum), (latency, measured)| {
            let weight = 0.5f64.powf(latest.since(measured).as_secs_f64() / HALF_LIFE.as_secs_f64());
            (all + weight, sum + weight * latency)
        });
        sum / weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn standings(replicas: usize, choice: Choice) -> Standings {
        Standings::new(replicas, choice, 50 * MS, fastrand::Rng::with_seed(1))
    }

    fn shares(standings: &mut Standings, now: Time) -> Vec<usize> {
        let mut counts = vec![0; standings.replicas.len()];
        for _ in 0..3000 {
            counts[standings.original(now).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn replicas_of_which_nothing_is_known_share_equally_with_average_ones() {
        let mut standings = standings(3, Choice::TwoRandom);
        let start = shares(&mut standings, Time::ZERO);
        assert!(start.iter().all(|share| (850..1150).contains(share)), "{start:?}");
        standings.answered(0, MS, Time::ZERO);
        standings.answered(1, MS, Time::ZERO);
        let later = shares(&mut standings, Time::ZERO);
        assert!(later.iter().all(|share| (850..1150).contains(share)), "the unknown one was flooded or starved: {later:?}");
    }

    #[test]
    fn clients_with_the_same_view_do_not_pick_the_same_replica() {
        let mut picks = [0; 4];
        for seed in 0..400 {
            let mut standings = Standings::new(4, Choice::TwoRandom, MS, fastrand::Rng::with_seed(seed));
            for (replica, latency) in [1u32, 2, 3, 4].into_iter().enumerate() {
                standings.answered(replica, latency * MS, Time::ZERO);
            }
            picks[standings.original(Time::ZERO).unwrap()] += 1;
        }
        assert!((150..250).contains(&picks[0]) && picks[1] > 80 && picks[2] > 30, "the best of a random pair: {picks:?}");
    }

    #[test]
    fn a_replica_that_refused_a_tie_is_left_out_of_ties_for_a_while_and_of_nothing_else() {
        let mut standings = standings(3, Choice::Ordered);
        let start = Time::ZERO + MS;
        assert!(standings.refused_tie(0, start), "the first time");
        assert!(!standings.refused_tie(0, start));
        assert_eq!((standings.tied(start), standings.original(start)), (Some(1), Some(0)));
        assert_eq!((standings.tied_to(&[1], start), standings.extra(&[1], start)), (Some(2), Some(0)));
        standings.refused_tie(1, start);
        assert_eq!(standings.tied(start), None, "one replica can't be tied");
        assert_eq!(standings.tied(start + UNTIED), Some(0));
    }

    #[test]
    fn a_slow_replica_gets_less_and_is_tried_again_after_a_while() {
        let mut standings = standings(2, Choice::TwoRandom);
        let start = Time::ZERO + MS;
        standings.answered(0, MS, start);
        standings.answered(1, 50 * MS, start);
        standings.sent(0);
        assert_eq!(shares(&mut standings, start), [3000, 0]);
        let later = shares(&mut standings, start + Duration::from_secs(20));
        assert!(later[1] > 1000, "never tried again: {later:?}");
    }

    #[test]
    fn a_replica_that_looked_very_bad_is_tried_again_though_the_others_are_idle() {
        let mut standings = standings(3, Choice::TwoRandom);
        let start = Time::ZERO + MS;
        standings.answered(0, 1000 * MS, start);
        let later = start + Duration::from_secs(15);
        [1, 2].into_iter().for_each(|replica| standings.answered(replica, MS, later));
        let load = |standings: &Standings| standings.load(0, standings.average(), later) / MS.as_nanos() as f64;
        assert!(load(&standings) < 1.1, "{}", load(&standings));
        standings.answered(0, MS, later);
        assert!(load(&standings) < 1.1, "one answer brought it all back: {}", load(&standings));
    }

    #[test]
    fn a_silent_replica_gets_nothing_while_there_is_another_and_its_share_if_there_is_none() {
        let mut standings = standings(2, Choice::Random);
        standings.silent(0);
        assert_eq!(shares(&mut standings, Time::ZERO), [0, 3000]);
        assert_eq!((standings.tied(Time::ZERO), standings.extra(&[1], Time::ZERO)), (None, None));
        standings.silent(1);
        let both = shares(&mut standings, Time::ZERO);
        assert!(both[0] > 1000 && both[1] > 1000, "any may be back first: {both:?}");
        standings.untried(0);
        assert!(
            standings.is_lost(0) && shares(&mut standings, Time::ZERO) == [3000, 0],
            "it may be tried, and that is not to be back"
        );
        (0..2).for_each(|replica| standings.heard(replica));
        assert!(!standings.is_lost(0) && standings.tied(Time::ZERO).is_some());
    }

    #[test]
    fn an_extra_copy_respects_the_rest_that_a_server_asked_for() {
        let mut standings = standings(3, Choice::Random);
        let now = Time::ZERO + MS;
        standings.pushed_back(1, Some(5 * MS), now);
        for _ in 0..50 {
            assert_eq!(standings.extra(&[0], now), Some(2));
            assert_ne!(standings.original(now), Some(1));
        }
        assert_eq!(standings.extra(&[0, 2], now), None);
        assert_eq!(standings.extra(&[0, 2], now + 5 * MS), Some(1));
    }

    #[test]
    fn an_original_goes_somewhere_even_if_all_rest() {
        let mut standings = standings(2, Choice::TwoRandom);
        standings.pushed_back(0, Some(Duration::MAX), Time::ZERO);
        standings.unreachable(1, Time::ZERO);
        assert_eq!(standings.original(Time::ZERO), Some(1), "the one that is back first");
        assert!(standings.extra(&[], Time::ZERO + Duration::from_secs(11)).is_some(), "no rest is endless");
    }

    #[test]
    fn unreachable_replicas_rest_longer_each_time_and_are_forgiven_at_once() {
        let mut standings = standings(2, Choice::Ordered);
        let mut rest = Duration::ZERO;
        for _ in 0..40 {
            standings.unreachable(0, Time::ZERO);
            assert!(standings.replicas[0].rests_until.since(Time::ZERO) >= rest);
            rest = standings.replicas[0].rests_until.since(Time::ZERO);
        }
        assert_eq!(rest, 50 * MS * 32);
        assert_eq!(standings.original(Time::ZERO), Some(1));
        standings.answered(0, MS, Time::ZERO);
        assert_eq!(standings.original(Time::ZERO), Some(0));
    }

    #[test]
    fn with_no_replica_there_is_no_choice() {
        for choice in [Choice::TwoRandom, Choice::Random, Choice::Ordered] {
            let mut none = standings(0, choice);
            assert_eq!((none.original(Time::ZERO), none.extra(&[], Time::ZERO)), (None, None));
            let mut one = standings(1, choice);
            assert_eq!((one.original(Time::ZERO), one.extra(&[0], Time::ZERO)), (Some(0), None));
        }
    }

    #[test]
    fn a_replica_that_only_ever_loses_is_silent_until_it_answers() {
        let mut standings = standings(2, Choice::TwoRandom);
        (0..SILENT).for_each(|_| standings.given_up(0, MS, Time::ZERO));
        assert!(standings.is_silent(0) && !standings.is_silent(1));
        standings.answered(0, MS, Time::ZERO);
        assert!(!standings.is_silent(0));
    }
}
