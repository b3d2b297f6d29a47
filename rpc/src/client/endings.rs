//! How calls end: by a reply, a cancel, a deadline, or the end of a session or the node; whichever is first.

use std::collections::VecDeque;
use std::hint::cold_path;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::endpoint::{CloseReason, SendError, SessionId};
use tautline_net::payload::Payload;
use zerocopy::{FromBytes, IntoBytes};

use super::call::{CallId, CallResult, Held, Sink, Start, State};
use super::submit::Completion;
use crate::core::{Core, Deferred, SessionState};
use crate::error::{CallError, Fate};
use crate::header::{CallNotice, REPLY_HEAD, ReplyHead, VERSION, reply_flag};
use crate::method::Method;
use crate::status::{Code, Status};

/// Sessions and calls of cancels that wait for room.
pub(crate) type OwedCancels = VecDeque<(SessionId, u64)>;

/// How many of them are kept at most, and how many are tried in one turn.
const MOST_OWED: usize = 16_384;
const TRIES: usize = 256;

impl Core {
    /// A reply came, in `session`.
    #[inline]
    pub(crate) fn on_reply(&mut self, session: SessionId, payload: &mut Payload) {
        let Ok((head, _)) = ReplyHead::ref_from_prefix(payload) else {
            cold_path();
            self.metrics.node.malformed += 1;
            return;
        };
        let head = *head;
        // A reply counts only in the session that its call was sent in: nobody answers for somebody else.
        let Some(slot) = self.client.table.sent_in(session, CallId::from_u64(head.call.get())) else {
            cold_path();
            self.metrics.node.late_replies += 1;
            return;
        };
        self.client.table.end(slot);
        payload.trim_front(REPLY_HEAD);
        let call = self.client.table.call(slot);
        let (peer, class) = (call.peer, call.class);
        // What could not be given to a handler has no say in credits: such replies may come from another version.
        let ours = head.version == VERSION;
        if ours && head.class == class.index() as u8 {
            self.client.table.peers[peer].lanes[class.index()].account.set_limit(head.credit.get());
        }
        let call = self.client.table.call(slot);
        if ours && head.code == Code::Ok as u8 {
            self.metrics.calling(call.series, class).replied(self.now.nanos_since(call.begun));
            if let Sink::Tag(tag) = call.sink {
                // The common case: all that the call ever held beside its slot left with its request.
                self.client.completions.push(Completion { tag, result: Ok(std::mem::take(payload)) });
                self.client.table.release(slot);
            } else {
                self.hand_over_reply(slot, payload);
            }
        } else {
            cold_path();
            let error = error_of(&head, call.method, payload);
            self.deliver(slot, Err(error));
        }
        self.pump(peer, class);
    }

    /// The server says that a handler started.
    pub(crate) fn on_started(&mut self, session: SessionId, notice: &CallNotice) {
        let id = CallId::from_u64(notice.call.get());
        let Some(slot) = self.client.table.find(id) else { return };
        let call = self.client.table.call_mut(slot);
        if call.session != session || !call.state.start() {
            return;
        }
        if let Sink::Future(waker) = &mut call.sink {
            self.deferred.extend(waker.take().map(Deferred::Wake));
            let waited = Duration::from_micros(u64::from(notice.waited_us.get()));
            self.client.table.cold_mut(slot).start = Some((id, Start { heard: self.now, waited }));
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

    /// The caller's own deadline; or a call in line has waited long.
    pub(crate) fn on_call_timer(&mut self, slot: u32) {
        let call = self.client.table.call(slot);
        if self.now < call.due && call.state == State::Waiting {
            if self.client.table.overdraw(slot, self.now) {
                self.metrics.node.credits_overdrawn += 1;
                self.send_waiting(slot);
            }
            return;
        }
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
                self.send_cancel(session, self.client.table.id(slot).as_u64());
            }
        }
        self.deliver(slot, Err(error(held.fate(connected))));
        self.pump(peer, class);
        true
    }

    /// Tells a server that a call is given up: now, or once its session has room for another control message. Where many calls are given up at
    /// once they are more than it holds.
    fn send_cancel(&mut self, session: SessionId, call: u64) {
        let notice = CallNotice::cancel(call);
        let sent = self.endpoint.send_control(session, notice.as_bytes(), self.now);
        // One that is lost for good costs the server some work, and nothing else.
        if sent == Err(SendError::Full) && self.owed_cancels.len() < MOST_OWED {
            self.owed_cancels.push_back((session, call));
        }
    }

    /// Packets have come, so that there may be room for cancels that found none.
    #[cold]
    pub(crate) fn send_owed_cancels(&mut self) {
        // Each is tried once: another session's may find room where the first finds none.
        for _ in 0..self.owed_cancels.len().min(TRIES) {
            let Some((session, call)) = self.owed_cancels.pop_front() else { return };
            let notice = CallNotice::cancel(call);
            if self.endpoint.send_control(session, notice.as_bytes(), self.now) == Err(SendError::Full) {
                self.owed_cancels.push_back((session, call));
            }
        }
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
        self.end_calls(|_| true);
    }

    /// Ends the calls that other threads made: nobody would end them once the node is not run any more.
    pub(crate) fn end_remote_calls(&mut self) {
        self.end_calls(|sink| matches!(sink, Sink::Remote(_)));
    }

    fn end_calls(&mut self, which: impl Fn(&Sink) -> bool) {
        for slot in self.client.table.all() {
            if !which(&self.client.table.call(slot).sink) {
                continue;
            }
            let session = self.client.table.call(slot).session;
            let connected = self.session(session).is_some_and(|state| state.established);
            if let Some(held) = self.client.table.end(slot) {
                self.deliver(slot, Err(CallError::Stopped { fate: held.fate(connected) }));
            }
        }
    }

    /// Counts how a call ended, and hands its result over.
    pub(super) fn deliver(&mut self, slot: u32, result: CallResult) {
        let call = self.client.table.call(slot);
        let series = self.metrics.calling(call.series, call.class);
        match &result {
            Ok(_) => series.replied(self.now.nanos_since(call.begun)),
            Err(error) => series.errors[error.kind() as usize] += 1,
        }
        self.hand_over(slot, result);
    }

    /// The same for a reply, which stays where it is until then: payloads are large to move.
    #[inline(never)]
    fn hand_over_reply(&mut self, slot: u32, payload: &mut Payload) {
        self.hand_over(slot, Ok(std::mem::take(payload)));
    }

    /// Hands an ended call's result to whoever waits for it.
    fn hand_over(&mut self, slot: u32, result: CallResult) {
        let call = self.client.table.call_mut(slot);
        match &mut call.sink {
            Sink::Tag(tag) => {
                let tag = *tag;
                self.client.completions.push(Completion { tag, result });
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
        // A handler's own `Cancelled` is a status like others, and says nothing of who cancelled what.
        Code::Cancelled if flag(reply_flag::CANCELLED) => {
            CallError::Cancelled { fate: if not_started { Fate::NotExecuted } else { Fate::MaybeExecuted } }
        }
        code => {
            let text = String::from_utf8_lossy(&message[..message.len().min(Status::MAX_MESSAGE)]).into_owned();
            let status = Status { code, message: text, retry_after: after };
            if not_started { CallError::Refused(status) } else { CallError::Status(status) }
        }
    }
}
