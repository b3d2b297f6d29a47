//! How a layer above takes part in scheduling without this crate knowing what it is for: a hook sees requests that carry its
//! extension, learns when they start and end, and sends and receives small control messages that overtake all data.
//!
//! What is urgent it says beforehand: with a request that waits it leaves [`Word`]s, to be sent the moment the request starts, or to take it out of
//! the queue the moment they come.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{ConnectError, SendError};
use tautline_net::port::Address;
use tautline_net::sync::claim::Ticket;

use crate::header::MAX_HOOK_MESSAGE;
use crate::local::Shared;
use crate::request::Origin;
use crate::server::orders::{MAX_ORDERS, MAX_WORD, WORD_KEY};
use crate::status::Status;

/// A request in the run queue, or running. An entry is never reused: of one that has ended, every question's answer is "gone".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry(pub(crate) Ticket);

/// What to do with a request that just arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Queue it in its class.
    Run,
    /// Don't run it; this is the answer.
    Cancel(Status),
    /// Queue it in the lowest class.
    Demote,
}

/// What became of [`HookContext::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelOutcome {
    /// It was queued, and will not start. Its caller has been told.
    Dropped,
    /// It runs; its token has fired.
    TokenFired,
    /// It has ended.
    Gone,
}

/// What became of [`HookContext::cancel_queued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuedCancel {
    /// It was queued, and will not start. Its caller has been told.
    Dropped {
        /// When its claim word was flipped: from then on no worker can start it.
        at: Time,
    },
    /// It runs, and runs on.
    Started,
    /// It has ended.
    Gone,
}

/// A control message that is known before it is sent, but for the time of a request's start: see [`HookContext::tell_when_started`].
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// Its bytes, at most [`Word::MAX`].
    pub bytes: &'a [u8],
    /// Where the time goes: eight bytes, nanoseconds of the sending node's clock, little-endian. They are not before [`Word::KEY`] and end
    /// within `bytes`.
    pub time_at: usize,
}

impl Word<'_> {
    /// Longest word in bytes.
    pub const MAX: usize = MAX_WORD;
    /// So many leading bytes must tell words from each other.
    pub const KEY: usize = WORD_KEY;
    /// Words that can be left with one request.
    pub const COUNT: usize = MAX_ORDERS;
}

/// A part of a layer above. All methods run on the node's thread, between other work: they must be short and may not block.
///
/// For each admitted entry the calls are: `admit`, then perhaps `started`, then `finished`, once each.
pub trait Hook {
    /// A request with this hook's extension arrived.
    fn admit(&mut self, entry: Entry, extension: &[u8], from: Origin, cx: &mut HookContext<'_>) -> Admit;

    /// The entry won its claim at `at` and its handler runs, or is about to: on the poller this is called before the handler, of a worker
    /// it is learnt while the handler runs.
    fn started(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>);

    /// The entry has ended: its handler returned, or it was cancelled, expired or orphaned in the queue.
    fn finished(&mut self, entry: Entry, at: Time, cx: &mut HookContext<'_>);

    /// A control message for this hook.
    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>);
}

/// What a hook can do to the node.
#[derive(Debug)]
pub struct HookContext<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) tag: u8,
}

/// Why a hook's control message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Longer than a control message may be.
    #[error("control message of {len} bytes: at most {MAX_HOOK_MESSAGE} fit")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// No session could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session did not take it.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The node knows as many peers as it may, or has stopped.
    #[error("the node has no room for another peer, or has stopped")]
    Unavailable,
}

impl HookContext<'_> {
    /// The longest control message in bytes.
    pub const MAX_MESSAGE: usize = MAX_HOOK_MESSAGE;

    /// The time of this turn.
    pub fn now(&self) -> Time {
        self.shared.core.borrow().now
    }

    /// Ends an entry on behalf of the hook. One that is queued is dropped, and its caller told
    /// [`CallError::Cancelled`](crate::CallError::Cancelled) with the fate "not executed"; of one that runs the token fires.
    pub fn cancel(&mut self, entry: Entry) -> CancelOutcome {
        self.shared.with(|core| core.hook_cancel(entry))
    }

    /// Like [`HookContext::cancel`], but leaves alone what runs, even if it started this moment.
    pub fn cancel_queued(&mut self, entry: Entry) -> QueuedCancel {
        self.shared.with(|core| core.hook_cancel_queued(entry))
    }

    /// Lets others go before a queued entry: moves it to `class`. `false` if it has started or ended, or is in that class or a lower
    /// one already.
    pub fn demote(&mut self, entry: Entry, class: Class) -> bool {
        self.shared.with(|core| core.demote(entry.0, class))
    }

    /// Leaves a word to be sent to the same hook of the node at `to` when this entry starts, ahead of all else that its start causes:
    /// before [`Hook::started`] and the handler. `false`: the word is not as it must be, the entry has [`Word::COUNT`] already, or is gone.
    pub fn tell_when_started(&mut self, entry: Entry, to: Address, word: &Word<'_>) -> bool {
        let tag = self.tag;
        self.shared.with(|core| core.order(entry.0, tag, to, false, word))
    }

    /// Takes back what [`HookContext::tell_when_started`] left with an entry and was not sent.
    pub fn tell_nobody(&mut self, entry: Entry) {
        self.shared.with(|core| core.tell_nobody(entry.0));
    }

    /// How many of the words left with an entry that has started could not be sent.
    pub fn untold(&self, entry: Entry) -> usize {
        self.shared.core.borrow().untold(entry.0)
    }

    /// Leaves a word that takes this entry out of the queue when it comes from the node at `from`, whatever time it has, before anything else is
    /// done about it. The hook gets the word as a control message like any other, and [`HookContext::cancel_queued`] tells it then what was
    /// done; if it does not ask, the entry is ended as by [`HookContext::cancel`]. `false` as above: then the hook sees to it
    /// by itself when it gets the message.
    pub fn drop_when_told(&mut self, entry: Entry, from: Address, word: &Word<'_>) -> bool {
        let tag = self.tag;
        self.shared.with(|core| core.order(entry.0, tag, from, true, word))
    }

    /// The class in which an entry is queued or runs.
    pub fn class(&self, entry: Entry) -> Option<Class> {
        self.shared.core.borrow().server.class_of(entry.0)
    }

    /// Sends `bytes` to the same hook of the node at `to`, in whatever session there is, or in a new one. It overtakes all data and is
    /// delivered at most once.
    pub fn send_control(&mut self, to: Address, bytes: &[u8]) -> Result<(), ControlError> {
        let tag = self.tag;
        self.shared.with(|core| core.send_hook(to, tag, bytes))
    }

    /// Half the smoothed round trip to `peer`, if there is a session that measured one.
    pub fn one_way_delay(&self, peer: Address) -> Option<Duration> {
        self.shared.core.borrow().one_way_delay(peer)
    }
}
