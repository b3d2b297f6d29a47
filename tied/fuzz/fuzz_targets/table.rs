//! The fuzz target `table`; see [`tautline_tied_fuzz::table`]. Built without `cargo fuzz` it runs the files that it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_tied_fuzz::table::run(data));

#[cfg(not(fuzzing))]
fn main() {
    tautline_net_fuzz::replay::arguments(tautline_tied_fuzz::table::run);
}
