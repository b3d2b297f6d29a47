use std::collections::VecDeque;

use super::*;
use crate::payload::Payload;

const ALL: Unscheduled = Unscheduled { most: 1000, shift: 0 };

fn push(outgoing: &mut Outgoing, bytes: usize) -> MessageId {
    let message = Message { class: Class::Normal, head: &[], body: Payload::from(vec![0; bytes]), token: 0 };
    outgoing.push(message, ALL, true, &EndpointConfig::default()).unwrap()
}

/// Sends one packet of the message whose turn it is.
fn emit(outgoing: &mut Outgoing) -> Option<Part> {
    let picked = outgoing.begin_data(false)?;
    let (_, part) = outgoing.emit_data(&picked, &mut [0; 200])?;
    outgoing.end_data(picked);
    Some(part)
}

#[test]
fn messages_given_up_before_they_left_leave_nothing_on_the_lists() {
    for bytes in [10, 1000] {
        let mut outgoing = Outgoing::new(100, 16);
        let kept = push(&mut outgoing, bytes);
        for _ in 0..10_000 {
            let id = push(&mut outgoing, bytes);
            outgoing.abandon(id, ALL);
        }
        let index = Class::Normal.index();
        assert!(outgoing.lists.small[index].len() + outgoing.lists.large[index].len() < 100, "{bytes} bytes");
        let part = emit(&mut outgoing).expect("one message is left");
        assert_eq!(part.sequence, 1);
        assert!(outgoing.abandon(kept, ALL).is_some() == (bytes > 100));
        assert_eq!(outgoing.bytes(), 0);
    }
}

#[test]
fn a_class_whose_messages_were_all_given_up_has_nothing_to_send() {
    for bytes in [10, 1000] {
        let mut outgoing = Outgoing::new(100, 16);
        let held: Vec<MessageId> = (0..100).map(|_| push(&mut outgoing, bytes)).collect();
        for id in held {
            outgoing.abandon(id, ALL);
        }
        for _ in 0..100 {
            let id = push(&mut outgoing, bytes);
            outgoing.abandon(id, ALL);
            let listed =
                outgoing.lists.small.iter().map(VecDeque::len).chain(outgoing.lists.large.iter().map(Vec::len)).sum::<usize>();
            assert_eq!(outgoing.most_urgent().is_some(), listed > 0, "{bytes} bytes");
        }
    }
}

#[test]
fn the_message_with_least_left_goes_first_whatever_came_grew_or_went_meanwhile() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut outgoing = Outgoing::new(100, 64);
    outgoing.establish(100, 1 << 20, 64, ALL);
    let mut sent: Vec<Part> = Vec::new();
    let mut held: Vec<MessageId> = Vec::new();
    for _ in 0..5_000 {
        match random.u32(..10) {
            0 | 1 if held.len() < 40 => {
                let message =
                    Message { class: Class::Normal, head: &[], body: Payload::from(vec![0; random.usize(101..5_000)]), token: 0 };
                let all = Unscheduled { most: 1 << 20, shift: 0 };
                held.push(outgoing.push(message, all, true, &EndpointConfig::default()).unwrap());
            }
            2 if !held.is_empty() => {
                outgoing.abandon(held.swap_remove(random.usize(..held.len())), ALL);
            }
            3 if !sent.is_empty() => outgoing.lost(sent[random.usize(..sent.len())]),
            _ => {
                let left = |outgoing: &Outgoing, slot: u16| outgoing.data.get(slot).remaining(100);
                let listed = |outgoing: &Outgoing, ticket: &Ticket| {
                    let slot = outgoing.data.get(ticket.slot);
                    slot.sequence == ticket.sequence && outgoing.data.active().any(|(number, _)| number == ticket.slot)
                };
                let least = outgoing.lists.large[1]
                    .iter()
                    .filter(|ticket| listed(&outgoing, ticket))
                    .map(|ticket| left(&outgoing, ticket.slot))
                    .min();
                let before: Vec<(u16, usize)> =
                    outgoing.data.active().map(|(number, slot)| (number, slot.remaining(100))).collect();
                let oldest_is_due = outgoing.until_oldest == 0;
                let Some(part) = emit(&mut outgoing) else { continue };
                let picked = before.iter().find(|(number, _)| *number == part.slot).map(|(_, left)| *left);
                // Tickets of what was given up are picked too, and every so often the oldest.
                if !oldest_is_due {
                    assert_eq!(picked, least);
                }
                sent.push(part);
            }
        }
    }
}

/// Uses so many slots at once: the number of each, and the sequence number that its message had.
fn use_at_once(outgoing: &mut Outgoing, count: usize) -> Vec<(u16, u32)> {
    let begin = |_| {
        let number = outgoing.data.allocate().unwrap();
        let slot = outgoing.data.get_mut(number);
        slot.begin(0, 0, 0, b"bytes", &[]);
        (number, slot.sequence)
    };
    let used: Vec<(u16, u32)> = (0..count).map(begin).collect();
    used.iter().rev().for_each(|(number, _)| outgoing.data.release(*number));
    used
}

#[test]
fn the_numbers_of_each_slot_go_on_whoever_had_its_memory_meanwhile() {
    let mut random = fastrand::Rng::with_seed(11);
    let limits = [1, 2, 3, 8, 100];
    let mut sessions = limits.map(|limit| (Outgoing::new(1000, limit), [0; 8]));
    let mut spare = Vec::new();
    let mut given = 0;
    for _ in 0..10_000 {
        let at = random.usize(..sessions.len());
        let (outgoing, sequences) = &mut sessions[at];
        if outgoing.has_no_slots()
            && let Some(slots) = spare.pop()
        {
            outgoing.take_slots(slots);
        }
        let most = if random.u8(..) == 0 { 8 } else { 4 };
        for (number, sequence) in use_at_once(outgoing, random.usize(1..=most.min(usize::from(limits[at])))) {
            let known = &mut sequences[usize::from(number - CONTROL_SLOTS)];
            *known += 1;
            assert_eq!(sequence, *known, "session {at}, slot {number}");
        }
        if random.bool()
            && let Some(slots) = outgoing.give_slots()
        {
            given += 1;
            assert!(outgoing.has_no_slots());
            // Now and then it is freed instead.
            spare.extend(random.bool().then_some(slots));
        }
    }
    assert!(given > 1_000, "{given}");
}

#[test]
fn memory_in_use_or_that_many_messages_needed_at_once_is_not_given_away() {
    let mut outgoing = Outgoing::new(1000, 8);
    let first = outgoing.data.allocate().unwrap();
    assert!(outgoing.give_slots().is_none(), "it is in use");
    outgoing.data.release(first);
    assert_eq!(use_at_once(&mut outgoing, 5).len(), 5);
    assert!(outgoing.give_slots().is_none(), "the numbers of so many can't be kept");
    let again: Vec<u16> = (0..8).map(|_| outgoing.data.allocate().unwrap()).collect();
    assert_eq!((again[0], outgoing.data.allocate()), (first, None), "the last that became free is used first");
}
