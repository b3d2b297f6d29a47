//! What a logical call comes to: an answer, or the reason why there is none.

use tautline_net::payload::Payload;
use tautline_net::port::Address;
use tautline_rpc::{CallError, Fate};

/// The answer to a logical call.
#[derive(Debug)]
pub struct Answer {
    /// The reply's bytes.
    pub payload: Payload,
    /// The place of the replica that answered.
    pub replica: usize,
    /// How many copies were sent.
    pub copies: usize,
}

/// Why a logical call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TiedError {
    /// A copy failed, and no other one could answer.
    #[error("{replica}: {error}{}{}", of(*copies, *replicas), if *withheld { WITHHELD } else { "" })]
    Call {
        /// The error of the copy of which most is known: executed before not executed.
        error: CallError,
        /// Where it was.
        replica: Address,
        /// How many copies were sent. A copy that its tie took out of a queue may have been sent again.
        copies: usize,
        /// To how many replicas.
        replicas: usize,
        /// Whether the call was kept from another replica only because it may have been executed, and its method is not declared
        /// [idempotent](tautline_rpc::Method::idempotent).
        withheld: bool,
    },
    /// The request could not be encoded, or the answer not decoded.
    #[error(transparent)]
    Codec(CallError),
    /// The node of a [`ReplicasHandle`](crate::ReplicasHandle) could not make the call, or stopped before its end.
    #[error(transparent)]
    Node(CallError),
    /// Each copy was cancelled in favour of another one. Happens if servers disagree on a tie's copies.
    #[error("each of {copies} copies was cancelled in favour of another")]
    AllCancelled {
        /// How many copies were sent.
        copies: usize,
    },
}

impl TiedError {
    /// What is known of the execution of the logical call, all copies together.
    pub fn fate(&self) -> Fate {
        match self {
            TiedError::Call { error, .. } | TiedError::Codec(error) | TiedError::Node(error) => error.fate(),
            TiedError::AllCancelled { .. } => Fate::MaybeExecuted,
        }
    }
}

const WITHHELD: &str = "; no other replica was asked, for the method is not declared idempotent";

fn of(copies: usize, replicas: usize) -> String {
    match (copies, replicas) {
        (..=1, _) => String::new(),
        (copies, 1) => format!(" (of {copies} copies, all sent there)"),
        (copies, replicas) => format!(" (of {copies} copies sent to {replicas} replicas)"),
    }
}
