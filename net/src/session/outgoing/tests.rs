use super::*;

const ALL: Unscheduled = Unscheduled { most: 1000, shift: 0 };

fn push(outgoing: &mut Outgoing, bytes: usize) -> MessageId {
    let message = Message { class: Class::Normal, head: &[], body: Payload::from(vec![0; bytes]), token: 0 };
    outgoing.push(message, ALL, true, &EndpointConfig::default()).unwrap()
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
        assert!(outgoing.small[index].len() + outgoing.large[index].len() < 100, "{bytes} bytes");
        let (_, part) = outgoing.emit_data(false, &mut [0; 200]).expect("one message is left");
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
            let listed = outgoing.small.iter().map(VecDeque::len).chain(outgoing.large.iter().map(Vec::len)).sum::<usize>();
            assert_eq!(outgoing.most_urgent().is_some(), listed > 0, "{bytes} bytes");
        }
    }
}
