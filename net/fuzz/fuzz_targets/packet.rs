//! The fuzz target `packet`; see [`tautline_net_fuzz::packet`]. Built without `cargo fuzz` it runs the files that it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_net_fuzz::packet::run(data));

#[cfg(not(fuzzing))]
fn main() {
    tautline_net_fuzz::replay::arguments(tautline_net_fuzz::packet::run);
}
