//! The fuzz target `session`; see [`tautline_net_fuzz::session`]. Built without `cargo fuzz` it runs the files that it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_net_fuzz::session::run(data));

#[cfg(not(fuzzing))]
fn main() {
    tautline_net_fuzz::replay::arguments(tautline_net_fuzz::session::run);
}
