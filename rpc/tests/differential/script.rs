//! Scripts: scenes of a few calls each, drawn from a seed, whose outcome nothing but the script decides.

use fastrand::Rng;
use tautline_rpc::{Class, Code};

/// Futures that the server runs at once.
pub const CONCURRENCY: usize = 2;
/// Calls of the gated method that wait or run at once.
pub const GATED: usize = 6;
/// Largest message.
pub const MAX_MESSAGE: usize = 1 << 20;

/// One call.
#[derive(Clone, Debug)]
pub struct Operation {
    pub number: usize,
    pub class: Class,
    /// Bytes of request and reply.
    pub request: usize,
    pub reply: usize,
    pub how: How,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// An answer, by an inline handler, ...
    Inline,
    /// ... one that would be a worker's (the poller has none, and queues it), ...
    Queued,
    /// ... or a future.
    Future,
    /// A status.
    Fail(Code),
    Panic,
    /// A method that nobody serves.
    Unknown,
    /// More than a message may have.
    TooLarge,
    /// A future that waits until the script lets it go on.
    Gated,
}

/// Calls that belong together. The next scene begins when all have ended.
#[derive(Clone, Debug)]
pub enum Scene {
    /// All at once.
    Batch(Vec<Operation>),
    /// They run, and are cancelled then; by number, or by dropping their futures.
    CancelRunning { calls: Vec<Operation>, by_drop: bool },
    /// Those that fill the server run; the others wait, and are cancelled there.
    CancelQueued { running: Vec<Operation>, queued: Vec<Operation> },
    /// The deadline passes while they run.
    LateRunning(Vec<Operation>),
    /// The deadline passes while they wait.
    LateQueued { running: Vec<Operation>, queued: Vec<Operation> },
    /// As many as may wait, and more.
    Overload { taken: Vec<Operation>, refused: Vec<Operation> },
    /// The caller is told of the start before the end.
    Notified(Operation),
    /// The server goes while these run, and comes back.
    Restart(Vec<Operation>),
}

pub struct Script {
    pub seed: u64,
    pub scenes: Vec<Scene>,
    expected: Vec<String>,
    /// What handlers will have seen, sorted.
    executed: Vec<String>,
}

struct Author {
    random: Rng,
    script: Script,
}

impl Script {
    pub fn new(seed: u64, restarts: bool) -> Script {
        let script = Script { seed, scenes: Vec::new(), expected: Vec::new(), executed: Vec::new() };
        let mut author = Author { random: Rng::with_seed(seed), script };
        // Each kind of scene once in an order of the seed's own, and more at random.
        let mut kinds: Vec<u8> = (0..8).collect();
        author.random.shuffle(&mut kinds);
        kinds.extend((0..10).map(|_| author.random.u8(..8)));
        for kind in kinds {
            author.scene(kind, restarts);
        }
        author.script.executed.sort();
        author.script
    }

    pub fn operations(&self) -> usize {
        self.expected.len()
    }

    /// How each operation must end.
    pub fn expected(&self) -> &[String] {
        &self.expected
    }

    pub fn executed(&self) -> &[String] {
        &self.executed
    }

    pub fn scene_of(&self, number: usize) -> String {
        let scene = self.scenes.iter().find(|scene| scene.operations().iter().any(|operation| operation.number == number));
        let text = scene.map(|scene| format!("{scene:?}")).unwrap_or_default();
        text.split([' ', '(']).next().unwrap_or_default().to_owned()
    }
}

impl Scene {
    pub fn operations(&self) -> Vec<&Operation> {
        match self {
            Scene::Batch(calls) | Scene::CancelRunning { calls, .. } | Scene::LateRunning(calls) | Scene::Restart(calls) => {
                calls.iter().collect()
            }
            Scene::CancelQueued { running: first, queued: second }
            | Scene::LateQueued { running: first, queued: second }
            | Scene::Overload { taken: first, refused: second } => first.iter().chain(second).collect(),
            Scene::Notified(call) => vec![call],
        }
    }
}

impl Author {
    fn scene(&mut self, kind: u8, restarts: bool) {
        const CANCELLED: &str = "cancelled, MaybeExecuted";
        let few = self.random.usize(1..=4);
        let scene = match kind {
            1 => {
                let by_drop = self.random.bool();
                let end = if by_drop { "dropped" } else { CANCELLED };
                Scene::CancelRunning { calls: self.gated(few.min(CONCURRENCY), end, "cancelled"), by_drop }
            }
            2 => Scene::CancelQueued { running: self.gated(CONCURRENCY, "", "done"), queued: self.gated(few, CANCELLED, "") },
            3 => Scene::LateRunning(self.gated(few.min(CONCURRENCY), "deadline", "deadline")),
            4 => Scene::LateQueued { running: self.gated(CONCURRENCY, "", "done"), queued: self.gated(few, "deadline", "") },
            5 => Scene::Overload { taken: self.gated(GATED, "", "done"), refused: self.gated(few, "overloaded", "") },
            6 => Scene::Notified(self.gated(1, "started, ", "done").remove(0)),
            7 if restarts => {
                let end = "cancelled, MaybeExecuted";
                Scene::Restart(self.gated(few.min(CONCURRENCY), end, "stopped"))
            }
            _ => Scene::Batch(self.batch()),
        };
        self.script.scenes.push(scene);
    }

    fn batch(&mut self) -> Vec<Operation> {
        let count = self.random.usize(4..=24);
        (0..count).map(|_| self.operation()).collect()
    }

    /// A call of any kind that ends by itself.
    fn operation(&mut self) -> Operation {
        let how = match self.random.u8(..20) {
            0 => How::Unknown,
            1 => How::TooLarge,
            2 | 3 => How::Fail(Code::ALL[self.random.usize(1..Code::ALL.len())]),
            4 => How::Panic,
            5..=9 => How::Future,
            10..=14 => How::Queued,
            _ => How::Inline,
        };
        let mut call =
            Operation { number: self.script.expected.len(), class: self.class(), request: self.size(), reply: self.size(), how };
        let (number, class, request) = (call.number, call.class, call.request);
        let expected = match how {
            How::Inline | How::Queued | How::Future => answer(number, call.reply),
            // Of a handler's own status the caller sees the code; this one is an error of its own.
            How::Fail(Code::DeadlineExceeded) => "deadline".to_owned(),
            How::Fail(code) => format!("status {code:?}"),
            How::Panic => "status Internal".to_owned(),
            How::Unknown => "unknown method".to_owned(),
            How::TooLarge => {
                call.request = MAX_MESSAGE + self.random.usize(1..1_000);
                "too large".to_owned()
            }
            How::Gated => unreachable!("scenes make those"),
        };
        self.script.expected.push(expected);
        if !matches!(how, How::Unknown | How::TooLarge) {
            self.script.executed.push(seen(number, class, request, ""));
        }
        call
    }

    /// Gated calls that end like this (with their answer where that is empty, or begins with what else there is), and whose handlers
    /// end like that (empty: they never run).
    fn gated(&mut self, count: usize, end: &str, handler: &str) -> Vec<Operation> {
        let one = |_| {
            let number = self.script.expected.len();
            let call = Operation { number, class: self.class(), request: self.random.usize(9..1_000), reply: 100, how: How::Gated };
            let answered = end.is_empty() || end.ends_with(", ");
            let answer = if answered { answer(number, call.reply) } else { String::new() };
            self.script.expected.push(format!("{end}{answer}"));
            if !handler.is_empty() {
                self.script.executed.push(seen(number, call.class, call.request, handler));
            }
            call
        };
        (0..count).map(one).collect()
    }

    fn class(&mut self) -> Class {
        Class::ALL[self.random.usize(..Class::COUNT)]
    }

    /// Sizes around those where something changes, and some large ones.
    fn size(&mut self) -> usize {
        const EDGES: [usize; 8] = [9, 10, 64, 1_200, 1_320, 4_047, 16 << 10, 64 << 10];
        let size = EDGES[self.random.usize(..EDGES.len())] + self.random.usize(..64);
        match self.random.u8(..24) {
            0 => self.random.usize(9..MAX_MESSAGE - 64),
            _ => size,
        }
    }
}

/// The bytes of a request or reply.
pub fn bytes(number: usize, salt: u64, len: usize) -> Vec<u8> {
    let mut random = Rng::with_seed(number as u64 ^ salt << 32);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// How an answered call ends.
pub fn answer(number: usize, len: usize) -> String {
    answered(&bytes(number, 1, len))
}

/// How a call ends that was answered with these bytes.
pub fn answered(reply: &[u8]) -> String {
    // FNV-1a, 64 bits.
    let hash = reply.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{} bytes, {hash:x}", reply.len())
}

/// What a handler notes of its request.
pub fn seen(number: usize, class: Class, request: usize, end: &str) -> String {
    format!("{number}: {class}, {request} bytes {end}")
}
