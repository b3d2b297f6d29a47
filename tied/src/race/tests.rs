use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn race(shape: Shape) -> Race {
    let mut race = Race::new(Plan { shape, copies: 2, failovers: 1, replacements: 2, repeatable: true });
    assert_eq!(race.step(at(0)), Step::Send(Purpose::First));
    race.sent(Purpose::First, at(0));
    race
}

#[test]
fn a_hedge_is_due_after_its_delay_and_only_once() {
    let mut race = race(Shape::Hedged { delay: 10 * MS });
    assert_eq!(race.step(at(9)), Step::Wait(Some(at(10))));
    assert_eq!(race.step(at(10)), Step::Send(Purpose::Hedge));
    race.sent(Purpose::Hedge, at(10));
    assert_eq!(race.step(at(1000)), Step::Wait(None));
}

#[test]
fn a_start_notice_keeps_the_second_copy_back() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
    assert_eq!(race.step(at(1)), Step::Wait(Some(at(2))));
    race.started(0, at(1));
    assert_eq!(race.step(at(5)), Step::Wait(None));
    assert_eq!(race.suppressed_by_start(), 1);
}

#[test]
fn a_tie_that_stalls_after_its_start_is_hedged_once() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: Some(30 * MS) });
    race.sent(Purpose::Tied, at(2));
    race.started(1, at(5));
    race.dropped(0, at(6));
    assert_eq!(race.step(at(6)), Step::Wait(Some(at(35))));
    assert_eq!(race.step(at(35)), Step::Send(Purpose::Hedge));
    race.sent(Purpose::Hedge, at(35));
    assert_eq!(race.step(at(100)), Step::Wait(None));
}

#[test]
fn a_lost_start_notice_is_made_up_for_by_the_losers_end() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: Some(30 * MS) });
    race.sent(Purpose::Tied, at(2));
    race.dropped(0, at(6));
    assert_eq!(race.step(at(6)), Step::Wait(Some(at(36))));
}

#[test]
fn an_error_never_beats_a_copy_under_way() {
    let mut race = race(Shape::Hedged { delay: 10 * MS });
    race.sent(Purpose::Hedge, at(10));
    race.failed(1, Failure::Here);
    assert_eq!(race.step(at(11)), Step::Wait(None));
    race.answered(0);
    assert_eq!(race.step(at(12)), Step::Won(0));
}

#[test]
fn an_error_that_all_would_repeat_ends_the_call() {
    let mut race = race(Shape::Hedged { delay: 10 * MS });
    race.sent(Purpose::Hedge, at(10));
    race.failed(1, Failure::Everywhere);
    assert_eq!(race.step(at(11)), Step::Lost(1));
}

#[test]
fn a_hedge_that_can_not_be_sent_leaves_the_original_alone() {
    let mut race = race(Shape::Hedged { delay: 10 * MS });
    assert_eq!(race.step(at(10)), Step::Send(Purpose::Hedge));
    race.not_sent(Purpose::Hedge);
    assert_eq!(race.step(at(10)), Step::Wait(None));
    race.answered(0);
    assert_eq!(race.step(at(20)), Step::Won(0));
}

#[test]
fn a_call_whose_only_copy_was_refused_goes_elsewhere_a_bounded_number_of_times() {
    let mut race = race(Shape::Single);
    race.failed(0, Failure::Elsewhere);
    assert_eq!(race.step(at(1)), Step::Send(Purpose::Failover));
    race.sent(Purpose::Failover, at(1));
    race.failed(1, Failure::Elsewhere);
    assert_eq!(race.step(at(2)), Step::Lost(1));
}

#[test]
fn a_call_that_broke_one_replica_is_not_tried_on_more() {
    let mut race = race(Shape::Hedged { delay: 10 * MS });
    race.sent(Purpose::Hedge, at(10));
    race.failed(0, Failure::Here);
    race.failed(1, Failure::Elsewhere);
    assert!(matches!(race.step(at(11)), Step::Lost(_)));
}

#[test]
fn a_call_sent_again_is_hedged_from_its_own_start_and_not_the_lost_ones() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: Some(30 * MS) });
    race.started(0, at(1));
    race.failed(0, Failure::Elsewhere);
    assert_eq!(race.step(at(90)), Step::Send(Purpose::Failover));
    race.sent(Purpose::Failover, at(90));
    assert_eq!(race.step(at(90)), Step::Wait(None), "tied to what is gone, or hedged by it");
    race.started(1, at(100));
    assert_eq!(race.step(at(100)), Step::Wait(Some(at(130))));
}

#[test]
fn the_copy_that_a_tie_took_away_is_given_back_when_the_winner_fails() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
    race.sent(Purpose::Tied, at(2));
    race.started(0, at(3));
    race.dropped(1, at(4));
    race.failed(0, Failure::Here);
    assert_eq!(race.step(at(5)), Step::Send(Purpose::Failover));
    race.not_sent(Purpose::Failover);
    assert_eq!(race.step(at(5)), Step::Lost(0));
}

#[test]
fn a_call_whose_ties_were_all_refused_is_sent_once_without_one() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
    race.sent(Purpose::Tied, at(2));
    race.failed(0, Failure::Untied);
    assert_eq!(race.step(at(3)), Step::Wait(None), "the other one may take ties");
    race.failed(1, Failure::Untied);
    assert_eq!(race.step(at(4)), Step::Send(Purpose::Untied));
    race.sent(Purpose::Untied, at(4));
    assert_eq!(race.step(at(100)), Step::Wait(None), "tied again");
    race.failed(2, Failure::Here);
    assert_eq!(race.step(at(101)), Step::Lost(2));
}

#[test]
fn a_call_that_broke_one_replica_is_not_tried_without_its_tie() {
    let mut race = race(Shape::Tied { stagger: 2 * MS, then_hedge: None });
    race.sent(Purpose::Tied, at(2));
    race.failed(0, Failure::Untied);
    race.failed(1, Failure::Here);
    assert!(matches!(race.step(at(3)), Step::Lost(_)));
}

/// A call that must not be executed again.
fn once(shape: Shape) -> Race {
    let mut race = Race::new(Plan { shape, copies: 2, failovers: 1, replacements: 2, repeatable: false });
    race.sent(Purpose::First, at(0));
    race
}

const TIED: Shape = Shape::Tied { stagger: Duration::from_millis(2), then_hedge: None };

#[test]
fn what_may_have_been_executed_gives_nothing_back_if_it_may_not_be_again() {
    let mut race = once(TIED);
    race.sent(Purpose::Tied, at(2));
    race.started(0, at(3));
    race.dropped(1, at(4));
    race.failed(0, Failure::Here);
    assert_eq!(race.step(at(5)), Step::Lost(0));
    // The copy that its tie stopped ran too.
    let mut race = once(TIED);
    race.sent(Purpose::Tied, at(2));
    race.started(1, at(3));
    race.dropped(1, at(4));
    race.failed(0, Failure::Lost);
    assert_eq!(race.step(at(5)), Step::Lost(0));
    // Nobody has executed this one.
    let mut race = once(TIED);
    race.sent(Purpose::Tied, at(2));
    race.dropped(1, at(4));
    race.failed(0, Failure::Lost);
    assert_eq!(race.step(at(5)), Step::Send(Purpose::Failover));
    assert!(race.stands_in());
}

#[test]
fn a_silent_server_makes_room_for_the_other_copy_of_its_tie_even_where_the_budget_had_none() {
    for refused in [false, true] {
        let mut race = once(TIED);
        if refused {
            assert_eq!(race.step(at(2)), Step::Send(Purpose::Tied));
            assert!(!race.stands_in(), "so far it is one more");
            race.not_sent(Purpose::Tied);
        }
        assert!(matches!(race.step(at(1)), Step::Wait(_)));
        race.silent(0, Some(Silence::Sent));
        assert_eq!(race.step(at(1)), Step::Send(Purpose::Tied));
        assert!(race.stands_in());
        race.sent(Purpose::Tied, at(1));
        assert_eq!(race.step(at(90)), Step::Wait(None));
        // May it be executed again? Nobody knows that it was not.
        race.silent(1, Some(Silence::Sent));
        assert_eq!(race.step(at(91)), Step::Wait(None));
        race.answered(0);
        assert_eq!(race.step(at(92)), Step::Won(0), "late, and still the answer");
    }
}

#[test]
fn what_was_never_sent_to_a_silent_server_goes_elsewhere_and_is_no_extra_copy() {
    let mut race = once(Shape::Single);
    race.silent(0, Some(Silence::Unsent));
    assert_eq!(race.step(at(50)), Step::Send(Purpose::Failover));
    // There is nobody else now; later there may be.
    race.not_sent(Purpose::Failover);
    assert_eq!(race.step(at(50)), Step::Wait(None));
    race.silent(0, Some(Silence::Unsent));
    assert_eq!(race.step(at(100)), Step::Send(Purpose::Failover));
    assert!(race.stands_in());
    race.failed(0, Failure::Lost);
    race.sent(Purpose::Failover, at(100));
    assert_eq!(race.step(at(101)), Step::Wait(None));
}

#[test]
fn replacements_are_bounded_and_do_not_use_up_the_failovers() {
    let mut race = once(Shape::Single);
    for copy in 0..2 {
        race.failed(copy, Failure::Lost);
        assert_eq!((race.step(at(1)), race.stands_in()), (Step::Send(Purpose::Failover), true));
        race.sent(Purpose::Failover, at(1));
    }
    race.failed(2, Failure::Elsewhere);
    assert_eq!((race.step(at(1)), race.stands_in()), (Step::Send(Purpose::Failover), false), "a server that is there refused it");
    race.sent(Purpose::Failover, at(1));
    race.failed(3, Failure::Lost);
    assert_eq!(race.step(at(1)), Step::Lost(3));
}

#[derive(Clone, Debug)]
enum Event {
    Advance(u64),
    Started(prop::sample::Index),
    Answered(prop::sample::Index),
    Dropped(prop::sample::Index),
    Failed(prop::sample::Index, Failure),
    Silent(prop::sample::Index, Option<Silence>),
    Refuse,
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<prop::sample::Index>;
    let failure = prop_oneof![
        Just(Failure::Lost),
        Just(Failure::Elsewhere),
        Just(Failure::Untied),
        Just(Failure::Here),
        Just(Failure::Everywhere)
    ];
    prop_oneof![
        (0u64..20).prop_map(Event::Advance),
        index().prop_map(Event::Started),
        index().prop_map(Event::Answered),
        index().prop_map(Event::Dropped),
        (index(), failure).prop_map(|(copy, failure)| Event::Failed(copy, failure)),
        (index(), prop::option::of(prop_oneof![Just(Silence::Sent), Just(Silence::Unsent)]))
            .prop_map(|(copy, silence)| Event::Silent(copy, silence)),
        Just(Event::Refuse),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Single),
        (0u64..10).prop_map(|delay| Shape::Hedged { delay: delay as u32 * MS }),
        (0u64..10, prop::option::of(0u64..10)).prop_map(|(stagger, hedge)| Shape::Tied {
            stagger: stagger as u32 * MS,
            then_hedge: hedge.map(|hedge| hedge as u32 * MS),
        }),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_the_call_ends_once_no_copy_is_under_way_and_sends_are_bounded(
        shape in shape(), copies in 2u8..=4, failovers in 0u8..3, replacements in 0u8..3, repeatable in any::<bool>(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut race = Race::new(Plan { shape, copies, failovers, replacements, repeatable });
        let mut now = at(0);
        let mut refuse = false;
        let mut over = None;
        for event in events.into_iter().map(Some).chain([None]) {
            let sent = race.copies().len();
            match event {
                Some(Event::Advance(millis)) => now += millis as u32 * MS,
                Some(Event::Refuse) => refuse = true,
                Some(Event::Started(copy)) if sent > 0 => race.started(copy.index(sent), now),
                Some(Event::Answered(copy)) if sent > 0 => race.answered(copy.index(sent)),
                Some(Event::Dropped(copy)) if sent > 0 => race.dropped(copy.index(sent), now),
                Some(Event::Silent(copy, silence)) if sent > 0 => race.silent(copy.index(sent), silence),
                Some(Event::Failed(copy, failure)) if sent > 0 => race.failed(copy.index(sent), failure),
                Some(_) => {}
                // The end of all: no copy stays under way for ever.
                None => (0..sent).for_each(|copy| race.failed(copy, Failure::Here)),
            }
            loop {
                match race.step(now) {
                    Step::Send(purpose) if refuse && purpose != Purpose::First => race.not_sent(purpose),
                    Step::Send(purpose) => { race.sent(purpose, now); }
                    Step::Wait(due) => {
                        prop_assert!(due.is_none_or(|due| due > now));
                        prop_assert!(race.copies().iter().any(|copy| copy.state == State::Live), "waits for nothing");
                        break;
                    }
                    end => {
                        over.get_or_insert(end);
                        break;
                    }
                }
                // Each is under way at most once, and none is sent after the end.
                prop_assert!(over.is_none(), "a copy sent after the end");
            }
            // One may be a hedge, and one is the call without its tie.
            prop_assert!(race.copies().len() <= usize::from(copies + failovers + replacements) + 2);
            if matches!(over, Some(Step::Won(_)) | Some(Step::Lost(_))) {
                break;
            }
        }
        if over.is_none() {
            let live = race.copies().len();
            (0..live).for_each(|copy| race.failed(copy, Failure::Here));
            while let Step::Send(purpose) = race.step(now) {
                race.not_sent(purpose);
            }
            prop_assert!(matches!(race.step(now), Step::Won(_) | Step::Lost(_) | Step::AllDropped));
        }
    }
}
