//! Two threads, a core each, that measure one thing after another: the caller is the client, its partner serves.
//!
//! The partner owns one server per stage (a floor's echo loop, a node), built on its own thread because a node can't move. It
//! spins in the stage that is on and sleeps between stages, so that a stage never competes with another for its core.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, park, yield_now};

use crate::error::BenchError;
use crate::pin::pin;

const IDLE: usize = usize::MAX;
const STOP: usize = usize::MAX - 1;

/// A server's side of one stage.
pub trait Serve {
    /// Serves until [`Stage::over`] says so.
    fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError>;
}

/// The stage that is on, as its server sees it.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    wanted: &'a AtomicUsize,
    mine: usize,
}

impl Stage<'_> {
    /// Whether the server should return: one load of a line that nobody writes while a stage is on.
    #[inline]
    pub fn over(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != self.mine
    }
}

#[derive(Debug, Default)]
struct Shared {
    wanted: AtomicUsize,
    at: AtomicUsize,
}

/// The caller's handle on its partner.
#[derive(Debug)]
pub struct Duo {
    shared: Arc<Shared>,
    partner: Option<JoinHandle<Result<(), BenchError>>>,
}

impl Duo {
    /// Starts the partner on `core`. `build` runs there and makes the servers, by stage, and whatever the client must know of them.
    pub fn start<T: Send + 'static>(
        core: usize,
        build: impl FnOnce() -> Result<(Vec<Box<dyn Serve>>, T), BenchError> + Send + 'static,
    ) -> Result<(Duo, T), BenchError> {
        let shared = Arc::new(Shared { wanted: AtomicUsize::new(IDLE), at: AtomicUsize::new(IDLE) });
        let (built, known): (_, Receiver<Result<T, BenchError>>) = channel();
        let theirs = Arc::clone(&shared);
        let partner = std::thread::Builder::new()
            .name("bench-server".to_owned())
            .spawn(move || {
                let mut servers = match pin(core).and_then(|()| build()) {
                    Ok((servers, known)) => {
                        // A client that is gone already asks for STOP below.
                        let _ = built.send(Ok(known));
                        servers
                    }
                    Err(error) => {
                        let _ = built.send(Err(error));
                        return Ok(());
                    }
                };
                let done = attend(&theirs, &mut servers);
                theirs.at.store(STOP, Ordering::Release);
                done
            })
            .map_err(BenchError::system("starting the server thread"))?;
        match known.recv() {
            Ok(Ok(known)) => Ok((Duo { shared, partner: Some(partner) }, known)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(BenchError::PartnerEnded { what: "server thread", why: "it panicked while it was set up".to_owned() }),
        }
    }

    /// Runs `client` while the partner serves `stage`.
    pub fn during<T>(&mut self, stage: usize, client: impl FnOnce() -> Result<T, BenchError>) -> Result<T, BenchError> {
        self.enter(stage)?;
        let result = client();
        self.leave()?;
        result
    }

    /// Has the partner serve `stage`, and returns once it does.
    pub fn enter(&mut self, stage: usize) -> Result<(), BenchError> {
        self.switch(stage)
    }

    /// Has the partner stop serving, and returns once it sleeps.
    pub fn leave(&mut self) -> Result<(), BenchError> {
        self.switch(IDLE)
    }

    /// Asks for a stage and waits until the partner is there.
    fn switch(&mut self, stage: usize) -> Result<(), BenchError> {
        self.shared.wanted.store(stage, Ordering::Release);
        if let Some(partner) = &self.partner {
            partner.thread().unpark();
        }
        loop {
            match self.shared.at.load(Ordering::Acquire) {
                at if at == stage => return Ok(()),
                STOP => return self.finish(),
                _ => yield_now(),
            }
        }
    }

    fn finish(&mut self) -> Result<(), BenchError> {
        let ended = |why: &str| BenchError::PartnerEnded { what: "server thread", why: why.to_owned() };
        match self.partner.take().map(JoinHandle::join) {
            Some(Ok(Ok(()))) => Err(ended("it was asked for a stage it does not have")),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(ended("it panicked")),
            None => Err(ended("it failed before")),
        }
    }
}

impl Drop for Duo {
    fn drop(&mut self) {
        self.shared.wanted.store(STOP, Ordering::Release);
        if let Some(partner) = self.partner.take() {
            partner.thread().unpark();
            // Its error, if any, was worth reporting only while somebody measured.
            let _ = partner.join();
        }
    }
}

fn attend(shared: &Shared, servers: &mut [Box<dyn Serve>]) -> Result<(), BenchError> {
    /// Tells the client also when a server panics.
    struct Told<'a>(&'a Shared);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            self.0.at.store(STOP, Ordering::Release);
        }
    }
    let _told = Told(shared);
    loop {
        let wanted = shared.wanted.load(Ordering::Acquire);
        if wanted == STOP {
            return Ok(());
        }
        if wanted == IDLE {
            shared.at.store(IDLE, Ordering::Release);
            park();
            continue;
        }
        let Some(server) = servers.get_mut(wanted) else { return Ok(()) };
        shared.at.store(wanted, Ordering::Release);
        server.serve(Stage { wanted: &shared.wanted, mine: wanted })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(Arc<AtomicUsize>);

    impl Serve for Count {
        fn serve(&mut self, stage: Stage<'_>) -> Result<(), BenchError> {
            while !stage.over() {
                self.0.fetch_add(1, Ordering::Relaxed);
                yield_now();
            }
            Ok(())
        }
    }

    struct Fail;

    impl Serve for Fail {
        fn serve(&mut self, _: Stage<'_>) -> Result<(), BenchError> {
            Err(BenchError::Silent { what: "this test", seconds: 0 })
        }
    }

    fn duo(servers: impl FnOnce() -> Vec<Box<dyn Serve>> + Send + 'static) -> Duo {
        let core = crate::pin::allowed().unwrap()[0];
        Duo::start(core, move || Ok((servers(), ()))).unwrap().0
    }

    #[test]
    fn a_server_runs_during_its_stage_and_only_then() {
        let (first, second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (a, b) = (Arc::clone(&first), Arc::clone(&second));
        let mut duo = duo(move || vec![Box::new(Count(a)), Box::new(Count(b))]);
        let wait = || {
            while second.load(Ordering::Relaxed) == 0 {
                yield_now();
            }
            Ok(())
        };
        duo.during(1, wait).unwrap();
        let counted = second.load(Ordering::Relaxed);
        assert_eq!(first.load(Ordering::Relaxed), 0);
        duo.during(0, || Ok(())).unwrap();
        assert_eq!(second.load(Ordering::Relaxed), counted);
    }

    #[test]
    fn a_failing_server_ends_the_run_with_its_error() {
        let mut duo = duo(|| vec![Box::new(Fail)]);
        let error = duo.during(0, || Ok(())).err().or_else(|| duo.during(0, || Ok(())).err()).unwrap();
        assert!(error.to_string().contains("this test"), "{error}");
    }

    #[test]
    fn a_setup_that_fails_is_reported_to_the_caller() {
        let core = crate::pin::allowed().unwrap()[0];
        let failed = Duo::start::<()>(core, || Err(BenchError::TooFewCores { available: 1 }));
        assert!(matches!(failed, Err(BenchError::TooFewCores { .. })));
    }
}
