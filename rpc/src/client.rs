//! The calling side: calls in flight, the peers they go to, and how each ends exactly once.
//!
//! [`call`] is the life of one call as an enum, [`table`] holds the calls, lists and credits (it knows no network and is
//! property-tested alone), [`submit`] sends calls, [`endings`] ends them, and [`future`] is a call as the caller sees it.

pub(crate) mod call;
pub(crate) mod completions;
pub(crate) mod endings;
pub(crate) mod future;
pub(crate) mod peers;
pub(crate) mod submit;
pub(crate) mod table;
