//! The side that loses: a server whose only worker is held, and a probe around its ties that notes when a queued copy is gone.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tautline_bench::anchor::Anchor;
use tautline_bench::duo::{Serve, Stage};
use tautline_bench::error::BenchError;
use tautline_rpc::{Address, Admit, Clock, Entry, Hook, HookContext, Node, Origin, Reply, Service, Time, Wait};
use tautline_tied::header::{Control, TAG};
use tautline_tied::{TieHook, TieServer, TieServerConfig};

use super::{HOLD, WORK};

/// What a stage of cancels gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Flips {
    /// The loser's clock, before and after.
    pub(super) anchors: [Anchor; 2],
    /// When the winner claimed its copy, by the winner's clock, and when the queued copy was out, by the loser's.
    pub(super) times: Vec<(Time, Time)>,
}

/// Where the loser's thread leaves a stage's flips.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<Option<Flips>>>);

impl Shared {
    pub(super) fn take(&self) -> Option<Flips> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, flips: Flips) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(flips);
    }
}

/// Tells the loser, on its thread, of the winner.
#[derive(Clone, Debug)]
pub(super) struct Allow(Sender<Address>);

impl Allow {
    pub(super) fn tell(&self, winner: Address) {
        // If the loser is gone, its next stage says so.
        let _ = self.0.send(winner);
    }
}

/// The losing server.
pub(super) struct Loser {
    node: Node,
    ties: TieServer,
    clock: Clock,
    flips: Rc<RefCell<Vec<(Time, Time)>>>,
    shared: Shared,
    allowed: Receiver<Address>,
    gate: Arc<Gate>,
}

impl Loser {
    /// A loser at `url`, its address, and the ways to speak to it.
    pub(super) fn open(url: &str, clock: Clock) -> Result<(Loser, (Address, Shared, Allow)), BenchError> {
        let builder = Node::builder(url).wait(Wait::Spin).workers(1).clock(clock.clone());
        let mut node = builder.build().map_err(BenchError::product("building a node"))?;
        let gate = Arc::new(Gate::default());
        let held = Arc::clone(&gate);
        let hold = Service::workers(move |_| {
            held.wait();
            Ok(Reply::empty())
        });
        node.serve(HOLD, hold).map_err(BenchError::product("serving"))?;
        node.serve(WORK, Service::workers(|_| Ok(Reply::empty()))).map_err(BenchError::product("serving"))?;
        let address = node.address();
        let (ties, inner) = TieServer::detached(TieServerConfig { allowed: vec![address], ..TieServerConfig::default() })
            .map_err(BenchError::product("making ties"))?;
        let flips: Rc<RefCell<Vec<(Time, Time)>>> = Rc::default();
        let probe = Probe { inner, flips: Rc::clone(&flips) };
        node.hook(TAG, probe).map_err(BenchError::product("installing ties"))?;
        let (tell, allowed) = channel();
        let shared = Shared::default();
        let loser = Loser { node, ties, clock, flips, shared: shared.clone(), allowed, gate };
        Ok((loser, (address, shared, Allow(tell))))
    }
}

impl Serve for Loser {
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
        for winner in self.allowed.try_iter() {
            self.ties.allow(winner).map_err(BenchError::product("allowing a replica"))?;
        }
        let before = Anchor::now(&self.clock);
        while !stage.over() {
            self.node.poll();
        }
        let times = std::mem::take(&mut *self.flips.borrow_mut());
        self.shared.put(Flips { anchors: [before, Anchor::now(&self.clock)], times });
        Ok(())
    }
}

impl Drop for Loser {
    fn drop(&mut self) {
        // Or the node would wait for its worker for ever.
        self.gate.open();
    }
}

/// What holds the worker.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn wait(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open));
    }

    fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

/// Ties, and what they did to the queue.
#[derive(Debug)]
struct Probe {
    inner: TieHook,
    flips: Rc<RefCell<Vec<(Time, Time)>>>,
}

impl Hook for Probe {
    fn admit(&mut self, entry: Entry, extension: &[u8], from: Origin, cx: &mut HookContext<'_>) -> Admit {
        self.inner.admit(entry, extension, from, cx)
    }

    fn started(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>) {
        self.inner.started(entry, at, cx);
    }

    fn finished(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>) {
        self.inner.finished(entry, at, cx);
    }

    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) {
        let answer = self.inner.obey(from, bytes, cx);
        if let (Ok(Control::Cancel { sent_at, .. }), Some(at)) = (Control::parse(bytes), answer.dropped_at()) {
            self.flips.borrow_mut().push((Time::from_nanos(sent_at), at));
        }
        self.inner.answer(answer, cx);
    }
}
