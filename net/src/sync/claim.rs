//! Who gets a queued entry: a worker that starts it, or a canceller that drops it. Exactly one, decided by one compare-and-swap.
//!
//! A run queue holds [`Ticket`]s; the entries themselves wait in a [`ClaimTable`]. Each has a claim word, generation and state
//! in one atomic, so that a ticket that outlived its entry can do nothing to the entry that has its slot now:
//!
//! ```text
//! free -> Queued -> (starting) -> Started -> Done -> free, next generation
//!               \-> Cancelled -> free, next generation
//!               \-> Withdrawn -> Cancelled -> free, next generation
//! ```
//!
//! Cancelling is O(1) and asks no worker: one that finds the ticket later in its queue loses the claim and skips it.

use std::mem::MaybeUninit;

use super::primitive::{AtomicU64, Ordering, UnsafeCell, ord, spin_loop};
use super::queue::Queue;

/// Names one entry for its whole life, and nothing after that. (A slot's generation repeats after 2^32 entries in that slot, and
/// slots are used in turn.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The entry's place in the table: small and dense.
    pub slot: u32,
    /// Which of the entries that had this place. Never zero.
    pub generation: u32,
}

/// How a cancellation ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The entry was queued, and will not start: here is what it held.
    Cancelled(T),
    /// The entry has started and not finished.
    AlreadyStarted,
    /// The entry has finished or been cancelled before.
    Gone,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting to start.
    Queued,
    /// Claimed by whoever runs it.
    Started,
    /// Finished or cancelled.
    Gone,
}

/// The entries that wait or run, each claimed at most once.
///
/// Any thread may start, cancel and finish. One thread inserts; several may, but then one that is stopped in the middle can hold
/// up the others' `finish` and `cancel`.
pub struct ClaimTable<T> {
    slots: Box<[Slot<T>]>,
    /// Free slots, longest free first: a generation lasts as long as it can.
    free: Queue<u32>,
}

// Its own line: workers claim neighbouring entries at the same moment.
#[repr(align(64))]
struct Slot<T> {
    word: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a slot's value is written by `insert`, which owns the slot while it is free, and moved out by the one thread whose
// compare-and-swap took the word from Queued. The word orders the two, the free queue orders that thread and the next `insert`.
// Values cross threads, hence `T: Send`; no reference to one is ever shared.
unsafe impl<T: Send> Send for ClaimTable<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for ClaimTable<T> {}

/// The low bits of a claim word; the generation is above them.
const STATE_BITS: u32 = 3;
const CANCELLED: u64 = 0;
const DONE: u64 = 1;
const QUEUED: u64 = 2;
/// Claimed, the value being moved out: the slot can't be freed yet.
const STARTING: u64 = 3;
const STARTED: u64 = 4;
/// Cancelled, but the value and the slot are kept.
const WITHDRAWN: u64 = 5;

const fn word(generation: u32, state: u64) -> u64 {
    ((generation as u64) << STATE_BITS) | state
}

const fn generation(word: u64) -> u32 {
    (word >> STATE_BITS) as u32
}

const fn state(word: u64) -> u64 {
    word & ((1 << STATE_BITS) - 1)
}

impl<T> ClaimTable<T> {
    /// A table for `capacity` entries that wait or run at a time.
    ///
    /// # Panics
    ///
    /// If `capacity` does not fit into 32 bits.
    pub fn new(capacity: usize) -> ClaimTable<T> {
        let count = u32::try_from(capacity).expect("a claim table's capacity fits into 32 bits");
        let free = Queue::new(capacity);
        for slot in 0..count {
            free.push(slot).expect("the free queue has room for every slot");
        }
        let slot = |_| Slot { word: AtomicU64::new(word(0, DONE)), value: UnsafeCell::new(MaybeUninit::uninit()) };
        ClaimTable { slots: (0..capacity).map(slot).collect(), free }
    }

    /// Queues `value`, or gives it back if the table is full.
    #[inline]
    pub fn insert(&self, value: T) -> Result<Ticket, T> {
        let Some(index) = self.free.pop() else { return Err(value) };
        let slot = &self.slots[index as usize];
        // Zero is left out, so that a ticket of all zeroes names nothing.
        let generation = generation(slot.word.load(Ordering::Relaxed)).wrapping_add(1).max(1);
        // SAFETY: the slot came from the free queue: no value is in it, and nobody else touches it until the store below.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        slot.word.store(word(generation, QUEUED), ord!(Release, "claim-publish"));
        Ok(Ticket { slot: index, generation })
    }

    /// Claims the entry for running, and takes its value. `None` if somebody was faster or it is gone. The slot stays in use
    /// until [`ClaimTable::finish`].
    #[inline]
    pub fn start(&self, ticket: Ticket) -> Option<T> {
        let slot = self.slots.get(ticket.slot as usize)?;
        let (queued, starting) = (word(ticket.generation, QUEUED), word(ticket.generation, STARTING));
        slot.word.compare_exchange(queued, starting, ord!(Acquire, "claim-start"), Ordering::Relaxed).ok()?;
        // SAFETY: we took the word from Queued: a value is there, and only we may take it.
        let value = slot.value.with(|place| unsafe { (*place).assume_init_read() });
        // From here on another thread may finish the entry, and so free the slot.
        slot.word.store(word(ticket.generation, STARTED), ord!(Release, "claim-started"));
        Some(value)
    }

    /// Takes the entry out of the queue if it has not started.
    #[inline]
    pub fn cancel(&self, ticket: Ticket) -> Outcome<T> {
        match self.flip(ticket, CANCELLED) {
            Ok(slot) => {
                // SAFETY: we took the word from Queued: a value is there, and only we may take it.
                let value = slot.value.with(|place| unsafe { (*place).assume_init_read() });
                self.release(ticket.slot);
                Outcome::Cancelled(value)
            }
            Err(State::Started) => Outcome::AlreadyStarted,
            Err(_) => Outcome::Gone,
        }
    }

    /// Only flips the claim word of an entry that has not started: what it held and its slot stay until [`ClaimTable::vacate`]. For who has no
    /// time for them now.
    #[inline]
    pub fn withdraw(&self, ticket: Ticket) -> Outcome<()> {
        match self.flip(ticket, WITHDRAWN) {
            Ok(_) => Outcome::Cancelled(()),
            Err(State::Started) => Outcome::AlreadyStarted,
            Err(_) => Outcome::Gone,
        }
    }

    /// Takes what a withdrawn entry held, and frees its slot. `Some` for exactly one caller.
    #[inline]
    pub fn vacate(&self, ticket: Ticket) -> Option<T> {
        let slot = self.slots.get(ticket.slot as usize)?;
        let (withdrawn, cancelled) = (word(ticket.generation, WITHDRAWN), word(ticket.generation, CANCELLED));
        // Acquires the value from who inserted it: a withdrawal does not write it.
        slot.word.compare_exchange(withdrawn, cancelled, ord!(Acquire, "claim-vacate"), Ordering::Relaxed).ok()?;
        // SAFETY: we took the word from Withdrawn, which was Queued before: a value is there, and only we may take it.
        let value = slot.value.with(|place| unsafe { (*place).assume_init_read() });
        self.release(ticket.slot);
        Some(value)
    }

    /// Takes the word of an entry from Queued to this state, or says in which it is.
    #[inline]
    fn flip(&self, ticket: Ticket, to: u64) -> Result<&Slot<T>, State> {
        let slot = self.slots.get(ticket.slot as usize).ok_or(State::Gone)?;
        let (queued, to) = (word(ticket.generation, QUEUED), word(ticket.generation, to));
        match slot.word.compare_exchange(queued, to, ord!(Acquire, "claim-cancel"), Ordering::Relaxed) {
            Ok(_) => Ok(slot),
            Err(word) => Err(classify(word, ticket)),
        }
    }

    /// Ends a started entry and frees its slot. `true` for exactly one caller; `false` if the entry has not started (or its
    /// `start` has not returned) or is gone.
    #[inline]
    pub fn finish(&self, ticket: Ticket) -> bool {
        let Some(slot) = self.slots.get(ticket.slot as usize) else { return false };
        let (started, done) = (word(ticket.generation, STARTED), word(ticket.generation, DONE));
        // Acquires that the value was moved out: the next entry's is written to the same place.
        let won = slot.word.compare_exchange(started, done, ord!(Acquire, "claim-finish"), Ordering::Relaxed).is_ok();
        if won {
            self.release(ticket.slot);
        }
        won
    }

    /// Where the entry is; the answer may be old when it arrives.
    #[inline]
    pub fn state(&self, ticket: Ticket) -> State {
        match self.slots.get(ticket.slot as usize) {
            Some(slot) => classify(slot.word.load(Ordering::Relaxed), ticket),
            None => State::Gone,
        }
    }

    /// How many entries wait or run.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len().min(self.slots.len())
    }

    /// Does no entry wait or run?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many entries can wait or run at a time.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn release(&self, slot: u32) {
        // The queue holds every slot. It can seem full only if, of several inserting threads, one stopped in the middle of its
        // pop while the others went round the whole queue.
        while self.free.push(slot).is_err() {
            spin_loop();
        }
    }
}

fn classify(word: u64, ticket: Ticket) -> State {
    match state(word) {
        _ if generation(word) != ticket.generation => State::Gone,
        QUEUED => State::Queued,
        STARTING | STARTED => State::Started,
        _ => State::Gone,
    }
}

impl<T> Drop for ClaimTable<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            if matches!(state(slot.word.load(Ordering::Relaxed)), QUEUED | WITHDRAWN) {
                // SAFETY: queued or withdrawn: a value is there, and nobody else can reach it.
                slot.value.with_mut(|place| unsafe { (*place).assume_init_drop() });
            }
        }
    }
}

impl<T> std::fmt::Debug for ClaimTable<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimTable").field("capacity", &self.capacity()).field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tautline_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_started_entry_can_not_be_cancelled_and_ends_once() {
        let table = ClaimTable::new(2);
        let ticket = table.insert("work").unwrap();
        assert_eq!(table.state(ticket), State::Queued);
        assert!(!table.finish(ticket), "it has not started");
        assert_eq!(table.start(ticket), Some("work"));
        assert_eq!(table.state(ticket), State::Started);
        assert_eq!(table.start(ticket), None);
        assert_eq!(table.cancel(ticket), Outcome::AlreadyStarted);
        assert!(table.finish(ticket));
        assert!(!table.finish(ticket));
        assert_eq!((table.state(ticket), table.cancel(ticket)), (State::Gone, Outcome::Gone));
        assert!(table.is_empty());
    }

    #[test]
    fn a_cancelled_entry_never_starts() {
        let table = ClaimTable::new(2);
        let ticket = table.insert("work").unwrap();
        assert_eq!(table.cancel(ticket), Outcome::Cancelled("work"));
        assert_eq!((table.start(ticket), table.cancel(ticket)), (None, Outcome::Gone));
        assert!(!table.finish(ticket));
    }

    #[test]
    fn a_withdrawn_entry_never_starts_and_keeps_its_slot_until_that_is_vacated() {
        let table = ClaimTable::new(1);
        let ticket = table.insert("work").unwrap();
        assert_eq!(table.vacate(ticket), None, "it is queued");
        assert_eq!(table.withdraw(ticket), Outcome::Cancelled(()));
        assert_eq!((table.start(ticket), table.cancel(ticket), table.withdraw(ticket)), (None, Outcome::Gone, Outcome::Gone));
        assert_eq!((table.state(ticket), table.finish(ticket)), (State::Gone, false));
        assert_eq!((table.insert("other"), table.len()), (Err("other"), 1));
        assert_eq!((table.vacate(ticket), table.vacate(ticket)), (Some("work"), None));
        let next = table.insert("other").unwrap();
        assert_eq!(table.vacate(ticket), None, "the slot is another entry's");
        assert_eq!(table.start(next), Some("other"));
        assert_eq!(table.withdraw(next), Outcome::AlreadyStarted);
    }

    #[test]
    fn a_full_table_gives_the_value_back_and_a_running_entry_keeps_its_slot() {
        let table = ClaimTable::new(3);
        let tickets: Vec<_> = (0..3).map(|value| table.insert(value).unwrap()).collect();
        assert_eq!(table.insert(3), Err(3));
        assert_eq!(table.start(tickets[1]), Some(1));
        assert_eq!(table.insert(3), Err(3));
        assert!(table.finish(tickets[1]));
        assert_eq!(table.len(), 2);
        assert!(table.insert(3).is_ok());
    }

    #[test]
    fn a_stale_ticket_does_nothing_to_the_next_entry_in_its_slot() {
        let table = ClaimTable::new(1);
        let stale = table.insert(1).unwrap();
        table.cancel(stale);
        let fresh = table.insert(2).unwrap();
        assert_eq!(stale.slot, fresh.slot);
        assert_eq!((table.start(stale), table.cancel(stale), table.finish(stale)), (None, Outcome::Gone, false));
        assert_eq!(table.start(fresh), Some(2));
        assert_eq!((table.cancel(stale), table.finish(stale)), (Outcome::Gone, false));
        assert!(table.finish(fresh));
    }

    #[test]
    fn a_ticket_of_another_table_is_gone_and_not_a_panic() {
        let table = ClaimTable::<()>::new(1);
        let ticket = Ticket { slot: 9, generation: 1 };
        assert_eq!((table.start(ticket), table.cancel(ticket), table.finish(ticket)), (None, Outcome::Gone, false));
        assert_eq!(table.state(Ticket { slot: 0, generation: 0 }), State::Gone);
    }

    #[test]
    fn generations_wrap_past_zero() {
        let table = ClaimTable::new(1);
        table.slots[0].word.store(word(u32::MAX, DONE), Ordering::Relaxed);
        let ticket = table.insert(5).unwrap();
        assert_eq!(ticket.generation, 1);
        assert_eq!(table.start(ticket), Some(5));
    }

    #[test]
    fn a_dropped_table_drops_what_is_queued_and_nothing_else() {
        let witness = Arc::new(());
        let table = ClaimTable::new(4);
        let tickets: Vec<_> = (0..4).map(|_| table.insert(witness.clone()).unwrap()).collect();
        drop(table.start(tickets[0]));
        drop(table.cancel(tickets[1]));
        table.withdraw(tickets[2]);
        assert_eq!(Arc::strong_count(&witness), 3);
        drop(table);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn each_of_many_entries_goes_to_exactly_one_of_a_worker_and_two_cancellers() {
        const ENTRIES: u64 = if cfg!(debug_assertions) { 20_000 } else { 500_000 };
        let table = ClaimTable::new(16);
        let queues = [Queue::new(16), Queue::new(16), Queue::new(16)];
        let (won, inserted) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for (role, queue) in queues.iter().enumerate() {
                let (table, won, inserted) = (&table, &won, &inserted);
                scope.spawn(move || {
                    loop {
                        let last = inserted.load(Ordering::Acquire) == ENTRIES;
                        let Some((ticket, expected)) = queue.pop() else {
                            if last {
                                return;
                            }
                            std::thread::yield_now();
                            continue;
                        };
                        let value = if role == 0 {
                            table.start(ticket)
                        } else if let Outcome::Cancelled(value) = table.cancel(ticket) {
                            Some(value)
                        } else {
                            None
                        };
                        if let Some(value) = value {
                            assert_eq!(value, expected, "another entry's value");
                            won.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(table.finish(ticket), role == 0);
                        }
                    }
                });
            }
            for entry in 0..ENTRIES {
                let ticket = loop {
                    match table.insert(entry) {
                        Ok(ticket) => break ticket,
                        Err(_) => std::thread::yield_now(),
                    }
                };
                for queue in &queues {
                    while queue.push((ticket, entry)).is_err() {
                        std::thread::yield_now();
                    }
                }
            }
            inserted.store(ENTRIES, Ordering::Release);
        });
        assert_eq!(won.into_inner(), ENTRIES);
        assert!(table.is_empty());
    }
}
