use proptest::prelude::*;
use zerocopy::little_endian::{U16, U32};

use super::*;

const FRAGMENT: usize = 10;

fn header(sequence: u32, total: usize, offset: usize) -> Fragment {
    Fragment {
        slot: U16::new(CONTROL_SLOTS),
        class: Class::Normal as u8,
        shift: 0,
        sequence: U32::new(sequence),
        total: U32::new(total as u32),
        offset: U32::new(offset as u32),
    }
}

fn incoming() -> (Incoming, Budget) {
    (Incoming::new(FRAGMENT, 4, 1000, 1000), Budget::new(1000))
}

#[test]
fn a_duplicate_never_delivers_again_even_after_its_slot_was_used_again() {
    let (mut incoming, mut budget) = incoming();
    let mut take = |sequence| incoming.receive(&header(sequence, 3, 0), b"abc", Time::ZERO, &mut budget).unwrap();
    assert!(matches!(take(1), Arrival::Single(Class::Normal)));
    assert!(matches!(take(1), Arrival::Duplicate));
    assert!(matches!(take(2), Arrival::Single(_)));
    assert!(matches!(take(1), Arrival::Duplicate));
}

#[test]
fn impossible_fields_are_refused() {
    let (mut incoming, mut budget) = incoming();
    let mut take = |header: Fragment, payload: &[u8]| incoming.receive(&header, payload, Time::ZERO, &mut budget);
    assert!(take(Fragment { slot: U16::new(CONTROL_SLOTS + 4), ..header(1, 3, 0) }, b"abc").is_err());
    assert!(take(Fragment { class: 9, ..header(1, 3, 0) }, b"abc").is_err());
    assert!(take(Fragment { slot: U16::new(0), ..header(1, 3, 0) }, b"abc").is_err(), "data in a control slot");
    assert!(take(header(1, 1001, 0), &[0; FRAGMENT]).is_err(), "above the limit");
    assert!(take(header(1, 30, 5), &[0; FRAGMENT]).is_err(), "offset between fragments");
    assert!(take(header(1, 30, 0), &[0; FRAGMENT - 1]).is_err(), "a hole");
    assert!(take(header(1, 30, 30), &[]).is_err(), "past the end");
    assert!(take(header(1, 30, 0), &[0; FRAGMENT]).is_ok());
    assert!(take(header(1, 31, 10), &[0; FRAGMENT]).is_err(), "another length under the same name");
    assert_eq!(budget.used, 30);
}

#[test]
fn without_memory_a_message_waits_and_starts_over() {
    let (mut incoming, mut budget) = incoming();
    budget.limit = 50;
    let now = Time::ZERO;
    let mut other = Incoming::new(FRAGMENT, 4, 1000, 1000);
    assert!(matches!(other.receive(&header(1, 40, 0), &[0; FRAGMENT], now, &mut budget), Ok(Arrival::Partial { .. })));
    let mut take = |offset, budget: &mut Budget| incoming.receive(&header(5, 40, offset), &[7; FRAGMENT], now, budget).unwrap();
    assert!(matches!(take(0, &mut budget), Arrival::Deferred { new: true }));
    assert!(matches!(take(10, &mut budget), Arrival::Deferred { new: false }));
    assert!(!incoming.admit(CONTROL_SLOTS, 5, now, &mut budget), "no room yet");
    other.abandoned(CONTROL_SLOTS, 1, &mut budget);
    assert_eq!((budget.used, budget.waiting), (0, [0, 1]));
    assert!(incoming.admit(CONTROL_SLOTS, 5, now, &mut budget));
    let mut take = |offset, budget: &mut Budget| incoming.receive(&header(5, 40, offset), &[7; FRAGMENT], now, budget).unwrap();
    assert!(matches!(take(20, &mut budget), Arrival::Deferred { new: false }), "not granted");
    incoming.grant(CONTROL_SLOTS, 5, 40, now);
    let mut take = |offset, budget: &mut Budget| incoming.receive(&header(5, 40, offset), &[7; FRAGMENT], now, budget).unwrap();
    for offset in [0, 10, 20] {
        assert!(matches!(take(offset, &mut budget), Arrival::Partial { .. }));
    }
    assert!(matches!(take(30, &mut budget), Arrival::Complete(..)));
    assert_eq!(budget.used, 0);
}

#[test]
fn a_session_with_its_share_of_the_memory_waits_for_itself_and_holds_up_no_other() {
    let (mut incoming, mut budget) = incoming();
    let second = Fragment { slot: U16::new(CONTROL_SLOTS + 1), ..header(1, 200, 0) };
    assert!(matches!(incoming.receive(&header(1, 200, 0), &[0; FRAGMENT], Time::ZERO, &mut budget), Ok(Arrival::Partial { .. })));
    assert!(matches!(incoming.receive(&second, &[0; FRAGMENT], Time::ZERO, &mut budget), Ok(Arrival::Deferred { new: true })));
    assert_eq!(budget.waiting, [0, 0]);
    let mut other = Incoming::new(FRAGMENT, 4, 1000, 1000);
    assert!(matches!(other.receive(&header(1, 200, 0), &[0; FRAGMENT], Time::ZERO, &mut budget), Ok(Arrival::Partial { .. })));
}

#[test]
fn who_has_not_finished_a_message_leaves_half_of_the_memory_to_who_has() {
    let (mut honest, mut budget) = incoming();
    let begin = |incoming: &mut Incoming, slot, sequence, total, budget: &mut Budget| {
        let header = Fragment { slot: U16::new(CONTROL_SLOTS + slot), ..header(sequence, total, 0) };
        incoming.receive(&header, &[0; FRAGMENT], Time::ZERO, budget).unwrap()
    };
    assert!(matches!(begin(&mut honest, 0, 1, 20, &mut budget), Arrival::Partial { .. }));
    let last = honest.receive(&header(1, 20, 10), &[0; FRAGMENT], Time::ZERO, &mut budget);
    assert!(matches!(last, Ok(Arrival::Complete(..))) && honest.is_trusted());
    let mut strangers: Vec<Incoming> = (0..4).map(|_| Incoming::new(FRAGMENT, 4, 1000, 1000)).collect();
    let mut held = 0;
    for stranger in &mut strangers {
        held += usize::from(matches!(begin(stranger, 0, 1, 240, &mut budget), Arrival::Partial { .. }));
    }
    assert_eq!(held, 2);
    assert!(matches!(begin(&mut honest, 0, 2, 400, &mut budget), Arrival::Partial { .. }));
    assert_eq!((budget.used, budget.probation), (880, 480));
    honest.distrust(&mut budget);
    assert_eq!((budget.used, budget.probation), (880, 880));
    honest.clear(&mut budget);
    strangers.iter_mut().for_each(|stranger| stranger.clear(&mut budget));
    assert_eq!((budget.used, budget.probation), (0, 0));
}

#[test]
fn each_strike_doubles_what_a_session_owes_and_is_forgotten_after_twice_as_much() {
    let (mut incoming, mut budget) = incoming();
    let mut sequence = 0;
    let mut finish = |incoming: &mut Incoming, budget: &mut Budget| {
        sequence += 1;
        for offset in [0, 10] {
            incoming.receive(&header(sequence, 20, offset), &[0; FRAGMENT], Time::ZERO, budget).unwrap();
        }
    };
    finish(&mut incoming, &mut budget);
    for strike in 0..4 {
        assert!(incoming.is_trusted());
        incoming.distrust(&mut budget);
        for _ in 0..1 << strike {
            assert!(!incoming.is_trusted());
            finish(&mut incoming, &mut budget);
        }
    }
    assert!(incoming.is_trusted());
    for _ in 0..16 + 8 + 4 + 2 {
        assert_ne!(incoming.trust.strikes, 0);
        finish(&mut incoming, &mut budget);
    }
    assert_eq!(incoming.trust.strikes, 0);
}

#[test]
fn a_replaced_or_abandoned_message_gives_its_memory_back() {
    let (mut incoming, mut budget) = incoming();
    let mut take =
        |sequence, total| incoming.receive(&header(sequence, total, 0), &[0; FRAGMENT], Time::ZERO, &mut budget).unwrap();
    assert!(matches!(take(1, 40), Arrival::Partial { .. }));
    assert!(matches!(take(2, 30), Arrival::Partial { .. }));
    assert_eq!(budget.used, 30);
    incoming.abandoned(CONTROL_SLOTS, 1, &mut budget);
    assert_eq!(budget.used, 30, "a stale abandon is ignored");
    incoming.abandoned(CONTROL_SLOTS, 2, &mut budget);
    assert_eq!(budget.used, 0);
}

proptest! {
    #[test]
    fn fragments_in_any_order_with_duplicates_give_the_message_once(
        message in prop::collection::vec(any::<u8>(), FRAGMENT + 1..200),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..100),
    ) {
        let (mut incoming, mut budget) = incoming();
        let count = message.len().div_ceil(FRAGMENT);
        let mut delivered = None;
        for at in order.iter().map(|index| index.index(count)).chain(0..count) {
            let offset = at * FRAGMENT;
            let payload = &message[offset..message.len().min(offset + FRAGMENT)];
            match incoming.receive(&header(1, message.len(), offset), payload, Time::ZERO, &mut budget).unwrap() {
                Arrival::Complete(_, bytes) => { prop_assert!(delivered.replace(bytes).is_none()); }
                Arrival::Partial { .. } | Arrival::Duplicate => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(delivered.as_deref(), Some(&message[..]));
        prop_assert_eq!(budget.used, 0);
    }
}
