//! Replicas and their servers over a simulated network, in virtual time.

mod deaths;
mod failures;
mod hedges;
mod seeds;
mod ties;
mod world;
