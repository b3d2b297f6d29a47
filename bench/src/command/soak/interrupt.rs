//! The user's wish to end early: Ctrl-C (SIGINT) or SIGTERM. The first ends the traffic, so that what ran so far is still looked at and
//! summed up; another one ends the program at once, and its processes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tautline_bench::error::BenchError;

/// What comes so soon after the first signal is the same wish: `timeout` signals its child, and then the group that the child is in.
const SAME: Duration = Duration::from_millis(500);

/// Which signal came, if one did.
#[derive(Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Listens from now on, to the end of the program.
    pub(super) fn listen() -> Result<Interrupt, BenchError> {
        let interrupt = Interrupt::default();
        let came = Arc::clone(&interrupt.0);
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(BenchError::system("asking for signals"))?;
        let listen = move || {
            let mut first = None;
            for signal in signals.forever() {
                let since = first.get_or_insert_with(Instant::now).elapsed();
                if since > SAME {
                    // The processes end with their input.
                    std::process::exit(128 + signal);
                }
                came.store(signal as u8, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(BenchError::system("starting a thread"))?;
        Ok(interrupt)
    }

    /// The signal's number.
    pub(super) fn signal(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal > 0)
    }
}
