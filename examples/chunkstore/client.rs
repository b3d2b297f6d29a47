//! The reading client: random chunks at random moments of a set rate, each verified.
//!
//! Reads are due at moments fixed in advance, and a read's latency counts from there: while the replicas are slow, the client goes on
//! asking.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use hdrhistogram::Histogram;
use signal_hook::consts::{SIGINT, SIGTERM};
use tautline_net::port::PortUrl;
use tautline_rpc::{Address, CallError, CallOptions, Class, Fate, Local, Node, Peer, Wait};
use tautline_tied::{Choice, Delay, Mode, Percentile, Policy, Replicas, Stagger, TiedOptions};

use crate::files::Index;
use crate::json::JsonFile;
use crate::server::{READ, STATS, Stats};
use crate::sort::Sorts;
use crate::table::{Outcome, table};
use crate::{Failure, PolicyName, Progress, Read, any_port, check_replicas};

/// Reads before the measured ones, so that sessions are open and delays are known.
const WARM_UP: Duration = Duration::from_secs(1);
/// A read that takes longer is an error.
const DEADLINE: Duration = Duration::from_secs(5);
/// A replica that does not say for longer what it counted is asked no more.
const STATS_DEADLINE: Duration = Duration::from_secs(2);
/// How soon a signal is noticed.
const SIGNAL_CHECK: Duration = Duration::from_millis(20);
const STOPPED: &str = "stopped by a signal";
/// Input of each sort, in bytes.
const SORT_INPUT: u64 = 128 << 20;

/// Reads for as long as asked, and reports.
pub(crate) fn run(args: &Read) -> Result<(), Failure> {
    check_replicas(&args.replicas)?;
    let index = Rc::new(Index::read(&args.dir)?);
    let json = args.json.as_deref().map(JsonFile::claim).transpose()?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let mut sorts = None;
    if args.sort > 0 {
        let started = Sorts::start(&args.dir, args.sort.into(), SORT_INPUT);
        sorts = Some(started.map_err(|error| format!("starting the sorts in {} failed: {error}", args.dir.display()))?);
    }
    let addresses: Vec<Address> = args.replicas.iter().map(|replica| replica.address).collect();
    let mut node = Node::builder(any_port(&addresses)).wait(Wait::Park).build()?;
    let local = node.local();
    let replicas = Replicas::builder()
        .replicas(&args.replicas)
        .policy(policy(args.policy))
        // At random for every policy, so that they differ in nothing but the copies.
        .choice(Choice::Random)
        .build(&local)?;
    let client = Client { local: local.clone(), replicas, index, tally: Rc::new(RefCell::new(Tally::new()?)) };
    let outcome = node.block_on(unless_stopped(&local, &stopped, client.measure(args, &mut sorts)));
    drop(sorts);
    // Ctrl-C reaches replicas in the same terminal too: what failed because they left is of no interest.
    if stopped.load(Ordering::Relaxed) {
        return Err(STOPPED.into());
    }
    let outcome = outcome?;

    match json {
        Some(json) => json.write(&outcome)?,
        None => print!("{}", table(std::slice::from_ref(&outcome))),
    }
    match client.tally.borrow().first_error.as_deref() {
        Some(error) => {
            Err(format!("{} of {} reads failed; the first: {error}", outcome.errors, outcome.reads + outcome.errors).into())
        }
        None => Ok(()),
    }
}

/// Does `work`, or gives it up soon after a signal, whatever it waits for.
async fn unless_stopped<T>(
    local: &Local,
    stopped: &AtomicBool,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let signal = async {
        while !stopped.load(Ordering::Relaxed) {
            local.sleep(SIGNAL_CHECK).await;
        }
    };
    let (mut work, mut signal) = (pin!(work), pin!(signal));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending => signal.as_mut().poll(cx).map(|()| Err(STOPPED.into())),
        done => done,
    })
    .await
}

fn policy(name: PolicyName) -> Policy {
    match name {
        PolicyName::None => Policy::None,
        PolicyName::Hedged => Policy::hedged(),
        PolicyName::Tied => Policy::tied(),
        PolicyName::TiedHedged => {
            let p99 = Delay::Percentile(Percentile::new(0.99));
            Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Auto, then_hedge: Some(p99) }
        }
    }
}

#[derive(Clone)]
struct Client {
    local: Local,
    replicas: Replicas,
    index: Rc<Index>,
    tally: Rc<RefCell<Tally>>,
}

/// What the reads so far gave.
struct Tally {
    /// Nanoseconds, of the measured reads.
    latency: Histogram<u64>,
    made: u64,
    ended: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    fn new() -> Result<Tally, Failure> {
        // No upper bound: the histogram grows with what it is given.
        Ok(Tally { latency: Histogram::new(3)?, made: 0, ended: 0, errors: 0, first_error: None })
    }

    fn fail(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    fn ms(&self, share: f64) -> f64 {
        self.latency.value_at_quantile(share) as f64 / 1e6
    }
}

impl Client {
    async fn measure(&self, args: &Read, sorts: &mut Option<Sorts>) -> Result<Outcome, Failure> {
        let peers: Vec<Peer> = args.replicas.iter().map(|replica| self.local.peer(replica)).collect::<Result<_, _>>()?;
        let before = self.stats(&peers).await;
        if let Some(Err(error)) = before.first()
            && before.iter().all(Result::is_err)
        {
            return Err(format!("no replica answers; of the first, {}: {error}. Do they run?", args.replicas[0]).into());
        }
        for (replica, error) in failures(&args.replicas, &before) {
            eprintln!("chunkstore: {replica} does not answer: {error}. The others are read, and what its disk reads is unknown");
        }
        let mut random = fastrand::Rng::with_seed(args.seed);
        let mut progress = Progress::new();
        let interference = interference(args, &before);
        let name = match args.sort {
            0 => format!("{}, {interference}", args.policy.name()),
            count => format!("{}, {interference} ({count})", args.policy.name()),
        };

        let start = self.local.now() + WARM_UP;
        let end = start + Duration::from_secs(args.seconds);
        let mut due = self.local.now();
        loop {
            // Exponential gaps: 1 - u lies in (0, 1].
            due += Duration::from_secs_f64(-(1.0 - random.f64()).ln() / args.rate);
            if due >= end {
                break;
            }
            self.local.sleep_until(due).await;
            let (chunk, client) = (random.u32(..self.index.chunks()), self.clone());
            self.tally.borrow_mut().made += 1;
            self.local.spawn(async move {
                let read = client.read(chunk).await;
                let latency = client.local.now().nanos_since(due);
                client.tell(read, (due >= start).then_some(latency));
            })?;
            if let Some(error) = sorts.as_mut().and_then(Sorts::failure) {
                return Err(format!("a sort failed: {error}").into());
            }
            // Until then there is nothing to count.
            if self.tally.borrow().latency.is_empty() {
                continue;
            }
            progress.show(|| {
                let tally = self.tally.borrow();
                let seconds = self.local.now().since(start).as_secs();
                format!(
                    "{name}: {seconds} of {} s, {} reads, p50 {:.2} ms, p99 {:.2} ms, {} errors",
                    args.seconds,
                    tally.latency.len(),
                    tally.ms(0.5),
                    tally.ms(0.99),
                    tally.errors
                )
            });
        }
        // Every read ends, by its deadline if by nothing else.
        while self.tally.borrow().ended < self.tally.borrow().made {
            self.local.sleep(Duration::from_millis(5)).await;
        }
        // Losers that were at the disk come to their end, and are counted.
        self.local.sleep(Duration::from_millis(50)).await;
        let after = self.stats(&peers).await;
        let told: Vec<Result<Counted, String>> =
            before.iter().zip(&after).map(|(before, after)| Counted::of(before, after)).collect();
        let outcome = self.outcome(args, interference, &told);
        progress.end(&format!(
            "{name}: {} reads in {} s, p50 {:.2} ms, p99.9 {:.2} ms, {} errors{}",
            outcome.reads,
            args.seconds,
            outcome.p50_ms,
            outcome.p999_ms,
            outcome.errors,
            sorts.as_ref().map_or(String::new(), |sorts| format!(", {} sorts completed", sorts.finished()))
        ));
        for (replica, error) in failures(&args.replicas, &told) {
            eprintln!("chunkstore: {replica} did not tell what its disk read: {error}");
        }
        Ok(outcome)
    }

    /// One read, verified.
    async fn read(&self, chunk: u32) -> Result<(), String> {
        let options = TiedOptions::new().class(Class::Interactive).deadline(DEADLINE);
        let answer = self.replicas.call(READ, chunk.to_le_bytes().to_vec(), &options).await.map_err(|error| error.to_string())?;
        if self.index.verify(chunk, &answer.payload) {
            Ok(())
        } else {
            Err(format!("chunk {chunk} from replica {} does not match its checksum", answer.replica))
        }
    }

    fn tell(&self, read: Result<(), String>, latency: Option<u64>) {
        let mut tally = self.tally.borrow_mut();
        tally.ended += 1;
        match (read, latency) {
            (Ok(()), None) => {}
            // `saturating_record` would not grow the histogram.
            (Ok(()), Some(nanos)) => {
                if let Err(error) = tally.latency.record(nanos) {
                    tally.fail(error.to_string());
                }
            }
            (Err(error), _) => tally.fail(error),
        }
    }

    /// What each replica says that it counted, or why it says nothing. All are asked at once.
    async fn stats(&self, peers: &[Peer]) -> Vec<Result<Stats, String>> {
        let options = || CallOptions::new().deadline(STATS_DEADLINE);
        let calls: Vec<_> = peers.iter().map(|peer| self.local.call(*peer, STATS, Vec::new(), options())).collect();
        let mut all = Vec::with_capacity(peers.len());
        for call in calls {
            let reply = call.await.map_err(|error| silence(&error));
            all.push(reply.and_then(|reply| serde_json::from_slice(&reply).map_err(|error| error.to_string())));
        }
        all
    }

    fn outcome(&self, args: &Read, interference: &str, told: &[Result<Counted, String>]) -> Outcome {
        let tally = self.tally.borrow();
        let metrics = self.replicas.metrics();
        let class = metrics.class(Class::Interactive);
        // A sum that lacks one replica says nothing about double reads.
        let disk_reads: Option<u64> = told.iter().map(|counted| counted.as_ref().ok().map(|counted| counted.reads)).sum();
        let beyond = disk_reads.map(|reads| reads.saturating_sub(tally.made - tally.errors));
        let percent = |part: u64| part as f64 * 100.0 / (tally.made as f64).max(1.0);
        Outcome {
            policy: args.policy.name().to_owned(),
            interference: interference.to_owned(),
            rate: args.rate,
            reads: tally.latency.len(),
            errors: tally.errors,
            p50_ms: tally.ms(0.5),
            p90_ms: tally.ms(0.9),
            p99_ms: tally.ms(0.99),
            p999_ms: tally.ms(0.999),
            extra_requests: percent(class.extra_copies()),
            extra_disk_reads: beyond.map(percent),
            disk_reads_beyond: beyond,
            silent: failures(&args.replicas, told).map(|(replica, _)| replica.to_string()).collect(),
            cancel_us: middle(told.iter().flatten().map(|counted| (counted.cancel_us, counted.cancels)).collect()),
        }
    }
}

/// Why a replica says nothing, as a sentence.
fn silence(error: &CallError) -> String {
    let seconds = STATS_DEADLINE.as_secs();
    match (error, error.fate()) {
        (CallError::DeadlineExceeded { .. } | CallError::Disconnected { .. }, Fate::NotSent) => {
            format!("it could not be reached in {seconds} s")
        }
        (CallError::DeadlineExceeded { .. }, _) => format!("it was asked, and did not answer in {seconds} s"),
        (CallError::Disconnected { .. }, _) => "it was asked, and went away before it answered".to_owned(),
        _ => error.to_string(),
    }
}

/// What went on beside the reads, as the table calls it.
fn interference(args: &Read, replicas: &[Result<Stats, String>]) -> &'static str {
    match (replicas.iter().flatten().any(|stats| stats.sorts), args.sort) {
        (false, 0) => "idle",
        (true, 0) => "sort",
        (_, 1..) => "shared sort",
    }
}

/// The replicas that gave an error, and which.
fn failures<'a, T>(replicas: &'a [PortUrl], given: &'a [Result<T, String>]) -> impl Iterator<Item = (&'a PortUrl, &'a str)> {
    replicas.iter().zip(given).filter_map(|(replica, given)| given.as_ref().err().map(|error| (replica, error.as_str())))
}

/// What one replica counted during the run.
#[derive(Debug, PartialEq)]
struct Counted {
    reads: u64,
    cancels: u64,
    /// The median, in microseconds.
    cancel_us: f64,
}

impl Counted {
    /// From what the replica said before and after.
    fn of(before: &Result<Stats, String>, after: &Result<Stats, String>) -> Result<Counted, String> {
        let (before, after) = (before.as_ref().map_err(String::clone)?, after.as_ref().map_err(String::clone)?);
        if before.start != after.start {
            return Err("it was started again during the run".to_owned());
        }
        Ok(Counted {
            reads: after.reads.saturating_sub(before.reads),
            cancels: after.cancels.saturating_sub(before.cancels),
            cancel_us: after.cancel_us,
        })
    }
}

/// Of several medians the middle one, weighted by how many each stands for.
fn middle(mut medians: Vec<(f64, u64)>) -> Option<f64> {
    medians.retain(|(_, count)| *count > 0);
    medians.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = medians.iter().map(|(_, count)| count).sum::<u64>().div_ceil(2);
    let mut seen = 0;
    let middle = medians.iter().find(|(_, count)| {
        seen += count;
        seen >= half
    });
    middle.map(|(median, _)| *median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_counts_from_its_start_and_an_unknown_one_not_at_all() {
        let stats = |start, reads| Ok(Stats { start, reads, ..Stats::default() });
        assert_eq!(Counted::of(&stats(1, 10), &stats(1, 15)).unwrap().reads, 5);
        assert!(Counted::of(&stats(1, 10), &stats(2, 15)).unwrap_err().contains("started again"));
        assert_eq!(Counted::of(&Err("gone".to_owned()), &stats(2, 15)), Err("gone".to_owned()));
        assert_eq!(Counted::of(&stats(1, 10), &Err("gone".to_owned())), Err("gone".to_owned()));
    }

    #[test]
    fn why_a_replica_is_silent_is_a_sentence() {
        let late = |fate| silence(&CallError::DeadlineExceeded { fate });
        assert_eq!(late(Fate::NotSent), "it could not be reached in 2 s");
        assert_eq!(late(Fate::MaybeExecuted), "it was asked, and did not answer in 2 s");
    }

    #[test]
    fn the_middle_of_medians_is_the_one_that_most_cancels_stand_for() {
        assert_eq!(middle(vec![(9.0, 1), (5.0, 10), (1.0, 2), (0.0, 0)]), Some(5.0));
        assert_eq!(middle(vec![(0.0, 0)]), None);
    }
}
