//! A request arrives: read, checked, and either run at once, queued, handed to a hook, or refused with the reason.

use std::cell::OnceCell;
use std::hint::cold_path;
use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::SessionId;
use tautline_net::payload::Payload;
use tautline_net::sync::claim::Ticket;

use super::entries::{Asked, NewEntry};
use super::reply::Verdict;
use super::{Kind, Server, client_of};
use crate::core::Core;
use crate::header::{HeadError, NO_BUDGET, REQUEST_HEAD, RequestHead, reply_flag, request_flag};
use crate::hook::Admit;
use crate::request::{Origin, Request};
use crate::status::{Code, Status};

/// Of the handlers that run where their request is received, one in so many is timed: two looks at the clock are more than
/// the rest of a small call costs. A prime, so that it is not always the last of a burst.
const SAMPLE: u64 = 61;

/// What the poll loop is to do about a request.
pub(crate) enum Dispatch {
    /// Nothing more.
    Done,
    /// Run its inline handler now on the request that was filled in, and answer.
    Direct(Asked),
    /// Ask the hook that has this tag.
    Ask { tag: u8, ticket: Ticket, extension: Box<[u8]>, origin: Origin },
}

impl Core {
    /// A request came: its payload lies in `direct`, where it stays if it is to be run at once.
    #[inline]
    pub(crate) fn on_request(&mut self, session: SessionId, direct: &mut Request) -> Dispatch {
        let payload = &mut direct.payload;
        let Some((head, class)) = RequestHead::read(payload) else {
            self.refuse_head(session, payload);
            return Dispatch::Done;
        };
        let head = *head;
        let call = head.call.get();
        let Some(service) = self.server.methods.find(head.method.get()) else {
            cold_path();
            self.metrics.node.unknown_method += 1;
            let verdict = Verdict::refused(Code::Unimplemented, reply_flag::UNKNOWN_METHOD);
            self.send_reply(session, call, class, verdict, Payload::empty());
            return Dispatch::Done;
        };
        // A session that has ended meanwhile: nobody to answer.
        let Some(address) = self.session(session).map(|state| state.address) else { return Dispatch::Done };
        let mut asked = Asked { session, call, service, class, arrived: self.now, mute: false, cancelled: false, sampled: false };
        self.metrics.serving(service, class).requests += 1;
        let budget = head.budget_us.get();
        let deadline = match budget {
            NO_BUDGET => Time::NEVER,
            micros => self.now.plus_nanos(1_000 * u64::from(micros)),
        };
        let Server { clients, pools, .. } = &mut self.server;
        let client = client_of(clients, session);
        pools[class.index()].caller(&mut client.seen[class.index()]);
        if client.tombstones.as_ref().is_some_and(|tombstones| tombstones.contains(call)) {
            cold_path();
            self.metrics.node.cancelled_before_arrival += 1;
            return Dispatch::Done;
        }
        if budget == 0 {
            cold_path();
            self.metrics.serving(service, class).expired += 1;
            self.reply_expired(&asked);
            return Dispatch::Done;
        }
        let state = &self.server.services[service as usize];
        let (method, inline) = (state.method, matches!(state.kind, Kind::Inline));
        let origin = Origin { session, address };
        if head.extension_length != 0 {
            return self.on_extended(&asked, &head, payload, origin, deadline);
        }
        payload.trim_front(REQUEST_HEAD);
        if !inline || self.server.own.has_runnable() {
            if let Some(ticket) = self.insert_request(&asked, &head, payload, origin, deadline) {
                self.enqueue_entry(ticket);
            }
            return Dispatch::Done;
        }
        self.server.direct += 1;
        if self.server.direct >= SAMPLE {
            self.server.direct = 0;
            asked.sampled = true;
        }
        direct.refill(method, class, origin, deadline);
        Dispatch::Direct(asked)
    }

    /// A request that brings something for a hook, or for none.
    #[inline(never)]
    fn on_extended(
        &mut self,
        asked: &Asked,
        head: &RequestHead,
        payload: &mut Payload,
        origin: Origin,
        deadline: Time,
    ) -> Dispatch {
        let tag = head.extension_tag;
        if !self.server.hooks.contains(&tag) {
            self.metrics.node.unsupported += 1;
            let status = Status::new(Code::Unimplemented, format!("nothing here takes extension {tag}"));
            self.send_status(asked, &status, reply_flag::NOT_STARTED, Duration::ZERO);
            return Dispatch::Done;
        }
        let end = REQUEST_HEAD + usize::from(head.extension_length);
        let extension = Box::from(&payload[REQUEST_HEAD..end]);
        payload.trim_front(end);
        match self.insert_request(asked, head, payload, origin, deadline) {
            Some(ticket) => Dispatch::Ask { tag, ticket, extension, origin },
            None => Dispatch::Done,
        }
    }

    /// Makes an entry of a request, with the payload that is left of it, or pushes the caller back.
    #[inline(never)]
    fn insert_request(
        &mut self,
        asked: &Asked,
        head: &RequestHead,
        payload: &mut Payload,
        origin: Origin,
        deadline: Time,
    ) -> Option<Ticket> {
        let known = self.server.by_call.get(&(asked.session.slot() as u32, asked.call));
        if known.is_some() {
            self.metrics.node.duplicate_calls += 1;
            return None;
        }
        let &Asked { call, service, class, .. } = asked;
        let request = Request {
            payload: std::mem::take(payload),
            method: self.server.services[service as usize].method,
            class,
            origin,
            deadline,
            clock: self.clock.clone(),
            token: OnceCell::new(),
        };
        let notify_start = head.flags & request_flag::NOTIFY_START != 0;
        let new = NewEntry { request, call, service, notify_start, hook: head.extension_tag };
        let ticket = self.server.insert(new, self.now);
        if ticket.is_none() {
            self.reply_overloaded(asked);
        }
        ticket
    }

    /// Does what the hook decided.
    pub(crate) fn on_admitted(&mut self, ticket: Ticket, admit: Admit) {
        match admit {
            Admit::Run => {}
            Admit::Demote => {
                if let Some(entry) = self.server.entry_mut(ticket) {
                    entry.run_class = Class::Background;
                    self.server.queue.set_class(ticket, Class::Background);
                }
            }
            Admit::Cancel(status) => {
                // It was never admitted, so the hook will not hear of its end.
                if let Some(entry) = self.server.entry_mut(ticket) {
                    entry.hook = 0;
                }
                let (_, asked) = self.cancel_entry(ticket, crate::cancel::CancelReason::Cancelled, false);
                if let Some(asked) = asked {
                    self.metrics.serving(asked.service, asked.class).cancelled_queued += 1;
                    let cancelled = if status.code == Code::Cancelled { reply_flag::CANCELLED } else { 0 };
                    self.send_status(&asked, &status, reply_flag::NOT_STARTED | cancelled, Duration::ZERO);
                }
                return;
            }
        }
        self.enqueue_entry(ticket);
    }

    fn enqueue_entry(&mut self, ticket: Ticket) {
        if !self.server.enqueue(ticket)
            && let (_, Some(asked)) = self.cancel_entry(ticket, crate::cancel::CancelReason::Cancelled, false)
        {
            self.reply_overloaded(&asked);
        }
    }

    /// Refuses what can't be read, if it says whom to answer.
    #[cold]
    fn refuse_head(&mut self, session: SessionId, message: &[u8]) {
        let Err((error, Some(head))) = RequestHead::parse(message) else {
            self.metrics.node.malformed += 1;
            return;
        };
        self.metrics.node.unsupported += 1;
        let verdict = match error {
            HeadError::Version => Verdict::refused(Code::Unimplemented, reply_flag::UNSUPPORTED),
            _ => Verdict::refused(Code::InvalidArgument, 0),
        };
        let body = match error {
            HeadError::Class => Payload::from(format!("there is no class {}", head.class)),
            _ => Payload::empty(),
        };
        self.send_reply(session, head.call.get(), Class::Normal, verdict, body);
    }
}
