//! What reaches a node from other threads: commands, workers' notes, woken tasks; and how it is woken for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_task::Runnable;
use tautline_net::sync::queue::Queue;
use tautline_net::sync::wake::{Wake, WakeSlot};

use crate::handle::Command;
use crate::server::runqueue::Note;

/// A node's letter box. All queues are bounded and lock-free; one wake slot serves them all.
pub(crate) struct Mail {
    commands: Queue<Command>,
    notes: Queue<Note>,
    runnables: Queue<Runnable>,
    slot: WakeSlot,
    stop: AtomicBool,
}

impl Mail {
    /// Room for this many commands, notes and tasks.
    pub(crate) fn new(commands: usize, notes: usize, tasks: usize) -> Arc<Mail> {
        Arc::new(Mail {
            commands: Queue::new(commands),
            notes: Queue::new(notes),
            runnables: Queue::new(tasks),
            slot: WakeSlot::new(),
            stop: AtomicBool::new(false),
        })
    }

    /// How the node is woken when it sleeps.
    pub(crate) fn attach(&self, action: impl Wake + 'static) {
        self.slot.attach(action);
    }

    /// Whether the node takes no commands any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.slot.is_closed() || self.is_stopping()
    }

    /// Drops the command if the node is gone or its inbox full, and says so; `Ok` means that the node will see it or has failed it.
    pub(crate) fn command(&self, command: Command) -> Result<(), Refused> {
        if self.is_closed() {
            return Err(Refused::Stopped);
        }
        self.commands.push(command).map_err(|_| Refused::Full)?;
        // The node may have stopped or gone between the look and the push: then it did not see the command, and nobody else will.
        // (Waking it takes a full fence between the push and the second look.)
        if !self.slot.wake() || self.is_stopping() {
            self.fail_commands();
        }
        Ok(())
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    /// A worker's word. There is always room: an entry has two notes in its life, and gives its place back after the last.
    pub(crate) fn note(&self, note: Note) {
        let pushed = self.notes.push(note);
        debug_assert!(pushed.is_ok(), "the notes of all entries fit");
        self.slot.wake();
    }

    pub(crate) fn next_note(&self) -> Option<Note> {
        self.notes.pop()
    }

    /// A task is ready. There is always room: a task is in the queue once at most.
    pub(crate) fn schedule(&self, runnable: Runnable) {
        if let Err(runnable) = self.runnables.push(runnable) {
            // It can't happen; if it did, dropping a runnable on a foreign thread would be worse than keeping the task for ever.
            debug_assert!(false, "the runnables of all tasks fit");
            std::mem::forget(runnable);
            return;
        }
        self.slot.wake();
    }

    pub(crate) fn next_runnable(&self) -> Option<Runnable> {
        self.runnables.pop()
    }

    /// Whether workers have said something.
    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Whether a task or a command waits.
    #[inline]
    pub(crate) fn has_jobs(&self) -> bool {
        !self.runnables.is_empty() || !self.commands.is_empty()
    }

    /// How many tasks are ready.
    pub(crate) fn ready(&self) -> usize {
        self.runnables.len()
    }

    pub(crate) fn wake(&self) {
        self.slot.wake();
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.slot.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether anything waits for the node.
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.notes.is_empty() && self.runnables.is_empty() && !self.is_stopping()
    }

    /// The node is going to sleep. It looks whether anything waits after this, and does not sleep then.
    pub(crate) fn prepare_wait(&self) {
        self.slot.prepare();
    }

    pub(crate) fn finish_wait(&self) {
        self.slot.finish();
    }

    /// The node was told to stop, and does not look at commands any more: those that are there fail, and later ones are refused.
    pub(crate) fn refuse_commands(&self) {
        // Who pushed before this fence is found here; who pushes after it sees that the node is stopping.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.fail_commands();
    }

    /// The node is gone: what other threads asked for fails, now and later.
    pub(crate) fn close(&self) {
        self.slot.close();
        self.fail_commands();
    }

    fn fail_commands(&self) {
        while let Some(command) = self.commands.pop() {
            command.fail();
        }
    }
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Stopped,
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mail").field("commands", &self.commands.len()).field("ready", &self.ready()).finish_non_exhaustive()
    }
}
