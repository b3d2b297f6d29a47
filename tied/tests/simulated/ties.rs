//! What ties do.

use std::time::Duration;

use tautline_net::port::sim::Verdict;
use tautline_rpc::{Class, Code, NodeConfig, Status};
use tautline_tied::{
    Budget, Choice, Config, Delay, Mode, Outcome, Percentile, Policy, Purpose, Replicas, Settings, Stagger, TiedOptions,
};

use crate::world::{Fate, MS, Mood, ONCE, US, World, address, link};

fn tied(mode: Mode, stagger: Duration) -> Policy {
    Policy::Tied { mode, stagger: Stagger::Fixed(stagger), then_hedge: None }
}

/// Two servers; the first copy goes to `s1`.
fn pair(policy: Policy) -> World {
    World::with(1, 2, link(10 * US), NodeConfig::default(), Config { choice: Choice::Ordered, ..Config::uniform(policy) })
}

#[test]
fn the_queued_loser_is_dropped_by_the_other_server_and_never_runs() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    world.occupy(1, 5 * MS);
    world.occupy(2, 50 * MS);
    let begun = world.now();
    let call = world.call(2 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    assert!(world.now().since(begun) < 8 * MS);
    assert_eq!(world.story(call), [(1, Fate::Finished)]);
    let winner = world.ties(1);
    assert_eq!((winner.counters.cancels_sent, winner.counters.outcomes.of(Outcome::Dropped)), (1, 1));
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.calls, metrics.answered, metrics.extra_copies()), (1, 1, 1), "a logical call counts once");
    assert_eq!((metrics.cancelled_queued, metrics.cancelled_running, metrics.double_starts), (1, 0, 0));
    assert_eq!(metrics.won, [1, 0, 0, 0]);
    world.run_for(100 * MS);
    assert_eq!(world.story(call).len(), 1, "the loser ran after all");
    world.assert_at_rest();
}

#[test]
fn the_winners_server_measures_how_long_its_cancel_took() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    // A first tie opens the session between the servers, which the cancel waits for.
    for _ in 0..2 {
        world.occupy(1, 5 * MS);
        world.occupy(2, 20 * MS);
        let call = world.call(MS, TiedOptions::new());
        world.answered(call);
        world.run_for(100 * MS);
    }
    let ties = world.ties(1);
    assert_eq!(ties.cancel_round_trip.count(), 2);
    let quickest = ties.cancel_latency(0.0);
    assert!((98 * US / 10..13 * US).contains(&quickest), "over links of 10 us a cancel took {quickest:?}");
    assert!(ties.prometheus().contains("tautline_tie_outcomes_total{what=\"dropped\"} 2"));
}

#[test]
fn the_second_copy_wins_if_its_queue_is_shorter() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    world.occupy(1, 50 * MS);
    world.occupy(2, 5 * MS);
    let call = world.call(2 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
    assert_eq!(world.replicas().metrics().class(Class::Normal).won, [0, 1, 0, 0]);
    world.run_for(100 * MS);
    assert_eq!(world.story(call), [(2, Fate::Finished)]);
}

#[test]
fn a_start_notice_keeps_the_second_copy_from_being_sent() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    let first = world.call(2 * MS, TiedOptions::new());
    world.answered(first);
    let call = world.call(2 * MS, TiedOptions::new());
    let (result, _) = world.finish(call);
    assert_eq!(result.unwrap().copies, 1);
    let metrics = world.replicas().metrics();
    assert_eq!(metrics.class(Class::Normal).suppressed_by_start, 2);
    assert_eq!(world.ties(2).counters.admitted, 0);
}

#[test]
fn the_automatic_stagger_is_two_measured_delays() {
    let policy = Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Auto, then_hedge: None };
    let config = Config { choice: Choice::Ordered, ..Config::uniform(policy) };
    let mut world = World::with(1, 2, link(200 * US), NodeConfig::default(), config);
    for server in [1, 2] {
        world.occupy(server, 10 * MS);
    }
    world.run_for(20 * MS);
    world.occupy(1, 20 * MS);
    world.occupy(2, 20 * MS);
    let admitted = world.ties(2).counters.admitted;
    let begun = world.now();
    let call = world.call(MS, TiedOptions::new());
    world.run_until(|world| world.ties(2).counters.admitted > admitted);
    let after = world.now().since(begun);
    assert!((590 * US..690 * US).contains(&after), "two delays and one more on the way are 600 us, not {after:?}");
    world.answered(call);
}

#[test]
fn in_demote_mode_the_loser_waits_in_the_background_and_saves_a_call_whose_winner_stalls() {
    let mut world = pair(tied(Mode::Demote, 100 * US));
    world.occupy(1, 5 * MS);
    world.occupy(2, 10 * MS);
    world.mood(1, Mood::Stalls);
    let call = world.call(2 * MS, TiedOptions::new());
    // Another call that came later goes before the demoted copy.
    world.run_for(7 * MS);
    let later = world.call(2 * MS, TiedOptions::new().first(1).policy(Policy::None));
    assert_eq!(world.answered(later), 2);
    assert_eq!(world.answered(call), 2);
    let (late, early) = (world.executions(call)[1].at, world.executions(later)[0].at);
    assert!(early < late, "the demoted copy went first");
    assert_eq!(world.ties(1).counters.outcomes.of(Outcome::Demoted), 1);
    world.run_for(100 * MS);
    assert_eq!(world.story(call), [(1, Fate::Stopped), (2, Fate::Finished)], "the stalled copy is cancelled by the answer");
    world.assert_at_rest();
}

#[test]
fn a_cancel_that_overtakes_its_request_ends_it_on_arrival() {
    let mut world = pair(tied(Mode::Cancel, 10 * US));
    let warm = [world.occupy(1, MS), world.occupy(2, MS)];
    world.run_for(20 * MS);
    assert!(warm.iter().all(|call| world.story(*call).len() == 1));
    // The way from the client to the second server is long, that between the servers short.
    world.network.link_one_way("client", "s2", link(5 * MS)).unwrap();
    world.occupy(1, MS);
    let call = world.call(2 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    world.run_for(50 * MS);
    assert_eq!(world.story(call), [(1, Fate::Finished)]);
    assert_eq!(world.ties(2).counters.dropped_on_arrival + world.metrics(2, |metrics| metrics.node.cancelled_before_arrival), 1);
    assert_eq!(world.ties(1).counters.outcomes.of(Outcome::Unknown), 1);
    world.assert_at_rest();
}

#[test]
fn if_both_start_the_lower_rank_goes_on_and_the_other_is_stopped() {
    let mut world = pair(tied(Mode::Cancel, Duration::ZERO));
    let warm = [world.occupy(1, MS), world.occupy(2, MS)];
    world.run_for(20 * MS);
    assert!(warm.iter().all(|call| world.story(*call).len() == 1));
    let call = world.call(20 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    assert_eq!(world.story(call), [(1, Fate::Finished), (2, Fate::Stopped)]);
    let stopped = world.ties(2).counters;
    assert!(stopped.wasted < MS, "it ran for {:?}", stopped.wasted);
    assert_eq!(stopped.cancels_taken.of(Outcome::Stopped), 1);
    assert_eq!(world.ties(1).counters.cancels_taken.of(Outcome::Kept), 1);
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.double_starts, metrics.cancelled_running), (1, 1));
    world.run_for(100 * MS);
    world.assert_at_rest();
}

#[test]
fn a_lost_cancel_costs_work_and_never_the_answer() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    world.partition(1, 2);
    world.occupy(1, 5 * MS);
    world.occupy(2, 6 * MS);
    let call = world.call(20 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    world.run_for(200 * MS);
    assert_eq!(world.story(call), [(1, Fate::Finished), (2, Fate::Stopped)], "the answer's arrival ends the other copy");
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.double_starts, metrics.cancelled_running), (1, 1));
    assert!(metrics.wasted > 15 * MS);
    world.assert_at_rest();
}

#[test]
fn ties_whose_cancels_are_lost_spend_the_budget_and_others_give_it_back() {
    for (cut, expected) in [(false, 10), (true, 4)] {
        let config = Config {
            choice: Choice::Ordered,
            budget: Budget { per_thousand: 0, burst: 10 },
            ..Config::uniform(tied(Mode::Cancel, 100 * US))
        };
        let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
        if cut {
            world.partition(1, 2);
        }
        for _ in 0..6 {
            world.occupy(1, 5 * MS);
            world.occupy(2, 6 * MS);
            let call = world.call(20 * MS, TiedOptions::new());
            world.answered(call);
            world.run_for(50 * MS);
        }
        assert_eq!(world.replicas().budget_left(), expected, "servers cut off from each other: {cut}");
    }
}

#[test]
fn a_tied_copy_gives_its_token_back_as_soon_as_it_is_dropped() {
    let config = Config {
        choice: Choice::Ordered,
        budget: Budget { per_thousand: 0, burst: 1 },
        ..Config::uniform(tied(Mode::Cancel, 100 * US))
    };
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
    world.occupy(1, 5 * MS);
    world.occupy(2, 10 * MS);
    let call = world.call(100 * MS, TiedOptions::new());
    world.run_for(MS);
    assert_eq!(world.replicas().budget_left(), 0);
    world.run_until(|world| world.ties(1).counters.outcomes.of(Outcome::Dropped) == 1);
    world.run_for(MS);
    assert!(!world.is_over(call));
    assert_eq!(world.replicas().budget_left(), 1);
}

#[test]
fn a_tied_copy_of_which_nobody_says_that_it_was_dropped_is_paid_for() {
    let config = Config {
        choice: Choice::Ordered,
        budget: Budget { per_thousand: 0, burst: 1 },
        ..Config::uniform(tied(Mode::Cancel, 100 * US))
    };
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
    world.partition(1, 2);
    world.occupy(1, 5 * MS);
    world.occupy(2, 100 * MS);
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    assert_eq!(world.replicas().budget_left(), 0, "it may have been executed: the budget bounds work, not luck");
    assert_eq!(world.replicas().metrics().class(Class::Normal).cancelled_unknown, 1);
}

#[test]
fn a_replica_that_pushed_back_meanwhile_gets_no_tied_copy() {
    let mut world = pair(tied(Mode::Cancel, 5 * MS));
    world.occupy(1, 20 * MS);
    let call = world.call(MS, TiedOptions::new());
    world.run_for(MS);
    // Somebody else's call learns that the second server wants to be left alone.
    world.mood(2, Mood::Answers(Status::new(Code::Unavailable, "later").retry_after(50 * MS)));
    world.method = ONCE;
    let other = world.call(MS, TiedOptions::new().first(1).policy(Policy::None));
    world.failed(other);
    assert_eq!(world.answered(call), 1);
    assert_eq!(world.story(call).len(), 1);
    assert_eq!(world.replicas().metrics().class(Class::Normal).suppressed_by_replicas, 1);
}

#[test]
fn a_tie_that_stalls_after_its_start_is_rescued_by_a_hedge() {
    let policy = Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Fixed(100 * US), then_hedge: Some(Delay::Fixed(10 * MS)) };
    let mut world = pair(policy);
    world.mood(1, Mood::Stalls);
    let begun = world.now();
    let call = world.call(2 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
    assert!(world.now().since(begun) < 14 * MS);
    assert_eq!(world.replicas().metrics().class(Class::Normal).sent_as(Purpose::Hedge), 1);
    world.run_for(50 * MS);
    assert_eq!(world.story(call), [(1, Fate::Stopped), (2, Fate::Finished)]);
    world.assert_at_rest();
}

#[test]
fn the_hedge_after_a_tie_learns_its_delay_from_the_start_of_copies_and_not_from_their_queues() {
    let delay = Delay::Percentile(Percentile { least: US, ..Percentile::new(0.95) });
    let policy = Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Fixed(100 * US), then_hedge: Some(delay) };
    let mut world = pair(policy);
    for _ in 0..100 {
        world.occupy(1, 5 * MS);
        world.occupy(2, 5 * MS);
        let call = world.call(MS, TiedOptions::new());
        world.answered(call);
        world.run_for(10 * MS);
    }
    let delay = world.replicas().hedge_delay(Class::Normal).unwrap();
    assert!((MS * 9 / 10..MS * 12 / 10).contains(&delay), "work of 1 ms behind 5 ms of queue is hedged after {delay:?}");
}

#[test]
fn a_call_whose_tie_dropped_the_other_copy_survives_the_winners_death() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    world.occupy(1, 5 * MS);
    world.occupy(2, 10 * MS);
    let call = world.call(20 * MS, TiedOptions::new());
    world.run_until(|world| world.ties(1).counters.outcomes.of(Outcome::Dropped) == 1);
    world.kill(1);
    assert_eq!(world.answered(call), 2);
    let metrics = world.replicas().metrics();
    assert_eq!(metrics.class(Class::Normal).sent_as(Purpose::Failover), 1);
    world.run_for(50 * MS);
    world.assert_at_rest();
}

#[test]
fn of_three_copies_the_first_to_start_drops_both_others() {
    let settings = Settings { copies: 3, ..Settings::new(tied(Mode::Cancel, 100 * US)) };
    let config = Config { choice: Choice::Ordered, ..Config::default() };
    let mut world = World::with(1, 4, link(10 * US), NodeConfig::default(), config);
    for (server, work) in [(1, 30), (2, 5), (3, 40)] {
        world.occupy(server, work * MS);
    }
    let call = world.call(2 * MS, TiedOptions { settings: Some(settings), ..TiedOptions::new() });
    assert_eq!(world.answered(call), 2);
    world.run_for(100 * MS);
    assert_eq!(world.story(call), [(2, Fate::Finished)]);
    assert_eq!(world.ties(2).counters.outcomes.of(Outcome::Dropped), 2);
    assert_eq!(world.ties(4).counters.admitted, 0);
    world.assert_at_rest();
}

#[test]
fn a_server_tells_no_stranger_and_the_call_is_answered_all_the_same() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    let ties = world.hosts[1].ties.clone().unwrap();
    ties.disallow(&address("s2"));
    world.occupy(1, 5 * MS);
    world.occupy(2, 6 * MS);
    let call = world.call(20 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    assert_eq!((world.ties(1).counters.strangers, world.ties(1).counters.cancels_sent), (1, 0));
    // The other one's cancel is refused in turn.
    assert_eq!(world.ties(1).counters.refused, 1);
    world.run_for(100 * MS);
    world.assert_at_rest();
}

#[test]
fn two_clients_with_the_same_tie_ids_do_not_cancel_each_others_calls() {
    let policy = tied(Mode::Cancel, 100 * US);
    let config = Config { choice: Choice::Ordered, seed: Some(1), ..Config::uniform(policy) };
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config.clone());
    let other = world.host("other", false);
    let names = world.allowed.clone();
    let twin = Replicas::builder().replicas(names).config(config).build(&world.local(other)).unwrap();
    world.occupy(1, 5 * MS);
    world.occupy(2, 5 * MS);
    let (mine, theirs) = (world.call(2 * MS, TiedOptions::new()), world.call_by(other, &twin, 2 * MS, TiedOptions::new()));
    world.answered(mine);
    world.answered(theirs);
    assert_eq!(world.story(mine).iter().filter(|(_, fate)| *fate == Fate::Finished).count(), 1);
    assert_eq!(world.story(theirs).iter().filter(|(_, fate)| *fate == Fate::Finished).count(), 1);
    world.run_for(50 * MS);
    world.assert_at_rest();
}

#[test]
fn a_tie_over_one_replica_is_a_plain_call() {
    let mut world = World::new(1, 1, tied(Mode::Cancel, 100 * US));
    world.occupy(1, 5 * MS);
    let call = world.call(2 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 1);
    assert_eq!(world.ties(1).counters.admitted, 0);
}

#[test]
fn a_tie_that_can_not_be_read_runs_untied() {
    let mut world = pair(Policy::None);
    // A byte of the tie's version is changed on its way: the packet's checksum would notice, so the sender does it.
    world.network.set_filter(|_| Verdict::Pass);
    let local = world.local(0);
    let peer = local.peer(address("s1")).unwrap();
    let extension = tautline_rpc::Extension::new(tautline_tied::header::TAG, vec![9u8; 40]).unwrap();
    let mut request = 77u64.to_le_bytes().to_vec();
    request.extend_from_slice(&1000u64.to_le_bytes());
    let call = local.call(peer, crate::world::WORK, request, tautline_rpc::CallOptions::new().extension(extension));
    let result = std::rc::Rc::new(std::cell::RefCell::new(None));
    let place = result.clone();
    local.spawn(async move { *place.borrow_mut() = Some(call.await) }).unwrap();
    world.run_until(|_| result.borrow().is_some());
    assert_eq!(&*result.borrow_mut().take().unwrap().unwrap(), &crate::world::answer(77));
    assert_eq!(world.ties(1).counters.malformed, 1);
    world.assert_at_rest();
}

#[test]
fn a_copy_that_fails_at_once_does_not_end_a_tie() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    world.occupy(2, 10 * MS);
    world.occupy(1, 2 * MS);
    world.mood(1, Mood::Fails(Code::Unavailable));
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
    world.run_for(50 * MS);
    world.assert_at_rest();
}

/// Calls in fours; every one must be answered.
fn calls_in_fours(world: &mut World, calls: u32, options: TiedOptions) {
    for _ in 0..calls / 4 {
        let calls: Vec<u64> = (0..4).map(|_| world.call(MS, options)).collect();
        for call in calls {
            world.answered(call);
            assert_eq!(world.executions(call).len(), 1, "what was refused was executed");
        }
    }
}

#[test]
fn where_no_replica_takes_ties_every_call_is_answered_without_one() {
    // At once, so that the second copy is always out when the first one is refused.
    for stagger in [Duration::ZERO, 100 * US] {
        for failover in [true, false] {
            let settings = Settings { failover, ..Settings::new(tied(Mode::Cancel, stagger)) };
            let mut world = pair(settings.policy);
            world.restart(1, false);
            world.restart(2, false);
            let options = TiedOptions { settings: Some(settings), ..TiedOptions::new().deadline(Duration::from_secs(1)) };
            calls_in_fours(&mut world, 80, options);
            let metrics = world.replicas().metrics();
            let metrics = metrics.class(Class::Normal);
            assert_eq!((metrics.calls, metrics.answered), (80, 80));
            let untied = metrics.sent_as(Purpose::Untied);
            assert!((1..=8).contains(&untied), "{untied} ties were refused, and still tried");
            assert_eq!(world.replicas().budget_left(), 100, "a refusal costs no work");
            world.run_for(100 * MS);
            world.assert_at_rest();
        }
    }
}

#[test]
fn an_empty_budget_does_not_keep_a_call_from_being_sent_without_its_tie() {
    let config = Config { budget: Budget::NONE, choice: Choice::Ordered, ..Config::uniform(tied(Mode::Cancel, 100 * US)) };
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
    world.restart(1, false);
    world.restart(2, false);
    calls_in_fours(&mut world, 4, TiedOptions::new());
}

#[test]
fn replicas_that_learn_ties_are_tied_again_after_a_while() {
    let mut world = pair(tied(Mode::Cancel, 100 * US));
    world.restart(1, false);
    world.restart(2, false);
    calls_in_fours(&mut world, 4, TiedOptions::new());
    world.restart(1, true);
    world.restart(2, true);
    // The old sessions are found to be gone.
    world.run_for(Duration::from_secs(10));
    calls_in_fours(&mut world, 4, TiedOptions::new());
    assert_eq!(world.ties(1).counters.admitted, 0, "tied to what refused a tie just now");
    world.run_for(Duration::from_secs(31));
    calls_in_fours(&mut world, 4, TiedOptions::new());
    assert!(world.ties(1).counters.admitted > 0, "remembered for ever");
    let untied = world.replicas().metrics().class(Class::Normal).sent_as(Purpose::Untied);
    assert!(untied <= 4, "{untied}");
}

#[test]
fn a_replica_that_takes_no_ties_is_passed_over() {
    let config = Config { choice: Choice::Ordered, ..Config::uniform(tied(Mode::Cancel, 100 * US)) };
    let mut world = World::with(1, 3, link(10 * US), NodeConfig::default(), config);
    world.restart(1, false);
    let first = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(first), 2, "sent to a replica that had not refused it");
    for _ in 0..10 {
        let call = world.call(MS, TiedOptions::new());
        assert_eq!(world.answered(call), 2);
    }
    assert_eq!(world.ties(2).counters.admitted, 10);
    assert_eq!(world.metrics(1, |metrics| metrics.node.unsupported), 1);
    let plain = world.call(MS, TiedOptions::new().policy(Policy::None));
    assert_eq!(world.answered(plain), 1, "it serves everything else");
}
