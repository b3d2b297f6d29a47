//! One token bucket for everything that multiplies load: hedges, second copies, retries of what a server refused.
//!
//! Copies are paid for by originals: each original call puts a fraction of a token in, each extra copy takes a whole one out. So the
//! extra load is bounded by a share of the real load whatever the cluster does, and the storm that a fixed hedge delay starts in a
//! slow cluster starves itself (the rule is gRPC's retry throttle and SRE practice; integers, so that it neither drifts nor rounds).
//! An empty bucket suppresses the copy. It never touches the original, and is not asked for what takes the place of an original that was never
//! sent, or whose server is gone: that multiplies nothing (gRPC's "transparent retries" are not throttled either).

use std::cell::Cell;

/// How many extra copies a set of replicas may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Extra copies per thousand originals, in the long run.
    pub per_thousand: u32,
    /// How many may be sent in one go after a quiet time. Also what a new bucket holds. A tied copy holds a token until it is known
    /// to have been dropped, so this is also how many ties may be undecided at once.
    pub burst: u32,
}

impl Budget {
    /// No extra copy, ever.
    pub const NONE: Budget = Budget { per_thousand: 0, burst: 0 };
    /// As many as wanted: for experiments, and for ties where the cancel is known to be cheap.
    pub const UNLIMITED: Budget = Budget { per_thousand: u32::MAX, burst: u32::MAX };
}

impl Default for Budget {
    /// One extra copy for ten originals, a hundred at once.
    fn default() -> Budget {
        Budget { per_thousand: 100, burst: 100 }
    }
}

/// The level of a [`Budget`], in thousandths of a token.
#[derive(Debug)]
pub struct Bucket {
    budget: Budget,
    level: Cell<u64>,
}

/// One token.
const TOKEN: u64 = 1000;

impl Bucket {
    /// A full bucket.
    pub fn new(budget: Budget) -> Bucket {
        Bucket { budget, level: Cell::new(Bucket::limit(budget)) }
    }

    /// An original call was sent: its share goes in.
    pub fn deposit(&self) {
        let level = self.level.get() + u64::from(self.budget.per_thousand);
        self.level.set(level.min(Bucket::limit(self.budget)));
    }

    /// Takes a token for an extra copy. `false`: don't send it.
    #[must_use]
    pub fn take(&self) -> bool {
        match self.level.get().checked_sub(TOKEN) {
            Some(rest) => {
                self.level.set(rest);
                true
            }
            None => false,
        }
    }

    /// Gives back the token of a copy that could not be sent after all.
    pub fn refund(&self) {
        self.level.set((self.level.get() + TOKEN).min(Bucket::limit(self.budget)));
    }

    /// Whole tokens left.
    pub fn available(&self) -> u64 {
        self.level.get() / TOKEN
    }

    fn limit(budget: Budget) -> u64 {
        u64::from(budget.burst) * TOKEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_copies_stay_below_their_share_of_the_originals() {
        let bucket = Bucket::new(Budget { per_thousand: 50, burst: 7 });
        let mut sent = 0;
        for _ in 0..10_000 {
            bucket.deposit();
            sent += u64::from(bucket.take());
        }
        assert_eq!(sent, 7 + 499, "the burst, and then 5 % of the originals (the first found the bucket full)");
    }

    #[test]
    fn a_quiet_time_saves_no_more_than_the_burst() {
        let bucket = Bucket::new(Budget { per_thousand: 100, burst: 3 });
        for _ in 0..1_000_000 {
            bucket.deposit();
        }
        assert_eq!(bucket.available(), 3);
        assert_eq!((0..10).filter(|_| bucket.take()).count(), 3);
    }

    #[test]
    fn a_refund_is_worth_one_copy_and_never_overfills() {
        let bucket = Bucket::new(Budget { per_thousand: 0, burst: 1 });
        assert!(bucket.take());
        assert!(!bucket.take());
        bucket.refund();
        bucket.refund();
        assert!(bucket.take());
        assert!(!bucket.take());
    }

    #[test]
    fn no_budget_means_no_copy_and_an_unlimited_one_never_overflows() {
        let none = Bucket::new(Budget::NONE);
        none.deposit();
        assert!(!none.take());
        let all = Bucket::new(Budget::UNLIMITED);
        for _ in 0..100 {
            all.deposit();
            all.refund();
            assert!(all.take());
        }
    }

    #[test]
    fn a_share_that_does_not_divide_a_token_is_not_rounded_away() {
        let bucket = Bucket::new(Budget { per_thousand: 3, burst: 1 });
        assert!(bucket.take());
        let waited = (1..).find(|_| {
            bucket.deposit();
            bucket.take()
        });
        assert_eq!(waited, Some(334));
    }
}
