//! Calls on their way: sending them when there is credit, and ending them for whatever reason comes first.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{CloseReason, ConnectError, SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::port::Address;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::call::{CallId, CallResult, Held, Sink, State};
use super::peers::Peer;
use super::table::{NewCall, Table, Turn};
use crate::core::{Core, Deferred, SessionState};
use crate::error::{CallError, Fate, Limit};
use crate::header::{
    CallNotice, MAX_EXTENSION, NO_BUDGET, REPLY_HEAD, REQUEST_HEAD, ReplyHead, RequestHead, VERSION, kind, reply_flag, request_flag,
};
use crate::hook::ControlError;
use crate::method::Method;
use crate::options::CallOptions;
use crate::status::{Code, Status};

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
    pub(crate) by_address: HashMap<Address, SessionId>,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) max_waiting: usize,
    pub(crate) max_calls: usize,
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
        sink: Sink,
    ) -> Result<CallId, CallError> {
        self.refresh();
        let series = self.metrics.client_method(method);
        self.metrics.calling(series, options.class).calls += 1;
        let made = self.make(peer, method, series, payload, options, sink);
        if let Err(error) = &made {
            self.metrics.calling(series, options.class).errors[error.kind() as usize] += 1;
        }
        made
    }

    #[inline]
    fn make(
        &mut self,
        peer: &Peer,
        method: Method,
        series: u32,
        payload: Payload,
        options: &CallOptions,
        sink: Sink,
    ) -> Result<CallId, CallError> {
        if self.stopped {
            return Err(CallError::Stopped { fate: Fate::NotSent });
        }
        let due = options.due(|| self.read_clock());
        if due <= self.now {
            return Err(CallError::DeadlineExceeded { fate: Fate::NotSent });
        }
        // Completions that nobody fetched count: they are as bounded as calls.
        if self.client.table.live() + self.client.completions.len() >= self.client.max_calls {
            return Err(CallError::Full(Limit::Calls));
        }
        let peer = self.client.table.peers.resolve(peer).ok_or(CallError::Full(Limit::Peers))?;
        let (class, notify_start, begun) = (options.class, options.notify_start, self.now);
        let call = NewCall { peer, class, method, series, notify_start, begun, due, sink };
        let slot = self.client.table.open(call).ok_or(CallError::Full(Limit::Calls))?;
        let result = match self.client.table.admit(slot, self.client.max_waiting) {
            Turn::Send => self.send_call(slot, payload, options.extension.as_ref().map(|e| (e.tag(), e.bytes()))),
            Turn::Wait => {
                let cold = self.client.table.cold_mut(slot);
                cold.payload = payload;
                cold.extension.clone_from(&options.extension);
                Ok(())
            }
            Turn::Full => Err(CallError::Full(Limit::Waiting)),
        };
        match result {
            Ok(()) => Ok(self.client.table.id(slot)),
            Err(error) => {
                // It never began: its sink hears of it by the return value.
                self.client.table.end(slot);
                self.release_call(slot);
                Err(error)
            }
        }
    }

    /// Gives a call that holds a credit to its peer's session, opening one if there is none. On failure the credit is back.
    #[inline]
    fn send_call(&mut self, slot: u32, payload: Payload, extension: Option<(u8, &[u8])>) -> Result<(), CallError> {
        let id = self.client.table.id(slot);
        let call = self.client.table.call(slot);
        let (peer, class, due) = (call.peer, call.class, call.due);
        let (tag, bytes) = extension.unwrap_or((0, &[]));
        let head = RequestHead {
            kind: kind::REQUEST,
            version: VERSION,
            class: class.index() as u8,
            flags: if call.notify_start { request_flag::NOTIFY_START } else { 0 },
            method: U32::new(call.method.id()),
            call: U64::new(id.as_u64()),
            budget_us: U32::new(budget(due, self.now)),
            extension_tag: tag,
            extension_length: bytes.len() as u8,
            reserved: U16::ZERO,
        };
        let sent = self.session_of(peer).map_err(CallError::from).and_then(|session| {
            let sent = if bytes.is_empty() {
                self.endpoint.send(session, class, head.as_bytes(), payload, id.as_u64(), self.now)
            } else {
                let mut buffer = [0; REQUEST_HEAD + MAX_EXTENSION];
                buffer[..REQUEST_HEAD].copy_from_slice(head.as_bytes());
                buffer[REQUEST_HEAD..REQUEST_HEAD + bytes.len()].copy_from_slice(bytes);
                self.endpoint.send(session, class, &buffer[..REQUEST_HEAD + bytes.len()], payload, id.as_u64(), self.now)
            };
            match sent {
                Ok(message) => Ok((session, message)),
                Err(SendError::TooLarge { len, limit }) => Err(CallError::TooLarge { len, limit }),
                Err(SendError::Full) => Err(CallError::Full(Limit::Session)),
                // The session ended, and its last event is still to come.
                Err(_) => Err(CallError::Disconnected { reason: CloseReason::Local, fate: Fate::NotSent }),
            }
        });
        match sent {
            Ok((session, message)) => {
                self.client.table.sent(slot, session, message);
                Ok(())
            }
            Err(error) => {
                self.client.table.not_sent(slot);
                Err(error)
            }
        }
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
    fn pump(&mut self, peer: u32, class: Class) {
        while let Some(slot) = self.client.table.next_waiting(peer, class) {
            let cold = self.client.table.cold_mut(slot);
            let (payload, extension) = (std::mem::take(&mut cold.payload), cold.extension.take());
            if let Err(error) = self.send_call(slot, payload, extension.as_ref().map(|e| (e.tag(), e.bytes()))) {
                self.client.table.end(slot);
                self.deliver(slot, Err(error));
            }
        }
    }

    /// A reply came, in `session`.
    #[inline]
    pub(crate) fn on_reply(&mut self, session: SessionId, mut payload: Payload) {
        let Ok((head, _)) = ReplyHead::read_from_prefix(&payload) else {
            self.metrics.node.malformed += 1;
            return;
        };
        let id = CallId::from_u64(head.call.get());
        // A reply counts only in the session that its call was sent in: nobody answers for somebody else.
        let slot = match self.client.table.find(id) {
            Some(slot) if self.client.table.call(slot).session == session => slot,
            _ => {
                self.metrics.node.late_replies += 1;
                return;
            }
        };
        let call = self.client.table.call(slot);
        let (peer, class, method) = (call.peer, call.class, call.method);
        if self.client.table.end(slot).is_none() {
            self.metrics.node.late_replies += 1;
            return;
        }
        payload.trim_front(REPLY_HEAD);
        let result = if head.code == Code::Ok as u8 && head.version == VERSION {
            Ok(payload)
        } else {
            Err(error_of(&head, method, &payload))
        };
        // What could not be given to a handler has no say in credits: such replies may come from another version.
        if head.version == VERSION && usize::from(head.class) == class.index() {
            self.client.table.peers[peer].lanes[class.index()].account.set_limit(head.credit.get());
        }
        self.deliver(slot, result);
        self.pump(peer, class);
    }

    /// The server says that a handler started.
    pub(crate) fn on_started(&mut self, session: SessionId, call: u64) {
        let Some(slot) = self.client.table.find(CallId::from_u64(call)) else { return };
        let call = self.client.table.call_mut(slot);
        if call.session == session
            && call.state.start()
            && let Sink::Future(waker) = &mut call.sink
        {
            self.deferred.extend(waker.take().map(Deferred::Wake));
        }
    }

    /// The session says that a call's request was not acknowledged; its end follows.
    pub(crate) fn on_undelivered(&mut self, session: SessionId, token: u64, transmitted: bool) {
        if let Some(slot) = self.client.table.find(CallId::from_u64(token)) {
            let call = self.client.table.call_mut(slot);
            if call.session == session && !transmitted {
                call.state.keep();
            }
        }
    }

    /// Cancels a call: it ends now, and its server is told.
    pub(crate) fn cancel_call(&mut self, id: CallId) -> bool {
        self.refresh();
        let Some(slot) = self.client.table.find(id) else { return false };
        self.give_up(slot, |fate| CallError::Cancelled { fate })
    }

    /// The caller's own deadline.
    pub(crate) fn on_call_deadline(&mut self, slot: u32) {
        self.give_up(slot, |fate| CallError::DeadlineExceeded { fate });
    }

    fn give_up(&mut self, slot: u32, error: impl FnOnce(Fate) -> CallError) -> bool {
        let call = self.client.table.call(slot);
        let (peer, class, session) = (call.peer, call.class, call.session);
        let Some(held) = self.client.table.end(slot) else { return false };
        let mut connected = false;
        if let Held::Credit { message, .. } = held {
            connected = self.session(session).is_some_and(|state| state.established);
            self.endpoint.abandon(session, message, self.now);
            if connected {
                let notice = CallNotice::new(kind::CANCEL, self.client.table.id(slot).as_u64());
                // A lost cancel costs the server some work, and nothing else.
                let _ = self.endpoint.send_control(session, notice.as_bytes(), self.now);
            }
        }
        self.deliver(slot, Err(error(held.fate(connected))));
        self.pump(peer, class);
        true
    }

    /// A future gave its call up: it ends, and nobody hears of it.
    pub(crate) fn forget_call(&mut self, id: CallId) {
        self.refresh();
        let Some(slot) = self.client.table.find(id) else { return };
        self.give_up(slot, |fate| CallError::Cancelled { fate });
        // The result, of this cancel or one that was there before, is not wanted.
        if self.client.table.call(slot).state == State::Ended {
            self.client.table.cold_mut(slot).result = None;
            self.release_call(slot);
        }
    }

    /// Ends the calls of a session that has ended, sent or waiting.
    pub(crate) fn end_session_calls(&mut self, session: &SessionState, reason: CloseReason) {
        while let Some(slot) = self.client.table.in_session(session.id.slot()) {
            let Some(held) = self.client.table.end(slot) else { break };
            let fate = held.fate(session.established);
            self.deliver(slot, Err(CallError::Disconnected { reason, fate }));
        }
        let Some(peer) = self.client.table.peers.index_of(session.address) else { return };
        if self.client.table.peers[peer].session != Some(session.id) {
            return;
        }
        self.client.table.peers[peer].session = None;
        for class in Class::ALL {
            while self.client.table.peers[peer].lanes[class.index()].waiting > 0 {
                let slot = self.client.table.peers[peer].lanes[class.index()].head;
                self.client.table.end(slot);
                self.deliver(slot, Err(CallError::Disconnected { reason, fate: Fate::NotSent }));
            }
        }
    }

    /// Ends every call: the node stops.
    pub(crate) fn end_all_calls(&mut self) {
        for slot in self.client.table.all() {
            let session = self.client.table.call(slot).session;
            let connected = self.session(session).is_some_and(|state| state.established);
            if let Some(held) = self.client.table.end(slot) {
                self.deliver(slot, Err(CallError::Stopped { fate: held.fate(connected) }));
            }
        }
    }

    /// Hands an ended call's result to whoever waits for it.
    #[inline]
    fn deliver(&mut self, slot: u32, result: CallResult) {
        let call = self.client.table.call_mut(slot);
        let series = self.metrics.calling(call.series, call.class);
        match &result {
            Ok(_) => {
                series.replies += 1;
                series.latency.record(self.now.nanos_since(call.begun));
            }
            Err(error) => series.errors[error.kind() as usize] += 1,
        }
        match &mut call.sink {
            Sink::Tag(tag) => {
                let tag = *tag;
                self.client.completions.push_back(Completion { tag, result });
            }
            Sink::Future(waker) => {
                self.deferred.extend(waker.take().map(Deferred::Wake));
                self.client.table.cold_mut(slot).result = Some(result);
                return;
            }
            Sink::Remote(_) => {
                if let Sink::Remote(remote) = std::mem::replace(&mut call.sink, Sink::Tag(0)) {
                    self.deferred.push_back(Deferred::Complete(remote, result));
                }
            }
        }
        self.release_call(slot);
    }

    /// Frees an ended call's slot and what was kept beside it.
    #[inline]
    pub(crate) fn release_call(&mut self, slot: u32) {
        if let Sink::Future(Some(_)) = self.client.table.call(slot).sink
            && let Sink::Future(Some(waker)) = std::mem::replace(&mut self.client.table.call_mut(slot).sink, Sink::Tag(0))
        {
            self.deferred.push_back(Deferred::Drop(waker));
        }
        let cold = self.client.table.cold_mut(slot);
        if !cold.payload.is_empty() || cold.extension.is_some() {
            (cold.payload, cold.extension) = (Payload::empty(), None);
        }
        self.client.table.release(slot);
    }

    /// Sends a hook's message to the node at `to`.
    pub(crate) fn send_hook(&mut self, to: Address, tag: u8, bytes: &[u8]) -> Result<(), ControlError> {
        use crate::header::{HookHead, MAX_HOOK_MESSAGE};
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
        let mut message = [0; size_of::<HookHead>() + MAX_HOOK_MESSAGE];
        let (front, rest) = message.split_at_mut(size_of::<HookHead>());
        front.copy_from_slice(head.as_bytes());
        rest[..bytes.len()].copy_from_slice(bytes);
        Ok(self.endpoint.send_control(session, &message[..size_of::<HookHead>() + bytes.len()], self.now)?)
    }
}

/// What is left until `due`, in microseconds; saturating both ways.
#[inline]
fn budget(due: Time, now: Time) -> u32 {
    if due == Time::NEVER {
        return NO_BUDGET;
    }
    u32::try_from(due.nanos_since(now) / 1000).unwrap_or(NO_BUDGET).min(NO_BUDGET - 1)
}

/// What a reply that is no success means.
#[cold]
fn error_of(head: &ReplyHead, method: Method, message: &[u8]) -> CallError {
    let flag = |bit: u8| head.flags & bit != 0;
    if flag(reply_flag::UNSUPPORTED) || head.version != VERSION {
        return CallError::Unsupported { theirs: head.version };
    }
    if flag(reply_flag::UNKNOWN_METHOD) {
        return CallError::UnknownMethod(method);
    }
    let after = Some(Duration::from_micros(u64::from(head.retry_after_us.get()))).filter(|after| !after.is_zero());
    if flag(reply_flag::OVERLOADED) {
        return CallError::Overloaded { retry_after: after };
    }
    let code = Code::from_wire(head.code);
    let not_started = flag(reply_flag::NOT_STARTED);
    match code {
        Code::Ok => CallError::Protocol,
        // Where the handler had started, it may have done anything up to all of its work.
        Code::DeadlineExceeded => {
            CallError::DeadlineExceeded { fate: if not_started { Fate::NotExecuted } else { Fate::MaybeExecuted } }
        }
        Code::Cancelled => CallError::Cancelled { fate: if not_started { Fate::NotExecuted } else { Fate::MaybeExecuted } },
        code => {
            let text = String::from_utf8_lossy(&message[..message.len().min(Status::MAX_MESSAGE)]).into_owned();
            let status = Status { code, message: text, retry_after: after };
            if not_started { CallError::Refused(status) } else { CallError::Status(status) }
        }
    }
}
