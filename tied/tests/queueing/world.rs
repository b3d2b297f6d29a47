//! The simulator: clients without number, single-worker FIFO servers, and messages that take a fixed time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;
use tautline_net::clock::Time;
use tautline_net::port::{Address, LocalName};
use tautline_tied::bucket::{Bucket, Budget};
use tautline_tied::choice::Standings;
use tautline_tied::header::{Control, Mode, TieHeader};
use tautline_tied::ids::TieIds;
use tautline_tied::policy::Choice;
use tautline_tied::race::{Plan, Purpose, Race, Shape, Step};
use tautline_tied::table::{Admission, Queue, Removal, Table, TableConfig};

/// How calls are spread over servers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    Single,
    TwoChoices,
    Hedged { delay: f64 },
    Tied { copies: u8 },
}

/// Whether the copies of a call do the same work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sizes {
    Same,
    Independent,
}

#[derive(Clone, Debug)]
pub(crate) struct WorldConfig {
    pub(crate) spread: Spread,
    pub(crate) servers: usize,
    pub(crate) load: f64,
    /// One way, for every message.
    pub(crate) delay: f64,
    pub(crate) stagger: f64,
    pub(crate) sizes: Sizes,
    /// Whether a running copy ends when its token fires, or runs on unheeding.
    pub(crate) stops: bool,
    pub(crate) budget: Budget,
    pub(crate) calls: usize,
    pub(crate) seed: u64,
}

impl Default for WorldConfig {
    fn default() -> WorldConfig {
        WorldConfig {
            spread: Spread::Single,
            servers: 24,
            load: 0.5,
            delay: 0.0,
            stagger: 0.0,
            sizes: Sizes::Same,
            stops: false,
            budget: Budget::UNLIMITED,
            calls: 20_000,
            seed: 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    /// Of the time in system.
    pub(crate) mean: f64,
    pub(crate) p99: f64,
    /// Work done beyond one execution a call, as a share of all servers' time.
    pub(crate) extra: f64,
    pub(crate) copies_per_call: f64,
}

#[derive(Debug)]
enum Event {
    Arrive,
    Step { call: usize },
    Request { call: usize, copy: usize },
    Finish { server: usize, entry: u32 },
    Started { call: usize, copy: usize },
    Reply { call: usize, copy: usize },
    Dropped { call: usize, copy: usize },
    Control { from: usize, to: usize, control: Control },
    ClientCancel { server: usize, entry: u32 },
}

struct Call {
    race: Race,
    born: Time,
    size: f64,
    header: Option<TieHeader>,
    servers: SmallVec<[usize; 4]>,
    entries: SmallVec<[u32; 4]>,
    over: bool,
}

#[derive(Clone, Copy)]
struct Copy {
    call: usize,
    copy: usize,
    server: usize,
    size: f64,
    started: Option<Time>,
    over: bool,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<u32>,
    running: Option<u32>,
    /// Entries whose token fired, for the world to act on.
    stopped: Vec<u32>,
}

impl Queue<u32> for Line {
    fn drop_queued(&mut self, entry: u32) -> Removal {
        match self.waiting.iter().position(|waiting| *waiting == entry) {
            Some(place) => {
                self.waiting.remove(place);
                Removal::Dropped
            }
            None if self.running == Some(entry) => Removal::Started,
            None => Removal::Gone,
        }
    }

    fn demote(&mut self, entry: u32) -> bool {
        let place = self.waiting.iter().position(|waiting| *waiting == entry);
        place.and_then(|place| self.waiting.remove(place)).map(|entry| self.waiting.push_back(entry)).is_some()
    }

    fn stop(&mut self, entry: u32) {
        self.stopped.push(entry);
    }
}

pub(crate) struct World {
    config: WorldConfig,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    /// The events by their number in the heap, which does not compare them.
    pending: Vec<Option<Event>>,
    serial: u64,
    calls: Vec<Call>,
    copies: Vec<Copy>,
    lines: Vec<Line>,
    tables: Vec<Table<u32>>,
    names: Vec<Address>,
    standings: Standings,
    bucket: Bucket,
    ids: TieIds,
    rng: fastrand::Rng,
    times: Vec<f64>,
    busy: f64,
    needed: f64,
}

impl World {
    pub(crate) fn run(config: WorldConfig) -> Report {
        let names: Vec<Address> = (0..config.servers).map(|n| Address::Local(LocalName::new(&format!("s{n}")).unwrap())).collect();
        let table = TableConfig { allowed: names.clone(), ..TableConfig::default() };
        let choice = match config.spread {
            Spread::TwoChoices => Choice::TwoRandom,
            _ => Choice::Random,
        };
        let mut world = World {
            now: Time::ZERO,
            events: BinaryHeap::new(),
            pending: Vec::new(),
            serial: 0,
            calls: Vec::new(),
            copies: Vec::new(),
            lines: (0..config.servers).map(|_| Line::default()).collect(),
            tables: (0..config.servers).map(|_| Table::new(table.clone())).collect(),
            names,
            standings: Standings::new(config.servers, choice, Duration::ZERO, fastrand::Rng::with_seed(config.seed ^ 1)),
            bucket: Bucket::new(config.budget),
            ids: TieIds::seeded(config.seed),
            rng: fastrand::Rng::with_seed(config.seed),
            times: Vec::new(),
            busy: 0.0,
            needed: 0.0,
            config,
        };
        world.at(Time::ZERO, Event::Arrive);
        while let Some(Reverse((at, _, index))) = world.events.pop() {
            world.now = at;
            let event = world.pending[index].take().expect("each event is in the heap once");
            world.handle(event);
        }
        world.report()
    }

    fn report(mut self) -> Report {
        assert!(self.tables.iter().all(Table::is_empty), "a table kept a copy that is over");
        assert!(self.calls.iter().all(|call| call.over), "a call never ended");
        // The start is emptier than the rest.
        let mut times = self.times.split_off(self.times.len() / 10);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        times.sort_by(f64::total_cmp);
        let span = self.now.since(Time::ZERO).as_secs_f64() * self.config.servers as f64;
        Report {
            mean,
            p99: times[times.len() * 99 / 100],
            extra: (self.busy - self.needed) / span,
            copies_per_call: self.copies.len() as f64 / self.calls.len() as f64,
        }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.events.push(Reverse((time, self.serial, self.pending.len())));
        self.pending.push(Some(event));
        self.serial += 1;
    }

    /// A message: handled at once where there is no delay, so that "free" means free.
    fn send(&mut self, event: Event) {
        if self.config.delay == 0.0 {
            self.handle(event);
        } else {
            self.at(self.now + units(self.config.delay), event);
        }
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.f64()).ln()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive => self.arrive(),
            Event::Step { call } => self.step(call),
            Event::Request { call, copy } => self.request(call, copy),
            Event::Finish { server, entry } => {
                if self.lines[server].running == Some(entry) {
                    let Copy { call, copy, .. } = self.copies[entry as usize];
                    self.end(entry);
                    self.send(Event::Reply { call, copy });
                    self.next(server);
                }
            }
            Event::Started { call, copy } => {
                self.calls[call].race.started(copy, self.now);
                self.step(call);
            }
            Event::Reply { call, copy } => {
                self.calls[call].race.answered(copy);
                self.step(call);
            }
            Event::Dropped { call, copy } => {
                self.calls[call].race.dropped(copy, self.now);
                self.step(call);
            }
            Event::Control { from, to, control } => self.control(from, to, control),
            Event::ClientCancel { server, entry } => match self.lines[server].drop_queued(entry) {
                Removal::Dropped => self.end(entry),
                Removal::Started if self.config.stops => {
                    self.end(entry);
                    self.next(server);
                }
                _ => {}
            },
        }
    }

    fn arrive(&mut self) {
        let (shape, copies) = match self.config.spread {
            Spread::Single | Spread::TwoChoices => (Shape::Single, 1),
            Spread::Hedged { delay } => (Shape::Hedged { delay: units(delay) }, 2),
            Spread::Tied { copies } => (Shape::Tied { stagger: units(self.config.stagger), then_hedge: None }, copies),
        };
        let size = self.exponential(1.0);
        self.needed += size;
        self.bucket.deposit();
        let mut servers = SmallVec::from_iter(self.standings.original(self.now));
        while servers.len() < usize::from(copies) {
            servers.push(self.standings.extra(&servers, self.now).expect("more servers than copies"));
        }
        let header = matches!(shape, Shape::Tied { .. }).then(|| TieHeader {
            id: self.ids.draw(),
            mode: Mode::Cancel,
            rank: 0,
            copies: servers.iter().map(|server| self.names[*server]).collect(),
        });
        let race = Race::new(Plan { shape, copies, failovers: 0, replacements: 0, repeatable: true });
        self.calls.push(Call { race, born: self.now, size, header, servers, entries: SmallVec::new(), over: false });
        self.step(self.calls.len() - 1);
        if self.calls.len() < self.config.calls {
            let gap = self.exponential(1.0 / (self.config.load * self.config.servers as f64));
            self.at(self.now + units(gap), Event::Arrive);
        }
    }

    fn step(&mut self, call: usize) {
        while !self.calls[call].over {
            match self.calls[call].race.step(self.now) {
                Step::Send(purpose) if purpose != Purpose::First && !self.bucket.take() => self.calls[call].race.not_sent(purpose),
                Step::Send(purpose) => {
                    let copy = self.calls[call].race.sent(purpose, self.now);
                    let server = self.calls[call].servers[copy];
                    self.standings.sent(server);
                    let size = match self.config.sizes {
                        Sizes::Independent if copy > 0 => self.exponential(1.0),
                        _ => self.calls[call].size,
                    };
                    self.calls[call].entries.push(self.copies.len() as u32);
                    self.copies.push(Copy { call, copy, server, size, started: None, over: false });
                    self.send(Event::Request { call, copy });
                }
                Step::Wait(due) => {
                    if let Some(due) = due {
                        self.at(due, Event::Step { call });
                    }
                    return;
                }
                Step::Won(winner) => {
                    self.calls[call].over = true;
                    self.times.push(self.now.since(self.calls[call].born).as_secs_f64());
                    for (copy, entry) in self.calls[call].entries.clone().into_iter().enumerate() {
                        let server = self.calls[call].servers[copy];
                        self.standings.ended(server);
                        if copy != winner {
                            self.send(Event::ClientCancel { server, entry });
                        }
                    }
                }
                end => panic!("{end:?} where nothing fails"),
            }
        }
    }

    fn request(&mut self, call: usize, copy: usize) {
        let (server, entry) = (self.calls[call].servers[copy], self.calls[call].entries[copy]);
        if let Some(header) = &self.calls[call].header {
            let header = TieHeader { rank: copy as u8, ..header.clone() };
            let client = Address::Local(LocalName::new("client").expect("a name"));
            if self.tables[server].admit(entry, header, client, self.now) == Admission::Drop {
                self.copies[entry as usize].over = true;
                return self.send(Event::Dropped { call, copy });
            }
        }
        self.lines[server].waiting.push_back(entry);
        self.next(server);
    }

    /// Starts what waits, if the server is free.
    fn next(&mut self, server: usize) {
        if self.lines[server].running.is_some() {
            return;
        }
        let Some(entry) = self.lines[server].waiting.pop_front() else { return };
        self.lines[server].running = Some(entry);
        let Copy { call, copy, size, .. } = self.copies[entry as usize];
        self.copies[entry as usize].started = Some(self.now);
        self.at(self.now + units(size), Event::Finish { server, entry });
        let mut messages = Vec::new();
        self.tables[server].started(entry, self.now, |to, control| messages.push((to, control)));
        for (to, control) in messages {
            let to = self.names.iter().position(|name| *name == to).expect("a server");
            self.send(Event::Control { from: server, to, control });
        }
        if self.calls[call].header.is_some() {
            self.send(Event::Started { call, copy });
        }
    }

    fn control(&mut self, from: usize, to: usize, control: Control) {
        let sender = self.names[from];
        if let Control::Outcome { .. } = control {
            self.tables[to].outcome(&control, sender, self.now).expect("an allowed sender");
            return;
        }
        let Control::Cancel { id, .. } = control else { return };
        let Some((_, report)) = self.tables[to].cancel(&control, sender, self.now, &mut self.lines[to]) else { return };
        if let Control::Outcome { outcome: tautline_tied::header::Outcome::Dropped, from: rank, .. } = report {
            // Found by its tie id, as the client finds it by its call.
            let dropped = self.calls.iter().rposition(|call| call.header.as_ref().is_some_and(|header| header.id == id));
            let call = dropped.expect("a call of this id");
            let copy = usize::from(rank);
            self.copies[self.calls[call].entries[copy] as usize].over = true;
            self.send(Event::Dropped { call, copy });
        }
        for entry in std::mem::take(&mut self.lines[to].stopped) {
            if self.config.stops && self.lines[to].running == Some(entry) {
                let Copy { call, copy, .. } = self.copies[entry as usize];
                self.end(entry);
                self.send(Event::Dropped { call, copy });
                self.next(to);
            }
        }
        self.send(Event::Control { from: to, to: from, control: report });
    }

    /// A copy is over at its server, by whatever end.
    fn end(&mut self, entry: u32) {
        let copy = &mut self.copies[entry as usize];
        assert!(!std::mem::replace(&mut copy.over, true), "a copy ended twice");
        let server = copy.server;
        if let Some(started) = copy.started {
            self.busy += self.now.since(started).as_secs_f64();
            self.lines[server].running = None;
        }
        self.tables[server].finished(entry, self.now);
    }
}

/// One unit, the mean service time, is a second of simulated time.
fn units(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}
