//! The server's side of ties at a node: a hook of `rpc` that tells the other servers when a tied copy starts, and drops, demotes or
//! stops copies here when they say so. The rules are in [`crate::table`]. What it counts is part of its node's metrics.

use std::cell::RefCell;
use std::rc::Rc;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::port::Address;
use tautline_rpc::{Admit, Code, Entry, Hook, HookContext, Node, Origin, QueuedCancel, ServeError, Status, Word};

use crate::header::{Control, Outcome, TAG, TieHeader, canonical};
use crate::metrics::{Latency, TieMetrics};
use crate::table::{Admission, Message, Queue, Removal, Table, TableConfig};

/// How a server treats ties. `allowed` has no default that is of use: name the replicas there.
pub type TieServerConfig = TableConfig;

/// Ties at a serving node. Every replica that takes tied calls needs one; it belongs to its node's thread, and clones are the same
/// server.
#[derive(Clone, Debug)]
pub struct TieServer {
    state: Rc<RefCell<ServerState>>,
}

#[derive(Debug)]
struct ServerState {
    table: Table<Entry>,
    round_trip: Latency,
    unsent: u64,
}

/// Why ties could not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TieServerError {
    /// No replica is allowed: every tie would be executed twice.
    #[error(
        "no replica may cancel here: put into `allowed` the address of each replica, this one's too, as clients call it (udp://10.0.0.1:7000)"
    )]
    Empty,
    /// An address that servers bind to, and no packet comes from.
    #[error(
        "{0} is no replica's address: put into `allowed` the one that clients call (udp://10.0.0.1:7000), with its port, and not the wildcard that a server binds to"
    )]
    Wildcard(Address),
    /// The node refuses the hook.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl TieServer {
    /// Installs ties at `node`. Only the replicas in `config.allowed` are told of starts, and only they are listened to: name them all
    /// (the node itself may be among them) by the addresses that clients use. Where the others are not known yet, name the node
    /// itself, and [`allow`](TieServer::allow) them later. What it counts joins the node's [metrics](Node::metrics).
    pub fn install(node: &mut Node, config: TieServerConfig) -> Result<TieServer, TieServerError> {
        let (server, hook) = TieServer::detached(config)?;
        node.hook(TAG, hook)?;
        node.local().metrics_source(&server.state, |state| metrics(&state.borrow()).prometheus());
        Ok(server)
    }

    /// Ties that are at no node yet: the hook is for [`Node::hook`] with [`TAG`], by itself or within another hook that watches it.
    pub fn detached(config: TieServerConfig) -> Result<(TieServer, TieHook), TieServerError> {
        if config.allowed.is_empty() {
            return Err(TieServerError::Empty);
        }
        config.allowed.iter().try_for_each(check)?;
        let state = ServerState { table: Table::new(config), round_trip: Latency::new(), unsent: 0 };
        let server = TieServer { state: Rc::new(RefCell::new(state)) };
        Ok((server.clone(), TieHook { server }))
    }

    /// Allows one more replica.
    pub fn allow(&self, replica: Address) -> Result<(), TieServerError> {
        check(&replica)?;
        self.state.borrow_mut().table.allow(replica);
        Ok(())
    }

    /// Forgets a replica. Copies that wait here already still tell it of their start, and are dropped by its word.
    pub fn disallow(&self, replica: &Address) {
        self.state.borrow_mut().table.disallow(replica);
    }

    /// What was counted so far.
    pub fn metrics(&self) -> TieMetrics {
        metrics(&self.state.borrow())
    }
}

fn metrics(state: &ServerState) -> TieMetrics {
    TieMetrics {
        counters: state.table.counters().clone(),
        copies: state.table.len(),
        tombstones: state.table.tombstones(),
        cancel_round_trip: state.round_trip.clone(),
        unsent: state.unsent,
    }
}

/// Packets come from no wildcard, and no client calls one.
fn check(replica: &Address) -> Result<(), TieServerError> {
    match canonical(replica) {
        Address::Inet(address) if address.ip().is_unspecified() || address.port() == 0 => Err(TieServerError::Wildcard(*replica)),
        _ => Ok(()),
    }
}

/// What a node calls when tied copies arrive, start and end; see [`TieServer::detached`].
#[derive(Debug)]
pub struct TieHook {
    server: TieServer,
}

/// What is still to be said about a message that [`TieHook::obey`] took.
#[derive(Debug)]
#[must_use = "the other server waits for it"]
pub struct TieAnswer {
    message: Option<Message>,
    dropped_at: Option<Time>,
}

impl TieAnswer {
    /// When the message took a queued copy out, if it did.
    pub fn dropped_at(&self) -> Option<Time> {
        self.dropped_at
    }
}

impl TieHook {
    /// The first half of [`Hook::control`]: does what the message asks. For a hook around this one that wants to know what was done;
    /// it passes the answer on to [`TieHook::answer`].
    pub fn obey(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) -> TieAnswer {
        let now = cx.now();
        let mut state = self.server.state.borrow_mut();
        let state = &mut *state;
        let mut queue = NodeQueue { cx, dropped_at: None };
        let message = match Control::parse(bytes) {
            Ok(control @ Control::Cancel { .. }) => state.table.cancel(&control, from.address, now, &mut queue),
            Ok(control @ Control::Outcome { .. }) => {
                if let Some((Outcome::Dropped | Outcome::Demoted, round_trip)) = state.table.outcome(&control, from.address, now) {
                    state.round_trip.record(round_trip);
                }
                None
            }
            Err(error) => {
                tracing::debug!(from = %from.address, %error, "a tie's message that can't be read");
                state.table.malformed();
                None
            }
        };
        TieAnswer { message, dropped_at: queue.dropped_at }
    }

    /// The second half of [`Hook::control`]: tells the other server.
    pub fn answer(&self, answer: TieAnswer, cx: &mut HookContext<'_>) {
        if let Some(message) = &answer.message {
            send(message, &mut self.server.state.borrow_mut().unsent, cx);
        }
    }
}

fn send((to, control): &Message, unsent: &mut u64, cx: &mut HookContext<'_>) {
    // A cancel that can't be sent costs work, and nothing else.
    if let Err(error) = cx.send_control(*to, &control.emit()) {
        tracing::debug!(%to, %error, "a tie's message was not sent");
        *unsent += 1;
    }
}

/// Leaves with a copy that waits what is to be said when it starts, and by which word the other server drops it: between a start and the
/// drop of the other copy then stands nothing but the message. Whether the first is seen to.
fn leave(entry: Entry, other: Address, said: &Control, heard: Option<&Control>, cx: &mut HookContext<'_>) -> bool {
    if let Some(heard) = heard {
        // Without it the copy is dropped just so, a little later.
        cx.drop_when_told(entry, other, &Word { bytes: &heard.emit(), time_at: Control::SENT_AT });
    }
    cx.tell_when_started(entry, other, &Word { bytes: &said.emit(), time_at: Control::SENT_AT })
}

impl Hook for TieHook {
    fn admit(&mut self, entry: Entry, extension: &[u8], from: Origin, cx: &mut HookContext<'_>) -> Admit {
        let table = &mut self.server.state.borrow_mut().table;
        let header = match TieHeader::parse(extension) {
            Ok(header) => header,
            Err(error) => {
                tracing::debug!(from = %from.address, %error, "a tie that can't be read: the request runs untied");
                table.malformed();
                return Admit::Run;
            }
        };
        match table.admit(entry, header, from.address, cx.now()) {
            Admission::Run => {
                table.prepare(entry, |other, said, heard| leave(entry, other, said, heard, cx));
                Admit::Run
            }
            Admission::Demote => Admit::Demote,
            Admission::Drop => Admit::Cancel(Status::new(Code::Cancelled, "another copy of this call has started")),
        }
    }

    fn started(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>) {
        let state = &mut *self.server.state.borrow_mut();
        state.unsent += cx.untold(entry) as u64;
        let unsent = &mut state.unsent;
        state.table.started(entry, at, |to, cancel| send(&(to, cancel), unsent, cx));
    }

    fn finished(&mut self, entry: Entry, at: Time, _: &mut HookContext<'_>) {
        self.server.state.borrow_mut().table.finished(entry, at);
    }

    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) {
        let answer = self.obey(from, bytes, cx);
        self.answer(answer, cx);
    }
}

/// The node's run queue, as a table sees it.
struct NodeQueue<'a, 'b> {
    cx: &'a mut HookContext<'b>,
    dropped_at: Option<Time>,
}

impl Queue<Entry> for NodeQueue<'_, '_> {
    fn drop_queued(&mut self, entry: Entry) -> Removal {
        match self.cx.cancel_queued(entry) {
            QueuedCancel::Dropped { at } => {
                self.dropped_at = Some(at);
                Removal::Dropped
            }
            QueuedCancel::Started => Removal::Started,
            QueuedCancel::Gone => Removal::Gone,
        }
    }

    fn demote(&mut self, entry: Entry) -> bool {
        // What was asked for in the background class is there already.
        let demoted = self.cx.demote(entry, Class::Background) || self.cx.class(entry) == Some(Class::Background);
        if demoted {
            self.cx.tell_nobody(entry);
        }
        demoted
    }

    fn stop(&mut self, entry: Entry) {
        self.cx.cancel(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_rpc::ToAddress;

    fn install(allowed: &[&str]) -> Result<TieServer, TieServerError> {
        let allowed = allowed.iter().map(|name| name.to_address().unwrap()).collect();
        let mut node = Node::builder("mem://tie-server").build().unwrap();
        TieServer::install(&mut node, TieServerConfig { allowed, ..TieServerConfig::default() })
    }

    #[test]
    fn a_server_that_could_cancel_nothing_is_refused_and_told_what_to_write() {
        let error = install(&[]).unwrap_err();
        assert_eq!(error, TieServerError::Empty);
        assert!(error.to_string().contains("put into `allowed`"), "{error}");
        for wildcard in ["0.0.0.0:7000", "[::]:7000", "[::ffff:0.0.0.0]:7000", "10.0.0.1:0"] {
            let error = install(&["udp://10.0.0.2:7000", &format!("udp://{wildcard}")]).unwrap_err();
            assert!(matches!(error, TieServerError::Wildcard(_)), "{wildcard}: {error}");
            assert!(error.to_string().contains(wildcard) && error.to_string().contains("put into `allowed`"), "{error}");
        }
        let ties = install(&["udp://10.0.0.2:7000", "mem://a"]).unwrap();
        assert!(ties.allow("udp://0.0.0.0:7000".to_address().unwrap()).is_err());
        assert_eq!(ties.allow("udp://10.0.0.3:7000".to_address().unwrap()), Ok(()));
    }
}
