//! Packets to reliable messages, over any port.
//!
//! The rooms of this crate, from the wire up: [`frame`] holds packets, a [`port`] moves them, [`wire`] is their format,
//! `session` the protocol (no sockets and no clock inside), and [`endpoint`] puts a port, its sessions and their timers together.
//!
//! Messages are independent of each other, but small ones of one turn to one session and class share a packet: see
//! [`Endpoint::send`](endpoint::Endpoint::send).
//!
//! [`sync`] has the lock-free pieces and [`clock`] the time.
#![cfg_attr(not(tautline_loom), warn(missing_docs))]

pub mod class;
pub mod clock;
#[cfg(not(tautline_loom))]
pub mod endpoint;
pub mod frame;
#[cfg(not(tautline_loom))]
pub mod payload;
#[cfg(not(tautline_loom))]
pub mod port;
#[cfg(not(tautline_loom))]
mod session;
pub mod sync;
#[cfg(not(tautline_loom))]
pub mod timer;
#[cfg(not(tautline_loom))]
pub mod wire;
