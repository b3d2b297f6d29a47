//! What was promised of each message, held against what came of it.

use std::collections::HashMap;

use tautline_net::endpoint::{Event, MessageId, SessionId};
use tautline_net::payload::Payload;

use crate::world::pattern;

/// Set in the number of a control message.
const CONTROL: u64 = 1 << 63;

/// What became of a message, as its sender knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Undelivered {
        transmitted: bool,
    },
    /// Given up by its sender, or the sender is gone.
    Disowned,
}

#[derive(Debug)]
struct Entry {
    from: usize,
    fate: Fate,
    len: usize,
    received: u32,
}

/// The messages of a run, by number: a message begins with its own.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: HashMap<u64, Entry>,
    next: u64,
    /// Accepted messages that can still be given up: the sender, its session, its message's id and number.
    open: Vec<(usize, SessionId, MessageId, u64)>,
}

impl Ledger {
    /// The number and the bytes of a new message.
    pub(crate) fn write(&mut self, len: usize, control: bool) -> (u64, Vec<u8>) {
        self.next += 1;
        let number = if control { self.next | CONTROL } else { self.next };
        let mut body = pattern(len.max(8), number);
        body[..8].copy_from_slice(&number.to_le_bytes());
        (number, body)
    }

    /// Host `from` has accepted a message for sending.
    pub(crate) fn accepted(&mut self, from: usize, number: u64, len: usize, id: Option<(SessionId, MessageId)>) {
        // Nothing is promised of control messages but that each arrives once at most.
        let fate = if number & CONTROL == 0 { Fate::Accepted } else { Fate::Disowned };
        self.entries.insert(number, Entry { from, fate, len: len.max(8), received: 0 });
        if let Some((session, message)) = id {
            self.open.push((from, session, message, number));
        }
    }

    /// A message to give up, one of the last that were accepted.
    pub(crate) fn give_up(&mut self, random: &mut fastrand::Rng) -> Option<(usize, SessionId, MessageId)> {
        let late = self.open.len().saturating_sub(20);
        if self.open.is_empty() {
            return None;
        }
        let (from, session, message, number) = self.open.swap_remove(random.usize(late..self.open.len()));
        let entry = self.entries.get_mut(&number)?;
        if entry.fate == Fate::Accepted {
            entry.fate = Fate::Disowned;
        }
        Some((from, session, message))
    }

    /// A host was killed: nobody will hear what became of its messages.
    pub(crate) fn killed(&mut self, at: usize) {
        for entry in self.entries.values_mut().filter(|entry| entry.from == at && entry.fate == Fate::Accepted) {
            entry.fate = Fate::Disowned;
        }
        self.open.retain(|(from, ..)| *from != at);
    }

    /// Takes an event of host `at`. Gives back the payload of a message.
    pub(crate) fn take(&mut self, at: usize, event: Event) -> Option<Payload> {
        match event {
            Event::Message { payload, .. } | Event::Control { payload, .. } => {
                self.receive(at, &payload);
                return Some(payload);
            }
            Event::Undelivered { token, transmitted, .. } => {
                let entry = self.entries.get_mut(&token).expect("the token of no message");
                assert_eq!(entry.from, at, "message {token} ended at another host");
                assert_eq!(entry.fate, Fate::Accepted, "message {token} ended twice, or after it was given up");
                assert!(transmitted || entry.received == 0, "message {token} was received, and said never to have left");
                entry.fate = Fate::Undelivered { transmitted };
            }
            _ => {}
        }
        None
    }

    fn receive(&mut self, at: usize, payload: &[u8]) {
        let number = u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"));
        let entry = self.entries.get_mut(&number).expect("a message that was never sent");
        entry.received += 1;
        assert_ne!(entry.from, at, "message {number} came back");
        assert_eq!(entry.received, 1, "message {number} was delivered twice");
        assert_ne!(entry.fate, Fate::Undelivered { transmitted: false }, "message {number} was said never to have left");
        assert_eq!(payload.len(), entry.len, "the length of message {number}");
        assert!(payload[8..] == pattern(entry.len, number)[8..], "message {number} was damaged");
    }

    /// Every session has ended: what was accepted was delivered, or its sender was told.
    pub(crate) fn close(&self) {
        for (number, entry) in &self.entries {
            assert!(entry.fate != Fate::Accepted || entry.received == 1, "message {number} was lost without a word: {entry:?}");
        }
    }
}
