//! What a caller may say about one call.

use std::time::Duration;

use bytes::Bytes;
use tautline_net::class::Class;
use tautline_net::clock::Time;

use crate::header::MAX_EXTENSION;

/// Options of a call. The default: class `Normal`, no deadline, no start notice, no extension.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The service class, at both ends and on the way.
    pub class: Class,
    /// How long the call may take, from now. It travels as what is left of it.
    pub deadline: Option<Duration>,
    /// The moment after which the call is of no use, on this node's clock; the earlier of this and `deadline` counts. A handler's
    /// own calls take theirs from [`Request::child_options`](crate::Request::child_options).
    pub expires: Option<Time>,
    /// Ask the server to say when the handler starts.
    pub notify_start: bool,
    /// Bytes for a hook of the server.
    pub extension: Option<Extension>,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions { class: Class::Normal, deadline: None, expires: None, notify_start: false, extension: None }
    }
}

impl CallOptions {
    /// The default options.
    pub fn new() -> CallOptions {
        CallOptions::default()
    }

    /// Sets the class.
    pub fn class(mut self, class: Class) -> CallOptions {
        self.class = class;
        self
    }

    /// Sets how long the call may take.
    pub fn deadline(mut self, deadline: Duration) -> CallOptions {
        self.deadline = Some(deadline);
        self
    }

    /// Asks for a start notice.
    pub fn notify_start(mut self) -> CallOptions {
        self.notify_start = true;
        self
    }

    /// Adds bytes for a hook of the server.
    pub fn extension(mut self, extension: Extension) -> CallOptions {
        self.extension = Some(extension);
        self
    }

    /// The absolute deadline; `now` is only asked for if `deadline` is relative.
    #[inline]
    pub(crate) fn due(&self, now: impl FnOnce() -> Time) -> Time {
        let expires = self.expires.unwrap_or(Time::NEVER);
        match self.deadline {
            None => expires,
            Some(deadline) => expires.min(later(now(), deadline)),
        }
    }
}

/// Not part of its callers, most of which have no use for it.
#[inline(never)]
fn later(now: Time, by: Duration) -> Time {
    now + by
}

/// Bytes that travel with a request to a hook of the server, see [`Hook`](crate::Hook).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    tag: u8,
    bytes: Bytes,
}

impl Extension {
    /// Most bytes.
    pub const MAX: usize = MAX_EXTENSION;

    /// `bytes` for the hook that has `tag`. `None` unless the tag is 1 or more and there are 1 to [`Extension::MAX`] bytes.
    pub fn new(tag: u8, bytes: impl Into<Bytes>) -> Option<Extension> {
        let bytes = bytes.into();
        (tag != 0 && (1..=Extension::MAX).contains(&bytes.len())).then_some(Extension { tag, bytes })
    }

    /// The hook's tag.
    pub fn tag(&self) -> u8 {
        self.tag
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_of_both_deadlines_counts_and_none_wraps() {
        let now = Time::from_nanos(1000);
        let options = CallOptions { expires: Some(Time::from_nanos(1500)), ..CallOptions::default() };
        assert_eq!(options.clone().deadline(Duration::from_nanos(100)).due(|| now), Time::from_nanos(1100));
        assert_eq!(options.clone().deadline(Duration::from_nanos(900)).due(|| now), Time::from_nanos(1500));
        assert_eq!(CallOptions::new().deadline(Duration::MAX).due(|| now), Time::NEVER);
        assert_eq!(CallOptions::new().due(|| unreachable!("no deadline needs no clock")), Time::NEVER);
    }

    #[test]
    fn an_extension_that_the_wire_can_not_carry_is_refused() {
        assert!(Extension::new(0, vec![1]).is_none());
        assert!(Extension::new(1, vec![]).is_none());
        assert!(Extension::new(1, vec![0; Extension::MAX + 1]).is_none());
        assert!(Extension::new(255, vec![0; Extension::MAX]).is_some());
    }
}
