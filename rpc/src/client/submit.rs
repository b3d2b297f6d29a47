//! Calls on their way out: made, given to their session when there is credit, or put in line.

use std::collections::HashMap;
use std::hint::cold_path;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{CloseReason, ConnectError, MessageId, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::Address;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use super::call::{CallId, CallResult, Sink};
use super::completions::Completions;
use super::peers::Peer;
use super::table::{NewCall, Table, Turn};
use crate::core::Core;
use crate::error::{CallError, Fate, Limit};
use crate::header::{HookHead, MAX_EXTENSION, MAX_HOOK_MESSAGE, NO_BUDGET, REQUEST_HEAD, RequestHead, VERSION, kind, request_flag};
use crate::hook::ControlError;
use crate::method::Method;
use crate::options::CallOptions;

/// A call made with [`Local::submit`](crate::Local::submit) has ended.
#[derive(Debug)]
pub struct Completion {
    /// The tag given to `submit`.
    pub tag: u64,
    /// The reply, or why there is none.
    pub result: CallResult,
}

/// The calling side's state.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) table: Table,
    /// The session to each address, whoever opened it.
    pub(crate) by_address: HashMap<Address, SessionId, RandomState>,
    pub(crate) completions: Completions,
    pub(crate) max_waiting: usize,
    pub(crate) max_calls: usize,
}

/// A call that holds a credit and is to be sent.
struct Leaving<'a> {
    id: CallId,
    peer: u32,
    class: Class,
    method: Method,
    due: Time,
    notify_start: bool,
    extension: Option<(u8, &'a [u8])>,
}

impl Core {
    /// Makes a call. An error is that of a call that never began: nothing was sent.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        peer: &Peer,
        method: Method,
        payload: Payload,
        options: &CallOptions,
        sink: impl FnOnce() -> Sink,
    ) -> Result<CallId, CallError> {
        self.refresh();
        let series = self.metrics.client_method(method);
        let made = self.make(peer, method, series, payload, options, sink);
        let counted = self.metrics.calling(series, options.class);
        counted.calls += 1;
        match made {
            Ok(id) => Ok(id),
            Err(error) => {
                cold_path();
                counted.errors[error.kind() as usize] += 1;
                Err(*error)
            }
        }
    }

    #[inline]
    fn make(
        &mut self,
        peer: &Peer,
        method: Method,
        series: u32,
        payload: Payload,
        options: &CallOptions,
        sink: impl FnOnce() -> Sink,
    ) -> Result<CallId, Box<CallError>> {
        if self.stopped {
            cold_path();
            return Err(Box::new(CallError::Stopped { fate: Fate::NotSent }));
        }
        let due = options.due(|| self.read_clock());
        if due <= self.now {
            cold_path();
            return Err(Box::new(CallError::DeadlineExceeded { fate: Fate::NotSent }));
        }
        // Completions that nobody fetched count: they are as bounded as calls.
        if self.client.table.live() + self.client.completions.len() >= self.client.max_calls {
            cold_path();
            return Err(Box::new(CallError::Full(Limit::Calls)));
        }
        let peer = self.client.table.peers.resolve(peer).ok_or_else(|| Box::new(CallError::Full(Limit::Peers)))?;
        let slot = self.client.table.vacant().ok_or_else(|| Box::new(CallError::Full(Limit::Calls)))?;
        let (class, notify_start, begun) = (options.class, options.notify_start, self.now);
        let call = NewCall { peer, class, method, series, notify_start, begun, due, sink: sink() };
        let (id, turn) = self.client.table.open(slot, call, self.client.max_waiting);
        let extension = options.extension.as_ref().map(|e| (e.tag(), e.bytes()));
        let result = match turn {
            Turn::Send => self.send_call(&Leaving { id, peer, class, method, due, notify_start, extension }, payload),
            Turn::Wait => {
                self.put_in_line(slot, payload, options);
                Ok(())
            }
            Turn::Full => {
                cold_path();
                Err(Box::new(CallError::Full(Limit::Waiting)))
            }
        };
        if result.is_err() {
            cold_path();
            // It never began: its sink hears of it by the return value.
            self.client.table.end(slot);
            self.release_call(slot);
        }
        result.map(|()| id)
    }

    /// Keeps what a call that waits for credit will be sent with.
    #[cold]
    fn put_in_line(&mut self, slot: u32, payload: Payload, options: &CallOptions) {
        let cold = self.client.table.cold_mut(slot);
        cold.payload = payload;
        cold.extension.clone_from(&options.extension);
        self.client.table.wait(slot, self.now);
    }

    /// Gives a call that holds a credit to its peer's session, opening one if there is none. On failure the credit is back.
    #[inline(always)]
    fn send_call(&mut self, call: &Leaving<'_>, payload: Payload) -> Result<(), Box<CallError>> {
        let &Leaving { id, peer, class, method, due, notify_start, extension } = call;
        let (tag, bytes) = extension.unwrap_or((0, &[]));
        let head = RequestHead {
            kind: kind::REQUEST,
            version: VERSION,
            class: class.index() as u8,
            flags: if notify_start { request_flag::NOTIFY_START } else { 0 },
            method: U32::new(method.id()),
            call: U64::new(id.as_u64()),
            budget_us: U32::new(budget(due, self.now)),
            extension_tag: tag,
            extension_length: bytes.len() as u8,
            reserved: U16::ZERO,
        };
        let session = match self.client.table.peers[peer].session {
            Some(session) => session,
            None => match self.open_session(peer) {
                Ok(session) => session,
                Err(error) => return Err(self.not_sent(id.slot, error.into())),
            },
        };
        let sent = if bytes.is_empty() {
            self.endpoint.send_words(session, class, head.words(), payload, id.as_u64(), self.now)
        } else {
            self.send_extended(session, class, &head, bytes, payload, id)
        };
        match sent {
            Ok(message) => {
                self.client.table.sent(id.slot, session, message);
                Ok(())
            }
            Err(error) => Err(self.not_sent(id.slot, refused(error))),
        }
    }

    /// Sends a request that has an extension.
    #[inline(never)]
    fn send_extended(
        &mut self,
        session: SessionId,
        class: Class,
        head: &RequestHead,
        extension: &[u8],
        payload: Payload,
        id: CallId,
    ) -> Result<MessageId, SendError> {
        let mut buffer = [0; REQUEST_HEAD + MAX_EXTENSION];
        let (place, rest) = buffer.split_at_mut(REQUEST_HEAD);
        place.copy_from_slice(head.as_bytes());
        rest[..extension.len()].copy_from_slice(extension);
        self.endpoint.send(session, class, &buffer[..REQUEST_HEAD + extension.len()], payload, id.as_u64(), self.now)
    }

    /// The session did not take a call: its credit is back.
    #[cold]
    fn not_sent(&mut self, slot: u32, error: CallError) -> Box<CallError> {
        self.client.table.not_sent(slot);
        Box::new(error)
    }

    /// The session to a peer: the one there is, or a new one.
    #[inline]
    fn session_of(&mut self, peer: u32) -> Result<SessionId, ConnectError> {
        match self.client.table.peers[peer].session {
            Some(session) => Ok(session),
            None => self.open_session(peer),
        }
    }

    #[cold]
    fn open_session(&mut self, peer: u32) -> Result<SessionId, ConnectError> {
        let address = self.client.table.peers[peer].address;
        let session = match self.client.by_address.get(&address) {
            Some(&session) => session,
            None => {
                let session = self.endpoint.connect(address, self.now)?;
                self.add_session(session, address);
                self.client.by_address.insert(address, session);
                session
            }
        };
        self.client.table.peers[peer].session = Some(session);
        Ok(session)
    }

    /// Sends what waits for credit of a peer and class, as far as there is any.
    #[inline]
    pub(super) fn pump(&mut self, peer: u32, class: Class) {
        if self.client.table.has_waiting(peer, class) {
            self.pump_line(peer, class);
        }
    }

    #[inline(never)]
    fn pump_line(&mut self, peer: u32, class: Class) {
        while let Some(slot) = self.client.table.next_waiting(peer, class) {
            self.send_waiting(slot);
        }
    }

    /// Sends a call that has waited, and holds a credit now.
    pub(super) fn send_waiting(&mut self, slot: u32) {
        let cold = self.client.table.cold_mut(slot);
        let (payload, extension) = (std::mem::take(&mut cold.payload), cold.extension.take());
        let call = self.client.table.call(slot);
        let leaving = Leaving {
            id: self.client.table.id(slot),
            peer: call.peer,
            class: call.class,
            method: call.method,
            due: call.due,
            notify_start: call.notify_start,
            extension: extension.as_ref().map(|e| (e.tag(), e.bytes())),
        };
        if let Err(error) = self.send_call(&leaving, payload) {
            self.client.table.end(slot);
            self.deliver(slot, Err(*error));
        }
    }

    /// Sends a hook's message to the node at `to`.
    pub(crate) fn send_hook(&mut self, to: Address, tag: u8, bytes: &[u8]) -> Result<(), ControlError> {
        if bytes.len() > MAX_HOOK_MESSAGE {
            return Err(ControlError::TooLong { len: bytes.len() });
        }
        if self.stopped {
            return Err(ControlError::Unavailable);
        }
        self.refresh();
        let session = match self.session_to(to) {
            Some(session) => session,
            None => {
                let peer = self.client.table.peers.resolve(&Peer::unresolved(to)).ok_or(ControlError::Unavailable)?;
                self.session_of(peer)?
            }
        };
        let head = HookHead { kind: kind::HOOK, version: VERSION, tag, reserved: 0 };
        let mut message: SmallVec<[u8; 256]> = SmallVec::from_slice(head.as_bytes());
        message.extend_from_slice(bytes);
        Ok(self.endpoint.send_control(session, &message, self.now)?)
    }
}

const _: () = assert!(size_of::<HookHead>() + MAX_HOOK_MESSAGE <= 256, "hooks' messages must stay on the stack");

/// What it means for a call that its session did not take it.
fn refused(error: SendError) -> CallError {
    match error {
        SendError::TooLarge { len, limit } => CallError::TooLarge { len, limit },
        SendError::Full => CallError::Full(Limit::Session),
        // The session ended, and its last event is still to come.
        _ => CallError::Disconnected { reason: CloseReason::Local, fate: Fate::NotSent },
    }
}

/// What is left until `due`, in microseconds; saturating both ways.
#[inline]
fn budget(due: Time, now: Time) -> u32 {
    if due == Time::NEVER {
        return NO_BUDGET;
    }
    // Beyond what the field holds (71 minutes) the caller alone watches the deadline.
    u32::try_from(due.nanos_since(now) / 1000).unwrap_or(NO_BUDGET)
}
