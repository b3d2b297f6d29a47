//! Hooks: admission, start and end, control messages, and what a hook can do to others' entries.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_rpc::*;

use crate::world::*;

pub const MS: Duration = Duration::from_millis(1);
pub const TAG: u8 = 9;

/// A hook that logs what it sees, obeys commands in extensions, and cancels or demotes by name when another node says so.
#[derive(Default)]
struct Recorder {
    log: Log,
    entries: HashMap<String, Entry>,
    names: HashMap<Entry, String>,
}

impl Recorder {
    fn say(&self, text: String) {
        self.log.borrow_mut().push(text);
    }
}

impl Hook for Recorder {
    fn admit(&mut self, entry: Entry, extension: &[u8], from: Origin, cx: &mut HookContext<'_>) -> Admit {
        let name = String::from_utf8_lossy(extension).into_owned();
        self.say(format!("admit {name} from {} as {}", from.address, cx.class(entry).unwrap()));
        self.entries.insert(name.clone(), entry);
        self.names.insert(entry, name.clone());
        match name.as_str() {
            "refuse" => Admit::Cancel(Status::new(Code::FailedPrecondition, "refused by the hook")),
            "last" => Admit::Demote,
            _ => Admit::Run,
        }
    }

    fn started(&mut self, entry: Entry, _at: Time, cx: &mut HookContext<'_>) {
        let name = self.names[&entry].clone();
        self.say(format!("started {name}"));
        // As a tie does: the winner tells the other server.
        if let Some(other) = name.strip_prefix("tell ") {
            let (to, what) = other.split_once(' ').unwrap();
            cx.send_control(to.to_address().unwrap(), what.as_bytes()).unwrap();
        }
    }

    fn finished(&mut self, entry: Entry, _at: Time, _cx: &mut HookContext<'_>) {
        self.say(format!("finished {}", self.names[&entry]));
    }

    fn control(&mut self, from: Origin, bytes: &[u8], cx: &mut HookContext<'_>) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (what, name) = text.split_once(':').unwrap();
        let entry = self.entries[name];
        let outcome = match what {
            "cancel" => format!("{:?}", cx.cancel(entry)),
            "drop" => match cx.cancel_queued(entry) {
                QueuedCancel::Dropped { at } => {
                    assert_eq!(at, cx.now());
                    "Dropped".to_owned()
                }
                other => format!("{other:?}"),
            },
            "demote" => format!("{}", cx.demote(entry, Class::Background)),
            _ => unreachable!(),
        };
        self.say(format!("{text} by {}: {outcome}", from.address));
    }
}

/// A server whose handlers take a millisecond each on its poller, with a recording hook; and a client.
fn hooked() -> (World, usize, usize, Log, Arc<Mutex<Vec<String>>>) {
    let (mut world, server, client) = World::pair(NodeConfig::default());
    let ran = Arc::new(Mutex::new(Vec::new()));
    let (clock, log) = (world.clock.clone(), ran.clone());
    let service = Service::workers(move |request| {
        clock.advance_to(clock.now() + MS);
        log.lock().unwrap().push(String::from_utf8_lossy(request.payload()).into_owned());
        Ok(Reply::empty())
    });
    world.node(server).serve(SLOW, service).unwrap();
    let recorder = Recorder::default();
    let log = recorder.log.clone();
    world.node(server).hook(TAG, recorder).unwrap();
    world.node(client).serve(ECHO, echo()).unwrap();
    assert!(world.call(server, client, ECHO, "connect", CallOptions::new()).is_ok());
    (world, server, client, log, ran)
}

pub fn with(extension: &str) -> CallOptions {
    CallOptions::new().extension(Extension::new(TAG, extension.as_bytes().to_vec()).unwrap())
}

#[test]
fn a_hook_sees_an_entry_admitted_started_and_finished_once_each() {
    let (mut world, server, client, log, _) = hooked();
    assert!(world.call(client, server, SLOW, "x", with("a")).is_ok());
    assert_eq!(*log.borrow(), ["admit a from n1 as normal", "started a", "finished a"]);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_hook_can_refuse_with_its_own_status() {
    let (mut world, server, client, log, ran) = hooked();
    let error = world.call(client, server, SLOW, "x", with("refuse")).unwrap_err();
    assert_eq!(error, CallError::Refused(Status::new(Code::FailedPrecondition, "refused by the hook")));
    assert_eq!(error.fate(), Fate::NotExecuted);
    assert_eq!(*log.borrow(), ["admit refuse from n1 as normal"]);
    assert!(ran.lock().unwrap().is_empty());
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_hook_sees_no_request_without_its_extension_and_tags_are_taken_once() {
    let (mut world, server, client, log, _) = hooked();
    assert!(world.call(client, server, SLOW, "x", CallOptions::new()).is_ok());
    assert!(log.borrow().is_empty());
    assert_eq!(world.node(server).hook(TAG, Recorder::default()), Err(ServeError::HookTaken(TAG)));
    assert_eq!(world.node(server).hook(0, Recorder::default()), Err(ServeError::HookZero));
}

#[test]
fn a_winners_word_cancels_the_queued_loser_at_the_other_server() {
    let (mut world, server, client, log, ran) = hooked();
    let other = world.add(NodeConfig::default());
    let recorder = Recorder::default();
    world.node(other).hook(TAG, recorder).unwrap();
    world.node(other).serve(SLOW, Service::workers(|_| Ok(Reply::empty()))).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, server));
    // Each runs for a millisecond: time for two handshakes and a word.
    let others: Vec<_> = (0..40).map(|_| local.call(peer, SLOW, "before", CallOptions::new())).collect();
    let loser = local.call(peer, SLOW, "loser", with("loser"));
    world.run(Duration::from_micros(30));
    let winner = local.call(world.peer(client, other), SLOW, "winner", with("tell sim://n0 cancel:loser"));
    assert!(world.finish(winner).is_ok());
    assert_eq!(world.finish(loser).unwrap_err(), CallError::Cancelled { fate: Fate::NotExecuted });
    for call in others {
        world.finish(call).unwrap();
    }
    assert!(!ran.lock().unwrap().contains(&"loser".to_owned()));
    assert_eq!(log.borrow()[1..], ["cancel:loser by n2: Dropped", "finished loser"]);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_demoted_entry_lets_others_go_first() {
    let (mut world, server, client, log, ran) = hooked();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let calls: Vec<_> = std::iter::repeat_n("before", 10)
        .chain(["demoted", "bulk", "last", "more"])
        .map(|name| {
            let options = with(name).class(if name == "bulk" { Class::Bulk } else { Class::Normal });
            local.call(peer, SLOW, name, options)
        })
        .collect();
    world.run(Duration::from_micros(25));
    // From the client's own node: any node may carry a hook's message.
    local.send_control(peer, TAG, b"demote:demoted").unwrap();
    for call in calls {
        world.finish(call).unwrap();
    }
    let ran = ran.lock().unwrap();
    assert_eq!(ran[10..], ["more", "bulk", "last", "demoted"], "{ran:?}");
    assert!(log.borrow().iter().any(|line| line == "demote:demoted by n1: true"), "{:?}", log.borrow());
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn cancelling_a_running_entry_fires_its_token_and_a_finished_one_is_gone() {
    let (mut world, server, client, log, _) = hooked();
    let dropped = Log::default();
    let service = slow(world.local(server), 20 * MS, &dropped);
    world.node(server).serve(ECHO, service).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let call = local.call(peer, ECHO, "x", with("a"));
    world.run(MS);
    local.send_control(peer, TAG, b"cancel:a").unwrap();
    assert_eq!(world.finish(call).unwrap_err(), CallError::Cancelled { fate: Fate::MaybeExecuted });
    local.send_control(peer, TAG, b"cancel:a").unwrap();
    local.send_control(peer, TAG, b"demote:a").unwrap();
    world.run(MS);
    assert_eq!(*dropped.borrow(), ["start x", "drop x"]);
    let log = log.borrow();
    assert_eq!(log[1..3], ["started a", "cancel:a by n1: TokenFired"]);
    assert_eq!(log[3..], ["finished a", "cancel:a by n1: Gone", "demote:a by n1: false"]);
    world.assert_at_rest();
}

#[test]
fn a_hook_can_cancel_what_waits_and_leave_alone_what_runs() {
    let (mut world, server, client) = World::pair(NodeConfig { concurrency: 1, ..NodeConfig::default() });
    let recorder = Recorder::default();
    let (log, ran) = (recorder.log.clone(), Log::default());
    world.node(server).hook(TAG, recorder).unwrap();
    let service = slow(world.local(server), 20 * MS, &ran);
    world.node(server).serve(SLOW, service).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let [first, second] = ["first", "second"].map(|name| local.call(peer, SLOW, name, with(name)));
    world.run(5 * MS);
    for name in ["first", "second", "second"] {
        local.send_control(peer, TAG, format!("drop:{name}").as_bytes()).unwrap();
    }
    assert_eq!(world.finish(second).unwrap_err(), CallError::Cancelled { fate: Fate::NotExecuted });
    assert!(world.finish(first).is_ok());
    assert_eq!(*ran.borrow(), ["start first", "end first"]);
    let outcomes: Vec<_> = log.borrow().iter().filter_map(|line| Some(line.split_once("n1: ")?.1.to_owned())).collect();
    assert_eq!(outcomes, ["Started", "Dropped", "Gone"]);
    world.run(MS);
    world.assert_at_rest();
}

#[test]
fn a_hooked_call_that_its_caller_cancels_is_finished_for_the_hook() {
    let (mut world, server, client, log, _) = hooked();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let hog = local.call(peer, SLOW, "hog", CallOptions::new());
    let call = local.call(peer, SLOW, "x", with("a"));
    let more: Vec<_> = (0..3).map(|_| local.call(peer, SLOW, "more", CallOptions::new().class(Class::Interactive))).collect();
    world.run(Duration::from_micros(25));
    drop(call);
    for call in more.into_iter().chain([hog]) {
        world.finish(call).unwrap();
    }
    world.run(MS);
    assert_eq!(*log.borrow(), ["admit a from n1 as normal", "finished a"]);
    world.assert_at_rest();
}

#[test]
fn a_control_message_reaches_a_node_that_was_never_called() {
    let (mut world, _, client, _, _) = hooked();
    let third = world.add(NodeConfig::default());
    type Messages = Rc<RefCell<Vec<(Address, Vec<u8>)>>>;
    let seen = Messages::default();
    struct Listener(Messages);
    impl Hook for Listener {
        fn admit(&mut self, _: Entry, _: &[u8], _: Origin, _: &mut HookContext<'_>) -> Admit {
            Admit::Run
        }
        fn started(&mut self, _: Entry, _: Time, _: &mut HookContext<'_>) {}
        fn finished(&mut self, _: Entry, _: Time, _: &mut HookContext<'_>) {}
        fn control(&mut self, from: Origin, bytes: &[u8], _: &mut HookContext<'_>) {
            self.0.borrow_mut().push((from.address, bytes.to_vec()));
        }
    }
    world.node(third).hook(TAG, Listener(seen.clone())).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, third));
    local.send_control(peer, TAG, b"hello").unwrap();
    assert!(matches!(local.send_control(peer, TAG, &[0; 300]), Err(ControlError::TooLong { len: 300 })));
    world.run(MS);
    assert_eq!(*seen.borrow(), [("sim://n1".to_address().unwrap(), b"hello".to_vec())]);
}

#[test]
fn a_handlers_own_cancelled_is_a_status_unless_it_was_cancelled() {
    let (mut world, server, client, _, _) = hooked();
    let local = world.local(server);
    let service = Service::future(move |request| {
        let (token, local) = (request.cancellation().clone(), local.clone());
        let patient = &**request.payload() == b"patient";
        async move {
            if patient {
                token.cancelled().await;
            } else {
                local.sleep(MS).await;
            }
            Err(Status::new(Code::Cancelled, "says the handler"))
        }
    });
    world.node(server).serve(ECHO, service.finish_when_cancelled()).unwrap();
    let (local, peer) = (world.local(client), world.peer(client, server));
    let own = CallError::Status(Status::new(Code::Cancelled, "says the handler"));
    let by_itself = local.call(peer, ECHO, "x", with("a"));
    assert_eq!(world.finish(by_itself).unwrap_err(), own);
    let told = local.call(peer, ECHO, "patient", with("b"));
    world.run(MS);
    local.send_control(peer, TAG, b"cancel:b").unwrap();
    assert_eq!(world.finish(told).unwrap_err(), CallError::Cancelled { fate: Fate::MaybeExecuted });
    world.run(MS);
    world.assert_at_rest();
}
