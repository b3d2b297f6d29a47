//! What a caller may ask for: whether, when and how a call gets a second copy.

use std::time::Duration;

use tautline_net::class::Class;

use crate::bucket::Budget;
use crate::estimator::EstimatorConfig;
use crate::header::{MAX_COPIES, Mode};

/// When a call gets more than one copy.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Policy {
    /// Never, other than when a replica refuses it unexecuted or can't be reached.
    #[default]
    None,
    /// When it is not answered after a delay. The answer that comes first wins and the other copy is cancelled, wherever it is.
    Hedged {
        /// The delay, from the sending of a copy to that of the next.
        delay: Delay,
    },
    /// Almost at once, to a replica's queue; the copy that starts first has the others dropped, server to server.
    Tied {
        /// What becomes of a queued loser.
        mode: Mode,
        /// The time from one copy's sending to the next one's.
        stagger: Stagger,
        /// A tie saves a request from a queue, not from a server that stalls once it has started it: one more copy this long
        /// after the start.
        then_hedge: Option<Delay>,
    },
}

impl Policy {
    /// Hedged at the p95 of the call's latency.
    pub fn hedged() -> Policy {
        Policy::Hedged { delay: Delay::Percentile(Percentile::default()) }
    }

    /// Tied, queued losers dropped, staggered by the measured delay.
    pub fn tied() -> Policy {
        Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Auto, then_hedge: None }
    }
}

/// How long to wait before a hedge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// This long. Right for one load only: in a slow cluster it hedges everything, up to the budget.
    Fixed(Duration),
    /// As long as this share of the class's calls take.
    Percentile(Percentile),
}

/// A delay learned from the latency of copies, without bias (see [`crate::estimator`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentile {
    /// The quantile in (0, 1). 0.95 costs about 5 % more copies.
    pub quantile: f64,
    /// The delay until enough is known.
    pub initial: Duration,
    /// Never sooner than this.
    pub least: Duration,
    /// Never later than this.
    pub most: Duration,
}

impl Percentile {
    /// The `quantile`, with room on both sides.
    pub fn new(quantile: f64) -> Percentile {
        Percentile { quantile, ..Percentile::default() }
    }

    /// The delay that follows from what is known.
    pub fn clamp(&self, estimate: Option<Duration>) -> Duration {
        estimate.unwrap_or(self.initial).min(self.most).max(self.least)
    }
}

impl Default for Percentile {
    /// p95; 20 ms until it is known, and between 20 us and 10 s then.
    fn default() -> Percentile {
        Percentile {
            quantile: 0.95,
            initial: Duration::from_millis(20),
            least: Duration::from_micros(20),
            most: Duration::from_secs(10),
        }
    }
}

/// The time between the copies of a tie. With both queues empty both copies would start, unless the second waits for long enough to
/// hear of the first: two message delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stagger {
    /// Twice the mean one-way delay measured to the replicas, and long enough for an idle replica to start and say so; see
    /// [`crate::stagger`].
    #[default]
    Auto,
    /// This long.
    Fixed(Duration),
}

/// How a call of one class is treated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// When it gets more copies.
    pub policy: Policy,
    /// Most copies that the policy sends, the first included: 2 to 4. A tie is among this many replicas.
    pub copies: u8,
    /// Whether a call whose copies were refused, or lost with their servers, goes to another replica. What may have been executed is sent
    /// again only if its method is declared [idempotent](tautline_rpc::Method::idempotent).
    pub failover: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { policy: Policy::None, copies: 2, failover: true }
    }
}

impl Settings {
    /// Two copies under `policy`.
    pub fn new(policy: Policy) -> Settings {
        Settings { policy, ..Settings::default() }
    }

    /// The copies, within what a tie can carry.
    pub(crate) fn copies(&self) -> u8 {
        self.copies.clamp(2, MAX_COPIES as u8)
    }
}

/// How a set of replicas is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// By class.
    pub classes: [Settings; Class::COUNT],
    /// What extra copies of all classes may cost together.
    pub budget: Budget,
    /// Which replica gets a call's first copy.
    pub choice: Choice,
    /// Window and warm-up of the latency estimates; the quantile comes from the [`Delay`].
    pub estimator: EstimatorConfig,
    /// How long a replica that could not be reached gets no extra copies, and no first ones while there is another; doubles up
    /// to 32 times while it goes on.
    pub rest: Duration,
    /// A replica that owes an acknowledgement, and from which nothing at all was heard for so long, counts as lost until it is heard again:
    /// it gets no calls while there is another, and calls whose copies are all at such replicas get one elsewhere, which the budget is
    /// not asked for. Servers acknowledge whatever their workers are busy with, so this is not the time that a call may take; handlers that
    /// run [inline](tautline_rpc::Service::inline) or as futures hold the node up themselves, and must let go of it sooner than that. At least
    /// six round trips, whatever is set.
    pub silence: Duration,
    /// Makes choices and tie ids repeatable. `None`: from the operating system.
    pub seed: Option<u64>,
}

impl Config {
    /// Every class under the same policy.
    pub fn uniform(policy: Policy) -> Config {
        Config { classes: [Settings::new(policy); Class::COUNT], ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            classes: [Settings::default(); Class::COUNT],
            budget: Budget::default(),
            choice: Choice::default(),
            estimator: EstimatorConfig::default(),
            rest: Duration::from_millis(50),
            silence: Duration::from_millis(50),
            seed: None,
        }
    }
}

/// Which replica a copy goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Choice {
    /// The less loaded of two picked at random, by calls outstanding and latency. Every client draws its own pair, so they do not
    /// herd (Mitzenmacher, "The power of two choices in randomized load balancing", 2001).
    #[default]
    TwoRandom,
    /// Each equally often, at random.
    Random,
    /// In the order given, the first that is well: for replicas that are not equal.
    Ordered,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learned_delay_stays_between_its_clamps_and_starts_at_the_initial_one() {
        let delay = Percentile {
            quantile: 0.9,
            initial: Duration::from_millis(5),
            least: Duration::from_millis(1),
            most: Duration::from_millis(9),
        };
        assert_eq!(delay.clamp(None), Duration::from_millis(5));
        assert_eq!(delay.clamp(Some(Duration::from_micros(3))), Duration::from_millis(1));
        assert_eq!(delay.clamp(Some(Duration::from_secs(3))), Duration::from_millis(9));
    }

    #[test]
    fn crossed_clamps_do_not_panic() {
        let delay = Percentile { least: Duration::from_secs(2), most: Duration::from_secs(1), ..Percentile::default() };
        assert_eq!(delay.clamp(None), Duration::from_secs(2));
    }

    #[test]
    fn a_tie_never_asks_for_more_copies_than_it_can_name() {
        assert_eq!(Settings { copies: 0, ..Settings::default() }.copies(), 2);
        assert_eq!(Settings { copies: 200, ..Settings::default() }.copies(), 4);
    }
}
