//! What a handler answers instead of a reply: a code, a sentence, and perhaps when to try again.

use std::fmt;
use std::time::Duration;

/// Why a request was not answered. The values are gRPC's, so that adapters need no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// Not an error.
    Ok = 0,
    /// Cancelled, usually by the caller.
    Cancelled = 1,
    /// An error that fits nothing else.
    Unknown = 2,
    /// The request is wrong whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// What was asked for does not exist.
    NotFound = 5,
    /// What was to be created exists.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// Something ran out: a quota, a queue, space.
    ResourceExhausted = 8,
    /// The system is not in the state that the operation needs.
    FailedPrecondition = 9,
    /// Aborted by a conflict with another operation.
    Aborted = 10,
    /// Past the valid range.
    OutOfRange = 11,
    /// No such method, or not built.
    Unimplemented = 12,
    /// The handler is broken: it panicked, or an invariant did not hold.
    Internal = 13,
    /// The service can't answer now; another attempt may succeed.
    Unavailable = 14,
    /// Data is lost or corrupt for good.
    DataLoss = 15,
    /// Who the caller is is not known.
    Unauthenticated = 16,
}

impl Code {
    /// Every code, in the order of its values.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The code of a wire value; a value that is not known is [`Code::Unknown`].
    pub fn from_wire(value: u8) -> Code {
        Code::ALL.get(usize::from(value)).copied().unwrap_or(Code::Unknown)
    }

    /// The name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Code::Ok => "ok",
            Code::Cancelled => "cancelled",
            Code::Unknown => "unknown",
            Code::InvalidArgument => "invalid_argument",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::NotFound => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::PermissionDenied => "permission_denied",
            Code::ResourceExhausted => "resource_exhausted",
            Code::FailedPrecondition => "failed_precondition",
            Code::Aborted => "aborted",
            Code::OutOfRange => "out_of_range",
            Code::Unimplemented => "unimplemented",
            Code::Internal => "internal",
            Code::Unavailable => "unavailable",
            Code::DataLoss => "data_loss",
            Code::Unauthenticated => "unauthenticated",
        }
    }

    /// Whether another replica would answer the same: the fault is in the request, not in the server or the moment.
    pub const fn is_deterministic(self) -> bool {
        matches!(
            self,
            Code::InvalidArgument
                | Code::NotFound
                | Code::AlreadyExists
                | Code::PermissionDenied
                | Code::FailedPrecondition
                | Code::OutOfRange
                | Code::Unimplemented
                | Code::Unauthenticated
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A handler's answer when it has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// The kind of failure.
    pub code: Code,
    /// A sentence for people. Cut at [`Status::MAX_MESSAGE`] bytes on the wire.
    pub message: String,
    /// When another attempt is welcome, if the server knows.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Longest message in bytes that is sent.
    pub const MAX_MESSAGE: usize = 1024;

    /// A status with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), retry_after: None }
    }

    /// The same, with a time to try again after.
    pub fn retry_after(mut self, after: Duration) -> Status {
        self.retry_after = Some(after);
        self
    }

    /// The message cut to what is sent, on a character boundary.
    pub(crate) fn wire_message(&self) -> &str {
        let mut end = self.message.len().min(Status::MAX_MESSAGE);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        &self.message[..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire_and_an_unknown_one_is_unknown() {
        for code in Code::ALL {
            assert_eq!(Code::from_wire(code as u8), code);
        }
        assert_eq!(Code::from_wire(200), Code::Unknown);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let status = Status::new(Code::Internal, "é".repeat(Status::MAX_MESSAGE));
        assert_eq!(status.wire_message().len(), Status::MAX_MESSAGE);
        let shifted = Status::new(Code::Internal, format!("a{}", "é".repeat(Status::MAX_MESSAGE)));
        assert_eq!(shifted.wire_message().len(), Status::MAX_MESSAGE - 1);
    }
}
