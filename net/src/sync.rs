//! The lock-free pieces: everything that two threads of a node touch at once.
//!
//! All of it is bounded and allocates only when it is made. It is written against [`primitive`], a thin facade over `std` or,
//! under the private cfg `tautline_loom`, over the model checker loom, so that the `loom-tests` crate checks the code that ships
//! and not a copy of it. Each ordering that matters has a name there by which it can be weakened: the models must notice.

pub mod primitive;

pub mod claim;
pub mod crew;
pub mod inbox;
pub(crate) mod prefetch;
pub mod queue;
pub mod ring;
pub mod slot_ring;
pub mod wake;
