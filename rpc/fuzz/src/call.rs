//! Target `call`: a node that serves and calls, and a peer that has a session with it and sends heads of requests, replies and notices
//! that are almost right. Nothing panics; every call ends once; no request is answered more often than it was sent; a hook hears of
//! each request's end once; and when the peer is gone nothing is in use.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use tautline_net::endpoint::{Endpoint, Event, SessionId};
use tautline_net::payload::Payload;
use tautline_net_fuzz::host;
use tautline_net_fuzz::near::{Damage, Near, Span};
use tautline_net_fuzz::replay;
use tautline_net_fuzz::wire::Wire;
use tautline_rpc::{
    Address, Admit, CallId, CallOptions, Class, Clock, Code, Entry, Extension, Hook, HookContext, Local, Method, Node, NodeConfig,
    Origin, Peer, Reply, Service, Status, Time, Wait,
};

/// Steps of one input at most.
const STEPS: usize = 200;
/// Turns without the clock moving, after which the two are going round in circles.
const ROUNDS: usize = 5_000;
const MTU: usize = 500;
const FRAMES: usize = 48;
/// The hook's tag.
const TAG: u8 = 7;

const ECHO: Method = Method::named("fuzz/Echo");
const SLOW: Method = Method::named("fuzz/Slow");
const NEVER: Method = Method::named("fuzz/Never");
const REFUSE: Method = Method::named("fuzz/Refuse");
const METHODS: [Method; 5] = [ECHO, SLOW, NEVER, REFUSE, Method::named("fuzz/Unknown")];

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer calls.
    Request {
        head: RequestHead,
        payload: u8,
        extension: [u8; 2],
        class: u8,
        damage: Damage,
    },
    /// The peer answers a call, or says something about it.
    Reply {
        call: Near,
        which: u8,
        code: u8,
        flags: u8,
        credit: u16,
        class: u8,
        version: u8,
        payload: u8,
        damage: Damage,
    },
    Notice {
        kind: u8,
        to: u8,
        call: Near,
        waited: u32,
        damage: Damage,
    },
    Hook {
        tag: u8,
        what: u8,
        which: u8,
        damage: Damage,
    },
    /// Bytes as a message, or as a control message.
    Bytes {
        control: bool,
        bytes: [u8; 20],
    },
    /// The node calls.
    Call {
        method: u8,
        payload: u16,
        class: u8,
        deadline: Span,
        extension: bool,
    },
    Cancel {
        which: u8,
    },
    Pass(Span),
    Timer,
    /// The peer closes the session, and opens another.
    Reconnect,
}

#[derive(Arbitrary, Debug)]
struct RequestHead {
    version: u8,
    class: u8,
    flags: u8,
    method: u8,
    call: u8,
    budget: Budget,
    tag: u8,
}

#[derive(Arbitrary, Debug)]
enum Budget {
    None,
    Some(u32),
    Short(u8),
}

/// Runs the steps that `data` stands for.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut talk = Talk::begin();
    replay::steps(&mut input, STEPS, |step: Step| talk.step(step));
    talk.end();
}

struct Talk {
    clock: Clock,
    node: Option<Node>,
    local: Local,
    wires: [Wire; 2],
    rogue: Endpoint,
    session: SessionId,
    /// The rogue, as the node knows it.
    peer: Peer,
    /// Requests that the rogue sent and replies that it got, by call number.
    asked: BTreeMap<u64, i64>,
    /// Calls that the rogue was sent.
    calls: Vec<u64>,
    /// The node's own calls that have not ended, by tag.
    made: BTreeMap<u64, CallId>,
    next_tag: u64,
    watch: Rc<RefCell<Watch>>,
}

/// What the hook saw of the entries it admitted: whether they started.
#[derive(Default)]
struct Watch {
    entries: Vec<(Entry, bool)>,
}

impl Talk {
    fn begin() -> Talk {
        let start = Time::from_nanos(1_000_000_000);
        let clock = Clock::virtual_at(start);
        let [here, there] = addresses();
        let wires = [(); 2].map(|()| Wire::new(FRAMES, MTU, true));
        let config = NodeConfig {
            max_calls: 16,
            max_waiting: 8,
            max_peers: 4,
            initial_credit: 4,
            queue_limits: [6; Class::COUNT],
            max_tasks: 12,
            concurrency: 3,
            endpoint: host::config(1),
            ..NodeConfig::default()
        };
        let node =
            Node::builder("sim://node").port(wires[0].port(here)).clock(clock.clone()).wait(Wait::Spin).config(config).build();
        let mut node = node.expect("the port is open");
        let local = node.local();
        let watch = Rc::new(RefCell::new(Watch::default()));
        serve(&mut node, &watch);
        let mut rogue = Endpoint::new(wires[1].port(there), host::config(2), start);
        let session = rogue.connect(here, start).expect("the first session");
        let peer = local.peer(there).expect("an address");
        let (asked, calls, made) = Default::default();
        let mut talk = Talk { clock, node: Some(node), local, wires, rogue, session, peer, asked, calls, made, next_tag: 0, watch };
        talk.turn();
        talk
    }

    fn step(&mut self, step: Step) {
        let now = self.clock.now();
        match step {
            Step::Request { head, payload, extension, class, damage } => {
                let tagged = head.tag % 8 == TAG || head.tag == 1;
                let mut bytes = vec![1, 1 + head.version / 250, head.class % 5, head.flags];
                bytes.extend(METHODS[usize::from(head.method) % METHODS.len()].id().to_le_bytes());
                bytes.extend(u64::from(head.call).to_le_bytes());
                let budget = match head.budget {
                    Budget::None => u32::MAX,
                    Budget::Some(budget) => budget,
                    Budget::Short(budget) => u32::from(budget),
                };
                bytes.extend(budget.to_le_bytes());
                bytes.extend(if tagged { [head.tag % 8, extension.len() as u8, 0, 0] } else { [0; 4] });
                if tagged {
                    bytes.extend(extension);
                }
                bytes.resize(bytes.len() + usize::from(payload) * 8, payload);
                damage.to(&mut bytes);
                self.say(Class::ALL[usize::from(class) % Class::COUNT], bytes);
            }
            Step::Reply { call, which, code, flags, credit, class, version, payload, damage } => {
                let mut bytes = vec![2, 1 + version / 250, code % 20, flags];
                bytes.extend(credit.to_le_bytes());
                bytes.extend([class % 5, 0]);
                bytes.extend(self.near_call(which, call).to_le_bytes());
                bytes.extend([0; 8]);
                bytes.resize(bytes.len() + usize::from(payload), b'x');
                damage.to(&mut bytes);
                self.say(Class::Normal, bytes);
            }
            Step::Notice { kind, to, call, waited, damage } => {
                let mut bytes = vec![3 + kind % 2, 1, 0, 0];
                bytes.extend(waited.to_le_bytes());
                // A cancel names a call of the sender's own, a start notice one of the receiver's.
                let number = if kind % 2 == 0 { u64::from(call.to(u32::from(to))) } else { self.near_call(to, call) };
                bytes.extend(number.to_le_bytes());
                damage.to(&mut bytes);
                let _ = self.rogue.send_control(self.session, &bytes, now);
            }
            Step::Hook { tag, what, which, damage } => {
                let mut bytes = vec![5, 1, if tag < 200 { TAG } else { tag }, 0, what, which];
                damage.to(&mut bytes);
                let _ = self.rogue.send_control(self.session, &bytes, now);
            }
            Step::Bytes { control: true, bytes } => _ = self.rogue.send_control(self.session, &bytes, now),
            Step::Bytes { control: false, bytes } => self.say(Class::Normal, bytes.to_vec()),
            Step::Call { method, payload, class, deadline, extension } => {
                let mut options = CallOptions::new().class(Class::ALL[usize::from(class) % Class::COUNT]).notify_start();
                if deadline.nanos() > 0 {
                    options = options.deadline(Duration::from_nanos(deadline.nanos()));
                }
                if extension {
                    options = options.extension(Extension::new(TAG, vec![0; 2]).expect("two bytes fit"));
                }
                let method = METHODS[usize::from(method) % METHODS.len()];
                let payload = vec![0; usize::from(payload) % 20_000];
                let tag = self.next_tag;
                if let Ok(call) = self.local.submit(self.peer, method, payload, &options, tag) {
                    self.made.insert(tag, call);
                }
                self.next_tag += 1;
            }
            Step::Cancel { which } => {
                if let Some((_, call)) = self.made.iter().nth(usize::from(which) % self.made.len().max(1)) {
                    self.local.cancel(*call);
                }
            }
            Step::Pass(span) => {
                // Not beyond the patience of a session: that is for others to fuzz.
                self.turn();
                self.clock.advance_to(now.plus_nanos(span.nanos() % 50_000_000));
            }
            Step::Timer => {
                self.turn();
                let node = self.node.as_ref().and_then(Node::next_timeout);
                let next = node.into_iter().chain(self.rogue.next_timeout(now)).min().unwrap_or(now);
                self.clock.advance_to(next.max(now));
            }
            Step::Reconnect => {
                self.rogue.close(self.session, now);
                self.session = self.rogue.connect(addresses()[0], now).unwrap_or(self.session);
                // Replies to requests of the old session are not to come.
                self.turn();
            }
        }
        self.turn();
    }

    fn near_call(&self, which: u8, near: Near) -> u64 {
        let call = self.calls.iter().rev().nth(usize::from(which) % self.calls.len().max(1)).copied().unwrap_or(0);
        u64::from(near.to(call as u32)) | call & !0xffff_ffff
    }

    fn say(&mut self, class: Class, bytes: Vec<u8>) {
        let call = (bytes.first() == Some(&1)).then(|| bytes.get(8..16)).flatten();
        if let Some(call) = call {
            *self.asked.entry(u64::from_le_bytes(call.try_into().expect("eight bytes"))).or_default() += 1;
        }
        let now = self.clock.now();
        let _ = self.rogue.send(self.session, class, b"", Payload::from(bytes), 0, now);
    }

    /// Turns both until neither has anything to do at this moment.
    fn turn(&mut self) {
        let now = self.clock.now();
        for _ in 0..ROUNDS {
            let Some(node) = &mut self.node else { return };
            let mut busy = node.poll() > 0;
            while let Some(completion) = self.local.next_completion() {
                assert!(
                    self.made.remove(&completion.tag).is_some(),
                    "call {} ended twice: {:?}",
                    completion.tag,
                    completion.result
                );
            }
            busy |= node.next_timeout().is_some_and(|due| due <= now);
            let [a, b] = addresses();
            for (_, packet) in self.wires[0].sent() {
                self.wires[1].arrive(a, packet);
                busy = true;
            }
            self.rogue.poll(now);
            while let Some(event) = self.rogue.next_event() {
                self.hear(event);
            }
            self.rogue.flush(now);
            for (_, packet) in self.wires[1].sent() {
                self.wires[0].arrive(b, packet);
                busy = true;
            }
            if !busy {
                return;
            }
        }
        panic!("the node does not come to rest: {:?}", self.node.as_ref().map(Node::usage));
    }

    fn hear(&mut self, event: Event) {
        let Event::Message { payload, .. } = event else { return };
        let number = |from: usize| u64::from_le_bytes(payload[from..from + 8].try_into().expect("eight bytes"));
        match payload.first() {
            Some(1) => {
                assert!(payload.len() >= 24, "a request of {} bytes", payload.len());
                self.calls.push(number(8));
            }
            Some(2) => {
                assert!(payload.len() >= 24, "a reply of {} bytes", payload.len());
                let asked = self.asked.get_mut(&number(8)).expect("a reply to a call that was never made");
                *asked -= 1;
                assert!(*asked >= 0, "call {} got more replies than it was sent", number(8));
            }
            other => panic!("a message of kind {other:?}"),
        }
    }

    fn end(mut self) {
        self.turn();
        let session = self.session;
        self.rogue.close(session, self.clock.now());
        self.turn();
        drop(self.rogue);
        // What the rogue said last arrives; from then on there is silence.
        let [here, there] = addresses();
        self.wires[1].sent().into_iter().for_each(|(_, packet)| self.wires[0].arrive(there, packet));
        self.rogue = Endpoint::new(Wire::new(FRAMES, MTU, true).port(here), host::config(3), self.clock.now());
        for _ in 0..ROUNDS {
            self.turn();
            let Some(node) = &self.node else { return };
            if node.usage().sessions == 0 && node.usage().is_at_rest() {
                break;
            }
            let next = node.next_timeout().expect("something is in use, so something is to come");
            self.clock.advance_to(next.max(self.clock.now().plus_nanos(1_000)));
        }
        let usage = self.node.as_ref().map(Node::usage).expect("the node is there");
        assert!(usage.is_at_rest() && usage.sessions == 0, "in use when everybody is gone: {usage:?}");
        assert!(self.made.is_empty(), "calls that did not end: {:?}", self.made);
        assert!(self.watch.borrow().entries.is_empty(), "the hook did not hear of the end of a request");
        drop(self.node.take());
        self.wires.iter().for_each(Wire::assert_frames_home);
    }
}

/// The node's, and the rogue's.
fn addresses() -> [Address; 2] {
    [1, 2].map(|host| Address::Inet(([10, 0, 0, host], 7000).into()))
}

fn serve(node: &mut Node, watch: &Rc<RefCell<Watch>>) {
    let local = node.local();
    let slow = Service::future(move |request| {
        let local = local.clone();
        async move {
            local.sleep(Duration::from_micros(request.payload().len() as u64 * 10)).await;
            Ok(Reply::empty())
        }
    });
    let never = Service::future(|request| async move {
        request.cancellation().cancelled().await;
        Ok(Reply::empty())
    });
    let services = [
        (ECHO, Service::inline(|request| Ok(request.take_payload().into()))),
        (SLOW, slow.queue_limit(4)),
        (NEVER, never.finish_when_cancelled()),
        (REFUSE, Service::inline(|_| Err(Status::new(Code::FailedPrecondition, "no")))),
    ];
    for (method, service) in services {
        node.serve(method, service).expect("the names differ");
    }
    node.hook(TAG, Watcher { watch: watch.clone() }).expect("the only hook");
}

struct Watcher {
    watch: Rc<RefCell<Watch>>,
}

impl Hook for Watcher {
    fn admit(&mut self, entry: Entry, extension: &[u8], _: Origin, _: &mut HookContext<'_>) -> Admit {
        let entries = &mut self.watch.borrow_mut().entries;
        assert!(entries.iter().all(|(known, _)| *known != entry), "an entry was admitted twice");
        let admit = match extension.first().map_or(0, |first| first % 4) {
            2 => return Admit::Cancel(Status::new(Code::Cancelled, "by its extension")),
            1 => Admit::Demote,
            _ => Admit::Run,
        };
        entries.push((entry, false));
        admit
    }

    fn started(&mut self, entry: Entry, _: Time, _: &mut HookContext<'_>) {
        let mut watch = self.watch.borrow_mut();
        let known = watch.entries.iter_mut().find(|(known, _)| *known == entry).expect("it was admitted");
        assert!(!std::mem::replace(&mut known.1, true), "an entry started twice");
    }

    fn finished(&mut self, entry: Entry, _: Time, _: &mut HookContext<'_>) {
        let entries = &mut self.watch.borrow_mut().entries;
        let at = entries.iter().position(|(known, _)| *known == entry).expect("it was admitted, and did not end before");
        entries.remove(at);
    }

    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) {
        let [what, which, ..] = *bytes else { return };
        let entry = {
            let entries = &self.watch.borrow().entries;
            entries.get(usize::from(which) % entries.len().max(1)).map(|(entry, _)| *entry)
        };
        match (entry, what % 4) {
            (Some(entry), 0) => _ = cx.cancel(entry),
            (Some(entry), 1) => _ = cx.cancel_queued(entry),
            (Some(entry), 2) => _ = cx.demote(entry, Class::Background),
            _ => _ = cx.send_control(from.address, &bytes[..bytes.len().min(8)]),
        }
    }
}
