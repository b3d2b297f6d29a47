//! Fuzz targets of `tautline-net`, one a module: each has a function `run` that takes any bytes, does with them what a hostile network
//! might, and panics where a promise is broken.
//!
//! `scripts/fuzz` runs them under libFuzzer, which looks for inputs that reach new code. On a stable compiler the same functions replay
//! what is kept: the inputs in `corpus/`, and in `regressions/` those that once found a fault.
#![forbid(unsafe_code)]

pub mod handshake;
pub mod host;
pub mod near;
pub mod network;
pub mod packet;
pub mod replay;
pub mod session;
pub mod wire;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_packet_parser_was_given_before_is_no_trouble() {
        replay::kept(env!("CARGO_MANIFEST_DIR"), "packet", packet::run);
    }

    #[test]
    fn what_a_session_was_told_before_is_no_trouble() {
        replay::kept(env!("CARGO_MANIFEST_DIR"), "session", session::run);
    }

    #[test]
    fn what_a_network_did_before_breaks_no_promise() {
        replay::kept(env!("CARGO_MANIFEST_DIR"), "network", network::run);
    }

    #[test]
    fn what_strangers_said_before_is_no_trouble() {
        replay::kept(env!("CARGO_MANIFEST_DIR"), "handshake", handshake::run);
    }
}
