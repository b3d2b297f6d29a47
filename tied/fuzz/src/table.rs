//! Target `table`: a server's ties, told anything by clients and by other servers, in any order. A copy is dropped, demoted or stopped
//! only by the replica that it names, for the client that sent it, and only by a copy that outranks it if both have started; nobody else
//! is ever told of a start; and every bound holds.

use std::collections::BTreeMap;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use tautline_net::clock::Time;
use tautline_net::port::Address;
use tautline_net_fuzz::near::Span;
use tautline_net_fuzz::replay;
use tautline_tied::header::{Control, Mode, Outcome, TieHeader, TieId};
use tautline_tied::table::{Admission, Queue, Removal, Table, TableConfig};

/// Steps of one input at most.
const STEPS: usize = 500;
const COPIES: usize = 12;
const TOMBSTONES: usize = 6;
const LIFE: Duration = Duration::from_secs(1);
/// Addresses from 0 on are replicas, from this one on strangers.
const REPLICAS: u8 = 4;

#[derive(Arbitrary, Debug)]
enum Step {
    Admit {
        id: u8,
        client: u8,
        demote: bool,
        rank: u8,
        copies: [u8; 3],
    },
    Start {
        which: u8,
    },
    Finish {
        which: u8,
    },
    Cancel {
        id: u8,
        client: u8,
        demote: bool,
        from: u8,
        to: u8,
        sender: u8,
    },
    Outcome {
        id: u8,
        from: u8,
        to: u8,
        outcome: u8,
        sender: u8,
        sent_at: u32,
    },
    /// A message as it comes from the wire.
    Message {
        bytes: [u8; 48],
        length: u8,
        sender: u8,
    },
    Pass(Span),
    Allow(u8),
    Disallow(u8),
}

/// A copy in the run queue.
struct Queued {
    header: TieHeader,
    client: Address,
    started: bool,
    demoted: bool,
    stopped: bool,
    /// Whether the table knows it.
    tied: bool,
}

struct World {
    now: Time,
    table: Table<u32>,
    queue: Run,
    allowed: Vec<Address>,
    next_entry: u32,
}

#[derive(Default)]
struct Run {
    entries: BTreeMap<u32, Queued>,
    /// The cancel that is being obeyed, and who sent it.
    cancel: Option<(Control, Address)>,
    dropped: Vec<u32>,
}

/// Runs the steps that `data` stands for.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let allowed: Vec<Address> = (0..REPLICAS).map(address).collect();
    let match_client_port = input.arbitrary().unwrap_or(true);
    let config =
        TableConfig { allowed: allowed.clone(), copies: COPIES, tombstones: TOMBSTONES, tombstone_life: LIFE, match_client_port };
    let now = Time::from_nanos(1_000_000_000);
    let mut world = World { now, table: Table::new(config), queue: Run::default(), allowed, next_entry: 0 };
    replay::steps(&mut input, STEPS, |step: Step| {
        world.step(step);
        assert!(world.table.len() <= COPIES && world.table.tombstones().0 <= TOMBSTONES);
    });
    for entry in world.queue.entries.keys() {
        world.table.finished(*entry, world.now);
    }
    assert!(world.table.is_empty(), "a copy is known that is over");
}

fn address(number: u8) -> Address {
    Address::Inet(([10, 0, 0, number], 7000).into())
}

/// A client of this number: some share an address, and differ by port.
fn client(number: u8) -> Address {
    Address::Inet(([10, 0, 1, number % 2], 1 + u16::from(number) % 4).into())
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Admit { id, client: from, demote, rank, copies } => {
                let mut addresses = smallvec(copies);
                addresses.dedup();
                if addresses.len() < 2 {
                    return;
                }
                let header = TieHeader {
                    id: TieId(u128::from(id % 8)),
                    mode: mode(demote),
                    rank: rank % addresses.len() as u8,
                    copies: addresses.into_iter().map(|number| address(number % (REPLICAS + 2))).collect(),
                };
                // Only what can be read gets that far.
                let Ok(header) = TieHeader::parse(&header.emit()) else { return };
                let before = self.table.len();
                let entry = self.next_entry;
                self.next_entry += 1;
                let admission = self.table.admit(entry, header.clone(), client(from), self.now);
                let tied = self.table.len() > before;
                if admission == Admission::Drop {
                    assert!(!tied);
                    return;
                }
                let demoted = admission == Admission::Demote;
                let queued = Queued { header, client: client(from), started: false, demoted, stopped: false, tied };
                self.queue.entries.insert(entry, queued);
            }
            Step::Start { which } => self.start(which),
            Step::Finish { which } => {
                if let Some(entry) = self.queue.at(which) {
                    self.table.finished(entry, self.now);
                    self.queue.entries.remove(&entry);
                }
            }
            Step::Cancel { id, client: of, demote, from, to, sender } => {
                let cancel = Control::Cancel {
                    id: TieId(u128::from(id % 8)),
                    mode: mode(demote),
                    from: from % 5,
                    to: to % 5,
                    client: client(of),
                    sent_at: u64::from(of),
                };
                self.message(&cancel.emit(), sender);
            }
            Step::Outcome { id, from, to, outcome, sender, sent_at } => {
                let outcome = Outcome::ALL[usize::from(outcome) % Outcome::ALL.len()];
                let sent_at = u64::from(sent_at) * 1_000;
                self.message(&Control::Outcome { id: TieId(u128::from(id % 8)), from, to, outcome, sent_at }.emit(), sender);
            }
            Step::Message { bytes, length, sender } => self.message(&bytes[..usize::from(length).min(bytes.len())], sender),
            Step::Pass(span) => self.now = self.now.plus_nanos(span.nanos()),
            Step::Allow(number) => {
                let replica = address(number % (REPLICAS + 2));
                self.table.allow(replica);
                if !self.allowed.contains(&replica) {
                    self.allowed.push(replica);
                }
            }
            Step::Disallow(number) => {
                let replica = address(number % (REPLICAS + 2));
                self.table.disallow(&replica);
                self.allowed.retain(|allowed| *allowed != replica);
            }
        }
    }

    fn start(&mut self, which: u8) {
        let Some(entry) = self.queue.at(which) else { return };
        let mut messages = Vec::new();
        self.table.started(entry, self.now, |to, control| messages.push((to, control)));
        let copy = self.queue.entries.get_mut(&entry).expect("just found");
        let silent = copy.started || copy.demoted || copy.stopped || !copy.tied;
        assert!(messages.is_empty() || !silent, "a start that is none was told: {messages:?}");
        let others = copy.header.copies.iter().enumerate().filter(|(rank, _)| *rank != usize::from(copy.header.rank));
        let expected = others.filter(|(_, address)| self.allowed.contains(address)).count();
        assert_eq!(messages.len(), if silent { 0 } else { expected });
        for (to, control) in &messages {
            let Control::Cancel { id, from, to: rank, client, .. } = control else { panic!("not a cancel: {control:?}") };
            assert!(self.allowed.contains(to), "a stranger was told");
            assert_eq!((*id, *from, *client), (copy.header.id, copy.header.rank, copy.client));
            assert_eq!(copy.header.copies[usize::from(*rank)], *to, "another copy's server was told");
        }
        copy.started = true;
    }

    fn message(&mut self, bytes: &[u8], sender: u8) {
        let sender = address(sender % (REPLICAS + 2));
        let answer = match Control::parse(bytes) {
            Ok(control @ Control::Cancel { .. }) => {
                self.queue.cancel = Some((control, sender));
                let answer = self.table.cancel(&control, sender, self.now, &mut self.queue);
                self.queue.cancel = None;
                answer
            }
            Ok(control) => {
                let told = self.table.outcome(&control, sender, self.now);
                assert!(told.is_none() || self.allowed.contains(&sender), "a stranger's word was taken");
                None
            }
            Err(_) => None,
        };
        for dropped in std::mem::take(&mut self.queue.dropped) {
            self.queue.entries.remove(&dropped);
        }
        if let Some((to, control)) = answer {
            assert!(to == sender && self.allowed.contains(&sender), "an answer to a stranger");
            assert!(matches!(control, Control::Outcome { .. }));
        }
    }
}

impl Run {
    fn at(&self, which: u8) -> Option<u32> {
        self.entries.keys().nth(usize::from(which) % self.entries.len().max(1)).copied()
    }

    /// The copy, which the cancel must be right for.
    fn meant(&mut self, entry: u32) -> (&mut Queued, u8, u8) {
        let (control, sender) = self.cancel.expect("the queue is touched for a cancel only");
        let copy = self.entries.get_mut(&entry).expect("the table knows only what is there");
        let Control::Cancel { id, from, to, client, .. } = control else { panic!("not a cancel: {control:?}") };
        assert_eq!((copy.header.id, copy.header.rank), (id, to), "another copy was meant");
        // Without their ports, where those are not to be matched; then the addresses agree.
        let (Address::Inet(a), Address::Inet(b)) = (copy.client, client) else { panic!("clients have addresses") };
        assert_eq!(a.ip(), b.ip(), "another client's copy was meant");
        assert_eq!(copy.header.copies.get(usize::from(from)), Some(&sender), "somebody else may not say so");
        (copy, from, to)
    }
}

impl Queue<u32> for Run {
    fn drop_queued(&mut self, entry: u32) -> Removal {
        let (copy, ..) = self.meant(entry);
        if copy.started {
            return Removal::Started;
        }
        self.dropped.push(entry);
        Removal::Dropped
    }

    fn demote(&mut self, entry: u32) -> bool {
        let (copy, ..) = self.meant(entry);
        copy.demoted |= !copy.started;
        !copy.started
    }

    fn stop(&mut self, entry: u32) {
        let (copy, from, to) = self.meant(entry);
        assert!(copy.started, "a copy that did not start was stopped");
        assert!(from < to, "a copy was stopped by one of a higher rank");
        assert!(!std::mem::replace(&mut copy.stopped, true), "a copy was stopped twice");
    }
}

fn mode(demote: bool) -> Mode {
    if demote { Mode::Demote } else { Mode::Cancel }
}

fn smallvec(copies: [u8; 3]) -> Vec<u8> {
    let count = 2 + usize::from(copies[2] & 1);
    copies[..count].to_vec()
}
