//! The user's wish to end early: Ctrl-C (SIGINT) or SIGTERM. The first ends the traffic, so that what ran so far is still looked at and
//! summed up; the second ends the program at once, and its processes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tautline_bench::error::BenchError;

/// Which signal came, if one did.
#[derive(Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Listens from now on, to the end of the program.
    pub(super) fn listen() -> Result<Interrupt, BenchError> {
        let interrupt = Interrupt::default();
        let once = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let action = "asking for signals";
            // In this order: the first signal finds that none has come yet.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&once)).map_err(BenchError::system(action))?;
            flag::register(signal, Arc::clone(&once)).map_err(BenchError::system(action))?;
            flag::register_usize(signal, Arc::clone(&interrupt.0), signal as usize).map_err(BenchError::system(action))?;
        }
        Ok(interrupt)
    }

    /// The signal's number.
    pub(super) fn signal(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }
}
