//! What errors do, and do not do.

use std::time::Duration;

use tautline_rpc::{CallError, Class, Code, Fate as CallFate, NodeConfig, Status};
use tautline_tied::{Budget, Choice, Config, Delay, Mode, Outcome, Policy, Purpose, Stagger, TiedError, TiedOptions};

use crate::world::{Fate, MS, Mood, ONCE, US, WORK, World, link};

fn hedged(delay: Duration) -> Policy {
    Policy::Hedged { delay: Delay::Fixed(delay) }
}

fn ordered(servers: usize, policy: Policy) -> World {
    World::with(1, servers, link(10 * US), NodeConfig::default(), Config { choice: Choice::Ordered, ..Config::uniform(policy) })
}

#[test]
fn an_error_of_the_original_does_not_beat_a_live_hedge_nor_the_other_way_round() {
    for (failing, answering) in [(1, 2), (2, 1)] {
        let mut world = ordered(2, hedged(2 * MS));
        world.mood(failing, Mood::Fails(Code::Internal));
        world.mood(answering, Mood::Slow(3));
        let call = world.call(3 * MS, TiedOptions::new());
        assert_eq!(world.answered(call), answering);
        assert_eq!(world.story(call).len(), 2);
    }
}

#[test]
fn the_first_to_finish_does_not_win_if_it_failed() {
    let mut world = ordered(2, hedged(MS));
    world.mood(1, Mood::Answers(Status::new(Code::Unavailable, "not now")));
    world.mood(2, Mood::Slow(2));
    let call = world.call(5 * MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
}

#[test]
fn an_error_that_every_replica_would_repeat_is_returned_at_once_and_asked_of_one() {
    for policy in [Policy::None, hedged(10 * MS), Policy::tied()] {
        let mut world = ordered(3, policy);
        for server in 1..=3 {
            world.mood(server, Mood::Fails(Code::InvalidArgument));
        }
        let begun = world.now();
        let call = world.call(MS, TiedOptions::new());
        let error = world.failed(call);
        assert!(
            matches!(&error, TiedError::Call { error: CallError::Status(status), copies: 1, .. } if status.code == Code::InvalidArgument)
        );
        assert!(world.now().since(begun) < 3 * MS);
        world.run_for(100 * MS);
        assert_eq!(world.story(call), [(1, Fate::Finished)]);
        world.assert_at_rest();
    }
}

#[test]
fn an_error_that_every_replica_would_repeat_does_not_wait_for_a_stalled_copy() {
    let mut world = ordered(2, hedged(5 * MS));
    world.mood(1, Mood::Stalls);
    world.mood(2, Mood::Fails(Code::NotFound));
    let begun = world.now();
    let call = world.call(MS, TiedOptions::new());
    let error = world.failed(call);
    assert!(matches!(error, TiedError::Call { error: CallError::Status(_), copies: 2, .. }), "{error}");
    assert!(world.now().since(begun) < 10 * MS);
    world.run_for(20 * MS);
    world.assert_at_rest();
}

#[test]
fn an_unknown_method_is_asked_of_one_replica() {
    let mut world = ordered(3, hedged(10 * MS));
    let future = world.replicas().call(tautline_rpc::Method::named("test/None"), &b"x"[..], &TiedOptions::new());
    let result = std::rc::Rc::new(std::cell::RefCell::new(None));
    let place = result.clone();
    world.local(0).spawn(async move { *place.borrow_mut() = Some(future.await) }).unwrap();
    world.run_until(|_| result.borrow().is_some());
    let error = result.borrow_mut().take().unwrap().unwrap_err();
    assert!(matches!(error, TiedError::Call { error: CallError::UnknownMethod(_), copies: 1, .. }), "{error}");
}

#[test]
fn when_all_copies_fail_the_error_is_of_the_one_that_got_furthest() {
    let mut world = ordered(2, hedged(MS));
    world.mood(1, Mood::Fails(Code::Internal));
    world.kill(2);
    let call = world.call(20 * MS, TiedOptions::new());
    let error = world.failed(call);
    assert_eq!(error.fate(), CallFate::Executed, "{error}");
    world.run_for(100 * MS);
    world.assert_at_rest();
}

#[test]
fn pushback_sends_the_call_to_another_replica_at_once_and_the_asking_server_is_left_alone() {
    // Each server holds one request, that which it runs.
    let node = NodeConfig { queue_limits: [1; 4], ..NodeConfig::default() };
    for policy in [Policy::None, hedged(100 * MS), Policy::tied()] {
        let config = Config { choice: Choice::Ordered, ..Config::uniform(policy) };
        let mut world = World::with(1, 2, link(10 * US), node.clone(), config);
        world.occupy(1, 50 * MS);
        let begun = world.now();
        let call = world.call(MS, TiedOptions::new());
        assert_eq!(world.answered(call), 2, "{policy:?}");
        assert!(world.now().since(begun) < 5 * MS, "{policy:?}: {:?}", world.now().since(begun));
        let pushed = world.metrics(1, |metrics| metrics.prometheus().contains("overloaded"));
        assert!(pushed);
        world.run_for(100 * MS);
        world.assert_at_rest();
    }
}

#[test]
fn a_rest_that_a_server_asked_for_is_respected() {
    let mut world = ordered(2, Policy::None);
    world.mood(1, Mood::Answers(Status::new(Code::Unavailable, "later").retry_after(20 * MS)));
    world.method = ONCE;
    let first = world.call(MS, TiedOptions::new());
    // Executed, and it may not be again: the error is the caller's.
    assert!(matches!(world.failed(first), TiedError::Call { error: CallError::Status(_), .. }));
    world.mood(1, Mood::Works);
    let resting = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(resting), 2);
    world.run_for(20 * MS);
    let rested = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(rested), 1);
}

#[test]
fn a_call_that_may_have_been_executed_is_repeated_only_if_its_method_is_idempotent() {
    let hedged = hedged(Duration::from_secs(100));
    for (policy, repeats) in [(Policy::None, false), (Policy::None, true), (hedged, false), (hedged, true)] {
        let mut world = ordered(2, policy);
        world.method = if repeats { WORK } else { ONCE };
        let call = world.call(50 * MS, TiedOptions::new());
        world.run_until(|world| world.story(call).len() == 1);
        world.kill(1);
        let (result, _) = world.finish(call);
        match result {
            Ok(answer) => assert!(repeats && answer.replica == 1, "{policy:?}"),
            Err(error) => assert!(!repeats && error.fate() == CallFate::MaybeExecuted, "{policy:?}: {error}"),
        }
    }
}

#[test]
fn a_replica_that_is_down_is_gone_around() {
    let mut world = ordered(3, Policy::None);
    world.kill(1);
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
    assert_eq!(world.replicas().metrics().class(Class::Normal).sent_as(Purpose::Failover), 1);
    // It rests now; once it is back it serves again.
    let begun = world.now();
    let next = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(next), 2);
    assert!(world.now().since(begun) < 5 * MS);
    world.start(1);
    world.run_for(Duration::from_secs(2));
    let back = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(back), 1);
}

#[test]
fn when_every_replica_is_down_the_call_ends_with_what_is_known() {
    for policy in [Policy::None, hedged(5 * MS), Policy::tied()] {
        let mut world = ordered(3, policy);
        (1..=3).for_each(|server| world.kill(server));
        let call = world.call(MS, TiedOptions::new());
        let error = world.failed(call);
        assert!(error.fate() <= CallFate::NotSent, "{policy:?}: {error}");
        world.assert_at_rest();
    }
}

#[test]
fn the_deadline_ends_the_call_once_with_all_its_copies() {
    for policy in [Policy::None, hedged(5 * MS), Policy::tied()] {
        let mut world = ordered(2, policy);
        (1..=2).for_each(|server| world.mood(server, Mood::Stalls));
        let begun = world.now();
        let call = world.call(MS, TiedOptions::new().deadline(30 * MS));
        let error = world.failed(call);
        assert!(matches!(error, TiedError::Call { error: CallError::DeadlineExceeded { .. }, .. }), "{error}");
        assert!((30 * MS..31 * MS).contains(&world.now().since(begun)));
        world.run_for(100 * MS);
        assert!(world.story(call).iter().all(|(_, fate)| *fate == Fate::Stopped), "{:?}", world.story(call));
        world.assert_at_rest();
    }
}

#[test]
fn a_deadline_in_the_past_ends_the_call_without_an_execution() {
    let mut world = ordered(2, Policy::tied());
    let expires = Some(tautline_net::clock::Time::from_nanos(1));
    let call = world.call(MS, TiedOptions { expires, ..TiedOptions::new() });
    let error = world.failed(call);
    assert!(matches!(error, TiedError::Call { error: CallError::DeadlineExceeded { .. }, .. }), "{error}");
    world.run_for(50 * MS);
    assert!(world.story(call).is_empty());
    world.assert_at_rest();
}

#[test]
fn a_dropped_call_cancels_its_copies_wherever_they_are() {
    let policy = Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Fixed(100 * US), then_hedge: Some(Delay::Fixed(2 * MS)) };
    let mut world = ordered(3, policy);
    world.mood(1, Mood::Stalls);
    world.occupy(2, 20 * MS);
    let local = world.local(0);
    let future = world.replicas().call(crate::world::WORK, vec![7u8; 16], &TiedOptions::new());
    let sleep = local.sleep(10 * MS);
    let task = async move {
        let mut future = Box::pin(future);
        let mut sleep = Box::pin(sleep);
        std::future::poll_fn(move |cx| {
            let _ = future.as_mut().poll(cx);
            sleep.as_mut().poll(cx)
        })
        .await;
    };
    local.spawn(task).unwrap();
    world.run_for(100 * MS);
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.calls, metrics.abandoned, metrics.answered), (1, 1, 0));
    assert!(metrics.extra_copies() >= 1);
    world.assert_at_rest();
}

#[test]
fn the_copies_of_a_client_that_died_leave_nothing_at_the_servers() {
    let mut world = ordered(2, Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Fixed(100 * US), then_hedge: None });
    let other = world.host("other", false);
    let names = world.allowed.clone();
    let theirs = tautline_tied::Replicas::over(&world.local(other), names, Policy::tied()).unwrap();
    world.occupy(1, Duration::from_secs(20));
    world.occupy(2, Duration::from_secs(20));
    for _ in 0..10 {
        world.call_by(other, &theirs, MS, TiedOptions::new());
    }
    world.run_for(5 * MS);
    assert!(world.ties(1).copies + world.ties(2).copies >= 10);
    world.kill(other);
    world.run_for(Duration::from_secs(15));
    assert_eq!((world.ties(1).copies, world.ties(2).copies), (0, 0), "kept for a client that is gone");
    world.run_for(Duration::from_secs(10));
    world.assert_at_rest();
}

#[test]
fn sends_of_one_call_are_bounded_however_many_replicas_refuse_it() {
    for policy in [Policy::None, hedged(50 * MS), Policy::tied()] {
        let mut world = ordered(29, policy);
        (1..=29).for_each(|server| world.mood(server, Mood::Fails(Code::Unavailable)));
        let call = world.call(MS, TiedOptions::new());
        let error = world.failed(call);
        assert!(matches!(error, TiedError::Call { copies, .. } if copies <= 4), "{error}");
        assert!(world.story(call).len() <= 4);
        world.run_for(100 * MS);
        world.assert_at_rest();
    }
}

fn tied() -> Policy {
    Policy::Tied { mode: Mode::Cancel, stagger: Stagger::Fixed(100 * US), then_hedge: None }
}

#[test]
fn a_handler_that_says_cancelled_does_not_pass_for_its_tie() {
    let mut world = ordered(2, tied());
    world.mood(1, Mood::Fails(Code::Cancelled));
    let call = world.call(MS, TiedOptions::new());
    let TiedError::Call { error, .. } = world.failed(call) else { panic!("dropped in favour of what?") };
    assert_eq!(error, CallError::Status(Status::new(Code::Cancelled, "as told")));
    assert_eq!(error.fate(), CallFate::Executed);
    assert_eq!(world.story(call), [(1, Fate::Finished)], "it was executed: to send it again is not the tie's to decide");
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.failed, metrics.cancelled_queued, metrics.cancelled_running), (1, 0, 0));
    world.run_for(50 * MS);
    world.assert_at_rest();
}

#[test]
fn a_winner_that_says_cancelled_gives_the_call_back_to_the_copy_that_it_had_dropped() {
    let mut world = ordered(2, tied());
    world.occupy(1, 5 * MS);
    world.occupy(2, 10 * MS);
    world.mood(1, Mood::Fails(Code::Cancelled));
    let call = world.call(MS, TiedOptions::new());
    assert_eq!(world.answered(call), 2);
    assert_eq!(world.story(call), [(1, Fate::Finished), (2, Fate::Finished)]);
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.cancelled_queued, metrics.cancelled_running), (1, 0), "the winner was not cancelled");
    assert_eq!(metrics.sent_as(Purpose::Failover), 1);
}

#[test]
fn a_stopped_copy_whose_end_overtook_its_start_notice_is_paid_for() {
    let config = Config { choice: Choice::Ordered, budget: Budget { per_thousand: 0, burst: 1 }, ..Config::uniform(tied()) };
    let mut world = World::with(1, 2, link(10 * US), NodeConfig::default(), config);
    // A first tie opens the session between the servers.
    world.occupy(1, 5 * MS);
    world.occupy(2, 10 * MS);
    let call = world.call(MS, TiedOptions::new());
    world.answered(call);
    world.run_for(20 * MS);
    world.occupy(1, 5 * MS);
    world.occupy(2, 5 * MS);
    // Far enough apart that both start their copies; and the word of the second one's start is lost, and not yet repeated when it ends.
    world.network.link("s1", "s2", link(2 * MS)).unwrap();
    let call = world.call(50 * MS, TiedOptions::new());
    world.run_for(MS);
    world.network.partition("s2", "client").unwrap();
    world.run_until(|world| world.executions(call).len() == 2);
    world.run_for(1990 * US);
    world.network.heal("s2", "client").unwrap();
    world.run_for(20 * MS);
    assert_eq!(world.ties(2).counters.cancels_taken.of(Outcome::Stopped), 1);
    assert!(!world.is_over(call));
    assert_eq!(world.replicas().budget_left(), 0, "it was executed in part, whether or not anybody heard of the start");
    assert_eq!(world.answered(call), 1);
    assert_eq!(world.story(call), [(1, Fate::Finished), (2, Fate::Stopped)]);
    assert_eq!(world.replicas().budget_left(), 0, "given back at the call's end");
    let metrics = world.replicas().metrics();
    let metrics = metrics.class(Class::Normal);
    assert_eq!((metrics.cancelled_running, metrics.double_starts), (1, 1));
}
