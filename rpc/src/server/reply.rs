//! Ending a request: the reply or the reason why there is none, with the caller's credit on it.

use std::time::Duration;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::endpoint::{SendError, SessionId};
use tautline_net::payload::Payload;
use tautline_net::sync::claim::Ticket;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use super::entries::Asked;
use super::runqueue::Note;
use crate::core::{Core, Notify};
use crate::header::{CallNotice, ReplyHead, VERSION, kind, reply_flag};
use crate::service::HandlerResult;
use crate::status::{Code, Status};

/// The token of messages whose loss is nobody's business here.
const NO_TOKEN: u64 = u64::MAX;

/// What a reply's head says beside whom it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) code: Code,
    pub(crate) flags: u8,
    pub(crate) queue_delay: Duration,
    pub(crate) retry_after: Option<Duration>,
}

impl Verdict {
    pub(crate) const OK: Verdict = Verdict { code: Code::Ok, flags: 0, queue_delay: Duration::ZERO, retry_after: None };

    pub(crate) fn refused(code: Code, flags: u8) -> Verdict {
        Verdict { code, flags: flags | reply_flag::NOT_STARTED, ..Verdict::OK }
    }
}

impl Core {
    /// Sends a reply. If the session can't take it, the caller gets a smaller one that says so; if not even that fits, the
    /// session is closed, so that the caller does not wait for what never comes.
    pub(crate) fn send_reply(&mut self, session: SessionId, call: u64, class: Class, verdict: Verdict, body: Payload) {
        self.reply(session, call, class, verdict, body);
    }

    /// The same, where it is part of its caller.
    #[inline(always)]
    fn reply(&mut self, session: SessionId, call: u64, class: Class, verdict: Verdict, body: Payload) {
        let head = self.reply_head(call, class, verdict);
        match self.endpoint.send_words(session, class, head.words(), body, NO_TOKEN, self.now) {
            Ok(_) => {}
            Err(error) => self.reply_failed(session, call, class, error),
        }
    }

    #[inline]
    fn reply_head(&self, call: u64, class: Class, verdict: Verdict) -> ReplyHead {
        ReplyHead {
            kind: kind::REPLY,
            version: VERSION,
            code: verdict.code as u8,
            flags: verdict.flags,
            credit: U16::new(self.server.pools[class.index()].share()),
            class: class.index() as u8,
            reserved: 0,
            call: U64::new(call),
            queue_delay_us: U32::new(micros(verdict.queue_delay)),
            retry_after_us: U32::new(verdict.retry_after.map_or(0, micros)),
        }
    }

    #[cold]
    fn reply_failed(&mut self, session: SessionId, call: u64, class: Class, error: SendError) {
        let status = match error {
            SendError::TooLarge { len, limit } => {
                Status::new(Code::ResourceExhausted, format!("the reply is {len} bytes long: at most {limit} fit into a message"))
            }
            SendError::Full => Status::new(Code::ResourceExhausted, "executed, but the session has no room for the reply"),
            _ => {
                self.metrics.node.replies_dropped += 1;
                return;
            }
        };
        let head = self.reply_head(call, class, Verdict { code: status.code, ..Verdict::OK });
        let body = Payload::copy_from(status.wire_message().as_bytes());
        if self.endpoint.send(session, class, head.as_bytes(), body, NO_TOKEN, self.now) == Err(SendError::Full) {
            self.metrics.node.sessions_overrun += 1;
            self.endpoint.close(session, self.now);
        }
    }

    /// Sends a handler's answer.
    pub(crate) fn send_answer(&mut self, asked: &Asked, answer: HandlerResult, queue_delay: Duration) {
        match answer {
            Ok(reply) => self.send_ok(asked, reply.into_payload(), queue_delay),
            Err(status) => self.send_failure(asked, &status, queue_delay),
        }
    }

    /// Sends a handler's reply.
    #[inline]
    pub(crate) fn send_ok(&mut self, asked: &Asked, body: Payload, queue_delay: Duration) {
        self.metrics.serving(asked.service, asked.class).replies += 1;
        self.reply(asked.session, asked.call, asked.class, Verdict { queue_delay, ..Verdict::OK }, body);
    }

    /// Sends a handler's status.
    #[cold]
    pub(crate) fn send_failure(&mut self, asked: &Asked, status: &Status, queue_delay: Duration) {
        self.metrics.serving(asked.service, asked.class).statuses += 1;
        // Cancelled, and says so: by the cancel, then. Cancelled with another status, it is the handler that knows why.
        let cancelled = asked.cancelled && status.code == Code::Cancelled;
        self.send_status(asked, status, if cancelled { reply_flag::CANCELLED } else { 0 }, queue_delay);
    }

    /// Sends a status as the answer. A status can't be "ok": without a reply that would be a lie.
    #[cold]
    pub(crate) fn send_status(&mut self, asked: &Asked, status: &Status, flags: u8, queue_delay: Duration) {
        let code = if status.code == Code::Ok { Code::Unknown } else { status.code };
        let verdict = Verdict { code, flags, queue_delay, retry_after: status.retry_after };
        let body = Payload::copy_from(status.wire_message().as_bytes());
        self.send_reply(asked.session, asked.call, asked.class, verdict, body);
    }

    pub(crate) fn reply_expired(&mut self, asked: &Asked) {
        let verdict = Verdict { queue_delay: self.now.since(asked.arrived), ..Verdict::refused(Code::DeadlineExceeded, 0) };
        self.send_reply(asked.session, asked.call, asked.class, verdict, Payload::empty());
    }

    pub(crate) fn reply_cancelled(&mut self, asked: &Asked) {
        let verdict = Verdict::refused(Code::Cancelled, reply_flag::CANCELLED);
        self.send_reply(asked.session, asked.call, asked.class, verdict, Payload::empty());
    }

    pub(crate) fn reply_overloaded(&mut self, asked: &Asked) {
        self.metrics.serving(asked.service, asked.class).overloaded += 1;
        let retry_after = Some(self.server.pools[asked.class.index()].retry_after(&self.server.credit));
        let verdict = Verdict { retry_after, ..Verdict::refused(Code::ResourceExhausted, reply_flag::OVERLOADED) };
        self.send_reply(asked.session, asked.call, asked.class, verdict, Payload::empty());
    }

    pub(crate) fn send_started(&mut self, notify: Notify) {
        let notice = CallNotice::started(notify.call, micros(notify.waited));
        // Lost with its session, which says more.
        let _ = self.endpoint.send_control(notify.session, notice.as_bytes(), self.now);
    }

    /// A worker's word.
    pub(crate) fn on_note(&mut self, note: Note) {
        match note {
            Note::Started { ticket, at } => self.on_entry_started(ticket, at),
            Note::Expired { ticket } => self.expire_started(ticket),
            Note::Finished { ticket, answer, panicked, started, ended } => {
                self.finish_entry(ticket, answer, panicked, started, ended);
            }
        }
    }

    /// An entry was claimed after its deadline: its handler does not run.
    pub(crate) fn expire_started(&mut self, ticket: Ticket) {
        self.server.queue.claims.finish(ticket);
        let Some(asked) = self.remove_entry(ticket) else { return };
        self.metrics.serving(asked.service, asked.class).expired += 1;
        if !asked.mute {
            self.reply_expired(&asked);
        }
    }

    /// An entry was claimed, but there is no room to run it: its handler does not run.
    pub(crate) fn push_back_started(&mut self, ticket: Ticket) {
        self.server.queue.claims.finish(ticket);
        if let Some(asked) = self.remove_entry(ticket).filter(|asked| !asked.mute) {
            self.reply_overloaded(&asked);
        }
    }

    /// A handler has ended.
    pub(crate) fn finish_entry(&mut self, ticket: Ticket, answer: HandlerResult, panicked: bool, started: Time, ended: Time) {
        if !self.server.queue.claims.finish(ticket) {
            return;
        }
        let Some(asked) = self.remove_entry(ticket) else { return };
        let queue_delay = started.since(asked.arrived);
        let series = self.metrics.serving(asked.service, asked.class);
        series.panics += u64::from(panicked);
        series.service_time.record(ended.nanos_since(started));
        series.queue_delay.record(started.nanos_since(asked.arrived));
        if !asked.mute {
            self.send_answer(&asked, answer, queue_delay);
        }
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
