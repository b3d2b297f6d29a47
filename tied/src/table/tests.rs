use std::collections::HashSet;

use proptest::prelude::*;
use smallvec::SmallVec;
use tautline_net::port::LocalName;

use super::*;

fn name(name: &str) -> Address {
    Address::Local(LocalName::new(name).unwrap())
}

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1000)
}

/// A run queue of entries that wait, and of those that run.
#[derive(Debug, Default)]
struct Fake {
    queued: HashSet<u32>,
    running: HashSet<u32>,
    demoted: Vec<u32>,
    stopped: Vec<u32>,
}

impl Queue<u32> for Fake {
    fn drop_queued(&mut self, entry: u32) -> Removal {
        match (self.queued.remove(&entry), self.running.contains(&entry)) {
            (true, _) => Removal::Dropped,
            (_, true) => Removal::Started,
            _ => Removal::Gone,
        }
    }

    fn demote(&mut self, entry: u32) -> bool {
        self.demoted.push(entry);
        self.queued.contains(&entry)
    }

    fn stop(&mut self, entry: u32) {
        self.stopped.push(entry);
    }
}

/// Servers `a` and `b`, and a client's tie over them.
struct Pair {
    a: Table<u32>,
    b: Table<u32>,
    at_a: Fake,
    at_b: Fake,
}

fn header(rank: u8, mode: Mode) -> TieHeader {
    TieHeader { id: TieId(77), mode, rank, copies: SmallVec::from_slice(&[name("a"), name("b")]) }
}

fn config() -> TableConfig {
    TableConfig { allowed: vec![name("a"), name("b")], ..TableConfig::default() }
}

fn started(table: &mut Table<u32>, entry: u32, now: Time) -> Vec<Message> {
    let mut messages = Vec::new();
    table.started(entry, now, |to, cancel| messages.push((to, cancel)));
    messages
}

impl Pair {
    /// Both copies queued, as entry 1.
    fn queued(mode: Mode) -> Pair {
        let mut pair = Pair { a: Table::new(config()), b: Table::new(config()), at_a: Fake::default(), at_b: Fake::default() };
        assert_eq!(pair.a.admit(1, header(0, mode), name("client"), at(0)), Admission::Run);
        assert_eq!(pair.b.admit(1, header(1, mode), name("client"), at(0)), Admission::Run);
        pair.at_a.queued.insert(1);
        pair.at_b.queued.insert(1);
        pair
    }

    fn start_a(&mut self, now: Time) -> Message {
        self.at_a.queued.remove(&1);
        self.at_a.running.insert(1);
        started(&mut self.a, 1, now).pop().unwrap()
    }

    fn start_b(&mut self, now: Time) -> Message {
        self.at_b.queued.remove(&1);
        self.at_b.running.insert(1);
        started(&mut self.b, 1, now).pop().unwrap()
    }
}

#[test]
fn the_copy_that_starts_has_the_queued_one_dropped_and_hears_how_long_it_took() {
    let mut pair = Pair::queued(Mode::Cancel);
    let (to, cancel) = pair.start_a(at(10));
    assert_eq!(to, name("b"));
    let (to, report) = pair.b.cancel(&cancel, name("a"), at(15), &mut pair.at_b).unwrap();
    assert_eq!(to, name("a"));
    assert!(pair.at_b.queued.is_empty() && pair.b.is_empty());
    assert_eq!(pair.a.outcome(&report, name("b"), at(20)), Some((Outcome::Dropped, Duration::from_micros(10))));
    assert_eq!(pair.a.counters().outcomes.of(Outcome::Dropped), 1);
    pair.a.finished(1, at(30));
    assert!(pair.a.is_empty() && pair.a.entries.is_empty());
}

/// What a table prepares for a copy: to whom, what is said, and what may be heard. All of it is seen to.
fn prepared(table: &mut Table<u32>, entry: u32) -> Vec<(Address, Control, Option<Control>)> {
    let mut prepared = Vec::new();
    table.prepare(entry, |to, said, heard| {
        prepared.push((to, *said, heard.copied()));
        true
    });
    prepared
}

fn untimed(mut control: Control) -> Control {
    if let Control::Cancel { sent_at, .. } = &mut control {
        *sent_at = 0;
    }
    control
}

#[test]
fn what_is_prepared_is_what_is_said_and_is_not_said_again() {
    for mode in [Mode::Cancel, Mode::Demote] {
        let mut pair = Pair::queued(mode);
        let (here, there) = (prepared(&mut pair.a, 1), prepared(&mut pair.b, 1));
        assert_eq!(started(&mut pair.a, 1, at(10)), []);
        assert_eq!(pair.a.counters().cancels_sent, 1);
        // The same pair without preparation.
        let mut other = Pair::queued(mode);
        let (by_a, by_b) = (other.start_a(at(10)), other.start_b(at(10)));
        let heard = |control| (mode == Mode::Cancel).then_some(untimed(control));
        assert_eq!(here, [(by_a.0, untimed(by_a.1), heard(by_b.1))]);
        assert_eq!(there, [(by_b.0, untimed(by_b.1), heard(by_a.1))]);
    }
}

#[test]
fn nothing_is_prepared_for_strangers_or_for_a_copy_that_does_not_wait() {
    let mut pair = Pair::queued(Mode::Cancel);
    pair.a.disallow(&name("b"));
    assert_eq!(prepared(&mut pair.a, 1), []);
    pair.a.allow(name("b"));
    assert_eq!(started(&mut pair.a, 1, at(10)).len(), 1, "what was not prepared is said at the start");
    assert_eq!(prepared(&mut pair.a, 1), []);
    assert_eq!(prepared(&mut pair.a, 2), []);
}

#[test]
fn in_demote_mode_the_queued_copy_waits_in_the_background_and_its_late_start_cancels_nobody() {
    let mut pair = Pair::queued(Mode::Demote);
    let (_, cancel) = pair.start_b(at(10));
    let (_, report) = pair.a.cancel(&cancel, name("b"), at(15), &mut pair.at_a).unwrap();
    assert!(matches!(report, Control::Outcome { outcome: Outcome::Demoted, .. }));
    assert_eq!(pair.at_a.demoted, [1]);
    assert!(started(&mut pair.a, 1, at(50)).is_empty());
}

#[test]
fn if_both_start_the_lower_rank_goes_on_and_the_other_one_is_stopped() {
    for b_first in [false, true] {
        let mut pair = Pair::queued(Mode::Cancel);
        let (from_a, from_b) = match b_first {
            false => (pair.start_a(at(10)), pair.start_b(at(11))),
            true => {
                let from_b = pair.start_b(at(9));
                (pair.start_a(at(10)), from_b)
            }
        };
        let (_, at_b) = pair.b.cancel(&from_a.1, name("a"), at(15), &mut pair.at_b).unwrap();
        let (_, at_a) = pair.a.cancel(&from_b.1, name("b"), at(16), &mut pair.at_a).unwrap();
        assert!(matches!(at_b, Control::Outcome { outcome: Outcome::Stopped, .. }));
        assert!(matches!(at_a, Control::Outcome { outcome: Outcome::Kept, .. }));
        assert_eq!((pair.at_a.stopped.len(), pair.at_b.stopped.len()), (0, 1));
        pair.b.finished(1, at(21));
        let ran = if b_first { 12 } else { 10 };
        assert_eq!(pair.b.counters().wasted, Duration::from_micros(ran));
    }
}

#[test]
fn a_start_whose_word_is_still_on_the_way_is_not_stopped_by_a_lower_ranked_copy() {
    let mut pair = Pair::queued(Mode::Cancel);
    // A worker of `a` has taken the copy; the table has not been told.
    pair.at_a.queued.remove(&1);
    pair.at_a.running.insert(1);
    let (_, from_b) = pair.start_b(at(9));
    let (_, at_a) = pair.a.cancel(&from_b, name("b"), at(10), &mut pair.at_a).unwrap();
    assert!(matches!(at_a, Control::Outcome { outcome: Outcome::Kept, .. }));
    assert!(pair.at_a.stopped.is_empty());
    assert_eq!(started(&mut pair.a, 1, at(8)).len(), 1, "and then it says so to the other");
}

#[test]
fn a_cancel_that_overtakes_its_request_drops_it_on_arrival() {
    let mut table = Table::new(config());
    let cancel = Control::Cancel { id: TieId(77), mode: Mode::Cancel, from: 0, to: 1, client: name("client"), sent_at: 0 };
    let (_, report) = table.cancel(&cancel, name("a"), at(0), &mut Fake::default()).unwrap();
    assert!(matches!(report, Control::Outcome { outcome: Outcome::Unknown, .. }));
    assert_eq!(table.admit(1, header(1, Mode::Cancel), name("client"), at(9)), Admission::Drop);
    assert_eq!(table.counters().dropped_on_arrival, 1);
    assert!(table.is_empty());
    assert_eq!(table.admit(2, header(1, Mode::Cancel), name("client"), at(10)), Admission::Run, "one cancel, one copy");
}

#[test]
fn a_demotion_that_overtakes_its_request_demotes_it_on_arrival() {
    let mut table = Table::new(config());
    let cancel = Control::Cancel { id: TieId(77), mode: Mode::Demote, from: 0, to: 1, client: name("client"), sent_at: 0 };
    table.cancel(&cancel, name("a"), at(0), &mut Fake::default());
    assert_eq!(table.admit(1, header(1, Mode::Demote), name("client"), at(9)), Admission::Demote);
}

#[test]
fn a_client_can_not_cancel_anothers_copies_by_using_its_ids() {
    let mut pair = Pair::queued(Mode::Cancel);
    // A second client repeats the id, and its copy starts at `a`.
    assert_eq!(pair.a.admit(2, header(0, Mode::Cancel), name("thief"), at(1)), Admission::Run);
    let (_, cancel) = started(&mut pair.a, 2, at(2)).pop().unwrap();
    let (_, report) = pair.b.cancel(&cancel, name("a"), at(3), &mut pair.at_b).unwrap();
    assert!(matches!(report, Control::Outcome { outcome: Outcome::Unknown, .. }));
    assert!(pair.at_b.queued.contains(&1), "the victim's copy is gone");
}

#[test]
fn cancels_and_reports_from_strangers_are_refused_and_leave_nothing() {
    let mut pair = Pair::queued(Mode::Cancel);
    let (_, cancel) = pair.start_a(at(10));
    assert_eq!(pair.b.cancel(&cancel, name("stranger"), at(11), &mut pair.at_b), None);
    let unknown = Control::Cancel { id: TieId(1), mode: Mode::Cancel, from: 0, to: 1, client: name("client"), sent_at: 0 };
    assert_eq!(pair.b.cancel(&unknown, name("stranger"), at(11), &mut pair.at_b), None);
    let report = Control::Outcome { id: TieId(77), from: 1, to: 0, outcome: Outcome::Dropped, sent_at: 0 };
    assert_eq!(pair.a.outcome(&report, name("stranger"), at(11)), None);
    assert_eq!((pair.b.counters().refused, pair.a.counters().refused), (2, 1));
    assert_eq!(pair.b.tombstones().0, 0);
    assert!(pair.at_b.queued.contains(&1));
}

#[test]
fn an_allowed_replica_can_not_speak_for_another_one() {
    let mut table = Table::new(TableConfig { allowed: vec![name("a"), name("b"), name("c")], ..TableConfig::default() });
    let mut queue = Fake::default();
    queue.queued.insert(1);
    table.admit(1, header(1, Mode::Cancel), name("client"), at(0));
    let cancel = |from, to| Control::Cancel { id: TieId(77), mode: Mode::Cancel, from, to, client: name("client"), sent_at: 0 };
    assert_eq!(table.cancel(&cancel(0, 1), name("c"), at(1), &mut queue), None, "c is not one of this tie");
    assert_eq!(table.cancel(&cancel(3, 1), name("c"), at(1), &mut queue), None, "no such rank");
    assert!(queue.queued.contains(&1));
    assert!(table.cancel(&cancel(0, 1), name("a"), at(1), &mut queue).is_some());
}

#[test]
fn a_request_can_not_aim_its_server_at_a_stranger() {
    let mut table = Table::new(TableConfig { allowed: vec![name("a")], ..TableConfig::default() });
    table.admit(1, header(0, Mode::Cancel), name("client"), at(0));
    assert!(started(&mut table, 1, at(1)).is_empty());
    assert_eq!(table.counters().strangers, 1);
    table.allow(name("b"));
    table.admit(2, TieHeader { id: TieId(78), ..header(0, Mode::Cancel) }, name("client"), at(0));
    assert_eq!(started(&mut table, 2, at(1)).len(), 1);
    table.disallow(&name("b"));
    table.admit(3, TieHeader { id: TieId(79), ..header(0, Mode::Cancel) }, name("client"), at(0));
    assert!(started(&mut table, 3, at(1)).is_empty());
}

#[test]
fn a_full_table_lets_copies_run_untied() {
    let mut table = Table::new(TableConfig { copies: 2, ..config() });
    for entry in 0..10u32 {
        let header = TieHeader { id: TieId(u128::from(entry)), ..header(0, Mode::Cancel) };
        assert_eq!(table.admit(entry, header, name("client"), at(0)), Admission::Run);
    }
    assert_eq!((table.len(), table.counters().untied_full), (2, 8));
    assert!(started(&mut table, 9, at(1)).is_empty());
    (0..10).for_each(|entry| table.finished(entry, at(2)));
    assert!(table.is_empty() && table.entries.is_empty());
}

#[test]
fn a_second_copy_under_the_same_id_runs_untied_and_does_not_take_the_first_ones_place() {
    let mut table = Table::new(config());
    let mut queue = Fake::default();
    queue.queued.extend([1, 2]);
    table.admit(1, header(1, Mode::Cancel), name("client"), at(0));
    table.admit(2, header(1, Mode::Cancel), name("client"), at(0));
    assert_eq!(table.counters().untied_duplicate, 1);
    table.finished(2, at(1));
    let cancel = Control::Cancel { id: TieId(77), mode: Mode::Cancel, from: 0, to: 1, client: name("client"), sent_at: 0 };
    table.cancel(&cancel, name("a"), at(2), &mut queue);
    assert!(!queue.queued.contains(&1) && queue.queued.contains(&2));
}

#[test]
fn behind_an_address_translator_clients_are_told_apart_by_host() {
    let client = |port| Address::Inet(([10, 0, 0, 9], port).into());
    for (match_client_port, expected) in [(true, Outcome::Unknown), (false, Outcome::Dropped)] {
        let mut table = Table::new(TableConfig { match_client_port, ..config() });
        let mut queue = Fake::default();
        queue.queued.insert(1);
        table.admit(1, header(1, Mode::Cancel), client(1000), at(0));
        let cancel = Control::Cancel { id: TieId(77), mode: Mode::Cancel, from: 0, to: 1, client: client(2000), sent_at: 0 };
        table.cancel(&cancel, name("a"), at(1), &mut queue).unwrap();
        assert_eq!(table.counters().cancels_taken.of(expected), 1);
    }
}

#[test]
fn a_client_is_the_same_however_a_socket_writes_its_address() {
    let mut table = Table::new(config());
    let mut queue = Fake::default();
    queue.queued.insert(1);
    // A socket for both families shows IPv4 clients in IPv6 form; the other server's does not.
    table.admit(1, header(1, Mode::Cancel), Address::Inet("[::ffff:10.0.0.9]:5000".parse().unwrap()), at(0));
    let client = Address::Inet("10.0.0.9:5000".parse().unwrap());
    let cancel = Control::Cancel { id: TieId(77), mode: Mode::Cancel, from: 0, to: 1, client, sent_at: 0 };
    table.cancel(&cancel, name("a"), at(1), &mut queue).unwrap();
    assert!(queue.queued.is_empty());
}

#[test]
fn of_three_copies_that_start_at_once_exactly_one_goes_on() {
    let names = [name("a"), name("b"), name("c")];
    let config = TableConfig { allowed: names.to_vec(), ..TableConfig::default() };
    let mut servers: Vec<(Table<u32>, Fake)> = (0..3).map(|_| (Table::new(config.clone()), Fake::default())).collect();
    let mut messages = Vec::new();
    for (rank, (table, queue)) in servers.iter_mut().enumerate() {
        let header = TieHeader { id: TieId(5), mode: Mode::Cancel, rank: rank as u8, copies: SmallVec::from_slice(&names) };
        table.admit(1, header, name("client"), at(0));
        queue.running.insert(1);
        messages.extend(started(table, 1, at(1)).into_iter().map(|(to, cancel)| (names[rank], to, cancel)));
    }
    for (from, to, cancel) in messages {
        let server = names.iter().position(|name| *name == to).unwrap();
        let (table, queue) = &mut servers[server];
        table.cancel(&cancel, from, at(2), queue).unwrap();
    }
    let stopped: Vec<usize> = servers.iter().map(|(_, queue)| queue.stopped.len()).collect();
    assert_eq!(stopped, [0, 1, 1], "and none is stopped twice");
}

#[derive(Clone, Debug)]
enum Event {
    Arrive {
        id: u8,
        client: u8,
        rank: u8,
        mode: Mode,
    },
    Start(prop::sample::Index),
    /// A worker took it, and the word of it is still on the way.
    Claim(prop::sample::Index),
    Finish(prop::sample::Index),
    Cancel {
        id: u8,
        client: u8,
        from: u8,
        to: u8,
        mode: Mode,
        sender: u8,
    },
    Wait(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let mode = || prop_oneof![Just(Mode::Cancel), Just(Mode::Demote)];
    prop_oneof![
        (0u8..4, 0u8..2, 0u8..3, mode()).prop_map(|(id, client, rank, mode)| Event::Arrive { id, client, rank, mode }),
        any::<prop::sample::Index>().prop_map(Event::Start),
        any::<prop::sample::Index>().prop_map(Event::Claim),
        any::<prop::sample::Index>().prop_map(Event::Finish),
        (0u8..4, 0u8..2, 0u8..4, 0u8..4, mode(), 0u8..4).prop_map(|(id, client, from, to, mode, sender)| Event::Cancel {
            id,
            client,
            from,
            to,
            mode,
            sender
        }),
        (0u16..400).prop_map(Event::Wait),
    ]
}

proptest! {
    #[test]
    fn in_any_order_of_events_the_table_is_bounded_and_stops_only_what_started_once(
        events in prop::collection::vec(event(), 0..120),
    ) {
        // This server is `b`; it may be of any rank, and `z` is a stranger.
        let names = [name("a"), name("b"), name("c"), name("z")];
        let allowed = names[..3].to_vec();
        let life = Duration::from_micros(500);
        let mut table = Table::new(TableConfig { allowed, copies: 5, tombstones: 4, tombstone_life: life, ..TableConfig::default() });
        let mut queue = Fake::default();
        let mut told = HashSet::new();
        let (mut next, mut now) = (0u32, at(0));
        for event in events {
            let running: Vec<u32> = queue.running.iter().copied().collect();
            let queued: Vec<u32> = queue.queued.iter().copied().collect();
            match event {
                Event::Arrive { id, client, rank, mode } => {
                    let copies = [names[0], names[1], names[2]].into_iter().collect();
                    let header = TieHeader { id: TieId(id.into()), mode, rank, copies };
                    let client = name(&format!("client{client}"));
                    if table.admit(next, header, client, now) != Admission::Drop {
                        queue.queued.insert(next);
                    }
                    next += 1;
                }
                Event::Claim(index) if !queued.is_empty() => {
                    let entry = queued[index.index(queued.len())];
                    queue.queued.remove(&entry);
                    queue.running.insert(entry);
                }
                Event::Start(index) if !running.is_empty() => {
                    let entry = running[index.index(running.len())];
                    let messages = started(&mut table, entry, now);
                    prop_assert!(messages.is_empty() || told.insert(entry), "told twice");
                    prop_assert!(messages.iter().all(|(to, _)| *to != names[3]));
                }
                Event::Finish(index) if !running.is_empty() => {
                    let entry = running[index.index(running.len())];
                    queue.running.remove(&entry);
                    table.finished(entry, now);
                }
                Event::Cancel { id, client, from, to, mode, sender } => {
                    let client = name(&format!("client{client}"));
                    let cancel = Control::Cancel { id: TieId(id.into()), mode, from, to, client, sent_at: 0 };
                    let stopped = queue.stopped.len();
                    let answer = table.cancel(&cancel, names[usize::from(sender)], now, &mut queue);
                    prop_assert!(answer.is_none() || sender < 3, "a stranger was answered");
                    if queue.stopped.len() > stopped {
                        prop_assert!(from < to && sender == from, "stopped by a copy that it outranks, or by another server");
                    }
                }
                Event::Wait(micros) => now += Duration::from_micros(micros.into()),
                _ => {}
            }
            prop_assert!(table.copies.len() <= 5 && table.tombstones().0 <= 4);
            prop_assert_eq!(table.copies.len(), table.entries.len());
            for (key, entry) in &table.entries {
                prop_assert_eq!(table.copies.get(entry).map(|copy| copy.key), Some(*key));
                prop_assert!(queue.queued.contains(entry) || queue.running.contains(entry), "kept after its end");
            }
            let once: HashSet<u32> = queue.stopped.iter().copied().collect();
            prop_assert_eq!(once.len(), queue.stopped.len(), "stopped twice");
        }
    }
}
