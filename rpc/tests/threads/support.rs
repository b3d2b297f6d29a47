//! Servers on threads of their own.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tautline_rpc::*;

pub const ECHO: Method = Method::named("test/Echo");
pub const WORK: Method = Method::named("test/Work");

/// A hang, not slowness.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server on its own thread, stopped and joined when dropped.
pub struct Server {
    pub handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a node on `url` and lets `set_up` register what it serves.
    pub fn start(url: &str, wait: Wait, workers: usize, set_up: impl FnOnce(&mut Node) + Send + 'static) -> Server {
        let (tell, told) = mpsc::channel();
        let url = url.to_owned();
        let thread = std::thread::spawn(move || {
            let mut node = Node::builder(url).wait(wait).workers(workers).build().unwrap();
            set_up(&mut node);
            tell.send(node.handle()).unwrap();
            node.run();
            let usage = node.usage();
            assert_eq!(usage.claims, usage.entries);
        });
        Server { handle: told.recv().unwrap(), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the server's thread panicked");
        }
    }
}

pub fn echo() -> Service {
    Service::inline(|request| Ok(request.take_payload().into()))
}

/// Waits until `done`, and panics where that is for ever.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} never happens");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What a node's thread says, asked from outside.
pub fn ask<T: Send + 'static>(handle: &Handle, question: impl FnOnce(&Local) -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    assert!(handle.execute(move |local| tell.send(question(local)).unwrap()));
    told.recv_timeout(PATIENCE).expect("the node answers")
}
