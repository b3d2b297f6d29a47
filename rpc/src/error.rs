//! How a call can end without a reply, and how a node can fail to start. Each says what is known and what can be done.

use std::time::Duration;

use tautline_net::endpoint::{CloseReason, ConnectError};
use tautline_net::port::{AddressError, PortError};

use crate::method::Method;
use crate::status::Status;

/// What is known of a failed call at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fate {
    /// The request never left this node.
    NotSent,
    /// The server says that the handler never started, and never will.
    NotExecuted,
    /// Nobody knows: the handler may have started, run to its end, or never seen the request.
    MaybeExecuted,
    /// The handler ran to its end.
    Executed,
}

/// Why a call has no reply. Every call ends exactly once: with its reply or with one of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
// A result with this error is moved as words: with a tag of one byte, the words behind it would be moved as bytes.
#[repr(u64)]
#[non_exhaustive]
pub enum CallError {
    /// The deadline passed, at the caller or in the server's queue.
    #[error("the deadline passed ({})", describe(*fate))]
    DeadlineExceeded {
        /// What is known of the call.
        fate: Fate,
    },
    /// Cancelled by the caller; or by the server, on behalf of another copy or because it stopped. (Of a handler that answers
    /// `Cancelled` on its own this is [`CallError::Status`].)
    #[error("cancelled ({})", describe(*fate))]
    Cancelled {
        /// What is known of the call.
        fate: Fate,
    },
    /// The server had no room and pushed back. It was not executed.
    #[error("the server is overloaded{}", after(*retry_after))]
    Overloaded {
        /// When the server expects to have room, if it says.
        retry_after: Option<Duration>,
    },
    /// The session ended before the reply came. The next call to the peer opens a new one.
    #[error("disconnected: {reason} ({})", describe(*fate))]
    Disconnected {
        /// Why the session ended.
        reason: CloseReason,
        /// What is known of the call.
        fate: Fate,
    },
    /// The handler ran and answered with a status.
    #[error(transparent)]
    Status(Status),
    /// The server refused the request before any handler started.
    #[error("refused: {0}")]
    Refused(Status),
    /// The message is larger than what the session carries. It was not sent.
    #[error("request of {len} bytes: at most {limit} fit into a message")]
    TooLarge {
        /// The request's size in bytes, its head included.
        len: usize,
        /// The most that fits.
        limit: usize,
    },
    /// As many calls wait as may: to this peer, in this session, or in the node. It was not sent; wait for a reply first.
    #[error("too many calls wait: {0}")]
    Full(Limit),
    /// The server has no such method.
    #[error("the server has no method {0}")]
    UnknownMethod(Method),
    /// The server speaks another version of the call protocol.
    #[error("the server speaks version {theirs} of the call protocol, and this is version {ours}", ours = crate::header::VERSION)]
    Unsupported {
        /// The server's version.
        theirs: u8,
    },
    /// The reply could not be decoded.
    #[error("the reply can't be decoded: {0}")]
    Decode(String),
    /// The request could not be encoded. It was not sent.
    #[error("the request can't be encoded: {0}")]
    Encode(String),
    /// The session could not be opened. The request was not sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer's name is no address that can be called. Nothing was sent.
    #[error(transparent)]
    Address(Box<AddressError>),
    /// The peer broke the call protocol.
    #[error("the peer sent a reply that makes no sense")]
    Protocol,
    /// This node has stopped.
    #[error("this node has stopped ({})", describe(*fate))]
    Stopped {
        /// What is known of the call.
        fate: Fate,
    },
}

/// The limit that a call met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// Calls of the node (`max_calls`).
    #[error("the node has as many calls as `max_calls` allows")]
    Calls,
    /// Calls that wait for credit of one peer and class (`max_waiting`).
    #[error("as many calls wait for the peer's credit as `max_waiting` allows")]
    Waiting,
    /// Peers known to the node (`max_peers`).
    #[error("the node knows as many peers as `max_peers` allows, and all are in use")]
    Peers,
    /// Messages or bytes in the session's send queue.
    #[error("the session's send queue is full")]
    Session,
    /// Messages to the node from other threads (`inbox`).
    #[error("the node's inbox from other threads is full")]
    Inbox,
    /// Tasks of the node (`max_tasks`), one of which drives the call.
    #[error("the node runs as many tasks as `max_tasks` allows")]
    Tasks,
}

impl From<AddressError> for CallError {
    fn from(error: AddressError) -> CallError {
        // Boxed: results of calls are moved often, and this one is rare and large.
        CallError::Address(Box::new(error))
    }
}

impl CallError {
    /// What is known of the call at the server.
    pub fn fate(&self) -> Fate {
        match self {
            CallError::DeadlineExceeded { fate }
            | CallError::Cancelled { fate }
            | CallError::Disconnected { fate, .. }
            | CallError::Stopped { fate } => *fate,
            CallError::Overloaded { .. } | CallError::Refused(_) | CallError::UnknownMethod(_) | CallError::Unsupported { .. } => {
                Fate::NotExecuted
            }
            CallError::Status(_) | CallError::Decode(_) => Fate::Executed,
            CallError::TooLarge { .. }
            | CallError::Full(_)
            | CallError::Encode(_)
            | CallError::Connect(_)
            | CallError::Address(_) => Fate::NotSent,
            CallError::Protocol => Fate::MaybeExecuted,
        }
    }

    /// Whether the same request would fail the same way at another replica: there is no point in repeating it there.
    pub fn is_deterministic(&self) -> bool {
        match self {
            CallError::Status(status) | CallError::Refused(status) => status.code.is_deterministic(),
            CallError::TooLarge { .. } | CallError::Encode(_) | CallError::Decode(_) => true,
            _ => false,
        }
    }

    /// The kind, as metrics call it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            CallError::DeadlineExceeded { .. } => ErrorKind::Deadline,
            CallError::Cancelled { .. } => ErrorKind::Cancelled,
            CallError::Overloaded { .. } => ErrorKind::Overloaded,
            CallError::Disconnected { .. } | CallError::Connect(_) => ErrorKind::Disconnected,
            CallError::Status(_) => ErrorKind::Status,
            CallError::Full(_) => ErrorKind::Full,
            CallError::Refused(_) | CallError::UnknownMethod(_) | CallError::Unsupported { .. } => ErrorKind::Refused,
            _ => ErrorKind::Other,
        }
    }
}

/// Kinds of failed calls, as metrics count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The deadline passed.
    Deadline,
    /// Cancelled.
    Cancelled,
    /// Pushed back.
    Overloaded,
    /// The session ended, or could not be opened.
    Disconnected,
    /// The handler's own status.
    Status,
    /// A limit of this node.
    Full,
    /// Refused by the server before it started.
    Refused,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// How many kinds there are.
    pub const COUNT: usize = 8;
    /// Every kind.
    pub const ALL: [ErrorKind; ErrorKind::COUNT] = [
        ErrorKind::Deadline,
        ErrorKind::Cancelled,
        ErrorKind::Overloaded,
        ErrorKind::Disconnected,
        ErrorKind::Status,
        ErrorKind::Full,
        ErrorKind::Refused,
        ErrorKind::Other,
    ];

    /// The name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorKind::Deadline => "deadline",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Disconnected => "disconnected",
            ErrorKind::Status => "status",
            ErrorKind::Full => "full",
            ErrorKind::Refused => "refused",
            ErrorKind::Other => "other",
        }
    }
}

/// Why a node could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The operating system refused something that the node needs.
    #[error("{action} failed: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(&'static str),
}

/// Why a service could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Its number is taken, by itself or by a name with the same hash.
    #[error("{}", taken(method, holder))]
    Taken {
        /// The method refused.
        method: Method,
        /// The method that has the number.
        holder: Method,
    },
    /// A hook with this tag is installed.
    #[error("a hook with tag {0} is installed already")]
    HookTaken(u8),
    /// Tag 0 means "no extension".
    #[error("a hook's tag can't be 0: that means no extension")]
    HookZero,
}

/// Why a task could not be spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// As many tasks as `max_tasks` allows.
    #[error("{limit} tasks run, the most that `max_tasks` allows")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The node has stopped.
    #[error("this node has stopped")]
    Stopped,
}

fn taken(method: &Method, holder: &Method) -> String {
    if method.name() == holder.name() {
        return format!("{method} is already served");
    }
    format!("{method} has the number {:#010x}, which {holder} has already: rename one of them", method.id())
}

fn describe(fate: Fate) -> &'static str {
    match fate {
        Fate::NotSent => "not sent",
        Fate::NotExecuted => "not executed",
        Fate::MaybeExecuted => "may have been executed",
        Fate::Executed => "executed",
    }
}

fn after(retry_after: Option<Duration>) -> String {
    retry_after.map(|after| format!(": try again after {after:?}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Code;

    #[test]
    fn an_error_says_what_is_known_of_the_call() {
        let error = CallError::Disconnected { reason: CloseReason::PeerDead, fate: Fate::MaybeExecuted };
        assert_eq!(error.to_string(), "disconnected: the peer went silent (may have been executed)");
        assert_eq!(CallError::Overloaded { retry_after: None }.fate(), Fate::NotExecuted);
    }

    #[test]
    fn a_method_served_twice_is_told_from_two_names_with_one_number() {
        let (a, b) = (Method::named("a/B"), Method::from_id(Method::named("a/B").id()));
        assert_eq!(ServeError::Taken { method: a, holder: a }.to_string(), "a/B is already served");
        let error = ServeError::Taken { method: a, holder: b }.to_string();
        assert!(error.contains("rename one"), "{error}");
    }

    #[test]
    fn only_what_another_replica_would_answer_too_is_deterministic() {
        let wrong = CallError::Status(Status::new(Code::InvalidArgument, ""));
        let busy = CallError::Status(Status::new(Code::Unavailable, ""));
        assert!(wrong.is_deterministic() && !busy.is_deterministic());
        // A replica may be of another build, and have the method.
        assert!(!CallError::UnknownMethod(Method::named("a/B")).is_deterministic());
    }
}
