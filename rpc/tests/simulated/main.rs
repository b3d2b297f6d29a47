//! Nodes against each other in virtual time: every behaviour that needs no real threads, and seeds of bad networks.
#![allow(unreachable_pub)]

mod calls;
mod cancels;
mod deadlines;
mod direct;
mod failures;
mod hooks;
mod overload;
mod seeds;
mod words;
mod world;
