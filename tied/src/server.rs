//! The server's side of ties at a node: a hook of `rpc` that tells the other servers when a tied copy starts, and drops, demotes or
//! stops copies here when they say so. The rules are in [`crate::table`].

use std::cell::RefCell;
use std::rc::Rc;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::port::Address;
use tautline_rpc::{Admit, Code, Entry, Hook, HookContext, Node, Origin, QueuedCancel, ServeError, Status};

use crate::header::{Control, Outcome, TAG, TieHeader};
use crate::metrics::{Latency, TieMetrics};
use crate::table::{Admission, Message, Queue, Removal, Table, TableConfig};

/// How a server treats ties.
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

impl TieServer {
    /// Installs ties at `node`. Only the replicas in `config.allowed` are told of starts, and only they are listened to: name them all
    /// (the node itself may be among them) by the addresses that clients use.
    pub fn install(node: &mut Node, config: TieServerConfig) -> Result<TieServer, ServeError> {
        let (server, hook) = TieServer::detached(config);
        node.hook(TAG, hook)?;
        Ok(server)
    }

    /// Ties that are at no node yet: the hook is for [`Node::hook`] with [`TAG`], by itself or within another hook that watches it.
    pub fn detached(config: TieServerConfig) -> (TieServer, TieHook) {
        let state = ServerState { table: Table::new(config), round_trip: Latency::new(), unsent: 0 };
        let server = TieServer { state: Rc::new(RefCell::new(state)) };
        (server.clone(), TieHook { server })
    }

    /// Allows one more replica.
    pub fn allow(&self, replica: Address) {
        self.state.borrow_mut().table.allow(replica);
    }

    /// Forgets a replica.
    pub fn disallow(&self, replica: &Address) {
        self.state.borrow_mut().table.disallow(replica);
    }

    /// What was counted so far.
    pub fn metrics(&self) -> TieMetrics {
        let state = self.state.borrow();
        TieMetrics {
            counters: state.table.counters().clone(),
            copies: state.table.len(),
            tombstones: state.table.tombstones(),
            cancel_round_trip: state.round_trip.clone(),
            unsent: state.unsent,
        }
    }
}

/// What a node calls when tied copies arrive, start and end; see [`TieServer::detached`].
#[derive(Debug)]
pub struct TieHook {
    server: TieServer,
}

impl TieHook {
    fn send(&self, messages: impl IntoIterator<Item = Message>, cx: &mut HookContext<'_>) {
        for (to, control) in messages {
            // A cancel that can't be sent costs work, and nothing else.
            if let Err(error) = cx.send_control(to, &control.emit()) {
                tracing::debug!(%to, %error, "a tie's message was not sent");
                self.server.state.borrow_mut().unsent += 1;
            }
        }
    }
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
            Admission::Run => Admit::Run,
            Admission::Demote => Admit::Demote,
            Admission::Drop => Admit::Cancel(Status::new(Code::Cancelled, "another copy of this call has started")),
        }
    }

    fn started(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>) {
        let messages = self.server.state.borrow_mut().table.started(entry, at);
        self.send(messages, cx);
    }

    fn finished(&mut self, entry: Entry, at: Time, _: &mut HookContext<'_>) {
        self.server.state.borrow_mut().table.finished(entry, at);
    }

    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) {
        let now = cx.now();
        let answer = {
            let mut state = self.server.state.borrow_mut();
            let state = &mut *state;
            match Control::parse(bytes) {
                Ok(control @ Control::Cancel { .. }) => state.table.cancel(&control, from.address, now, &mut NodeQueue(cx)),
                Ok(control @ Control::Outcome { .. }) => {
                    if let Some((Outcome::Dropped | Outcome::Demoted, round_trip)) =
                        state.table.outcome(&control, from.address, now)
                    {
                        state.round_trip.record(round_trip);
                    }
                    None
                }
                Err(error) => {
                    tracing::debug!(from = %from.address, %error, "a tie's message that can't be read");
                    state.table.malformed();
                    None
                }
            }
        };
        self.send(answer, cx);
    }
}

/// The node's run queue, as a table sees it.
struct NodeQueue<'a, 'b>(&'a mut HookContext<'b>);

impl Queue<Entry> for NodeQueue<'_, '_> {
    fn drop_queued(&mut self, entry: Entry) -> Removal {
        match self.0.cancel_queued(entry) {
            QueuedCancel::Dropped => Removal::Dropped,
            QueuedCancel::Started => Removal::Started,
            QueuedCancel::Gone => Removal::Gone,
        }
    }

    fn demote(&mut self, entry: Entry) -> bool {
        // What was asked for in the background class is there already.
        self.0.demote(entry, Class::Background) || self.0.class(entry) == Some(Class::Background)
    }

    fn stop(&mut self, entry: Entry) {
        self.0.cancel(entry);
    }
}
