//! Clocks of simulated hosts: they run at one speed, that of the network's clock, and show different times.

use std::time::Duration;

use tautline_net::clock::{Clock, Time};

/// The clocks of one world.
#[derive(Debug)]
pub struct Clocks {
    /// The network's.
    world: Clock,
    hosts: Vec<Host>,
}

#[derive(Debug)]
struct Host {
    clock: Clock,
    /// By how much it is ahead of the world's.
    ahead: Duration,
    /// It is the world's clock itself.
    shared: bool,
}

impl Clocks {
    /// No hosts yet.
    pub fn new(world: &Clock) -> Clocks {
        Clocks { world: world.clone(), hosts: Vec::new() }
    }

    /// The clock of the next host: the world's, or one that is ahead of it.
    pub fn add(&mut self, ahead: Option<Duration>) -> Clock {
        let clock = match ahead {
            None => self.world.clone(),
            Some(ahead) => Clock::virtual_at(self.world.now() + ahead),
        };
        self.hosts.push(Host { clock: clock.clone(), ahead: ahead.unwrap_or_default(), shared: ahead.is_none() });
        clock
    }

    /// A host's clock.
    pub fn of(&self, host: usize) -> Clock {
        self.hosts[host].clock.clone()
    }

    /// Moves a host's clock ahead of where it should be, as a suspended machine's is when it wakes up.
    pub fn jump(&mut self, host: usize, by: Duration) {
        let host = &mut self.hosts[host];
        assert!(!host.shared, "the world's own clock does not jump");
        host.ahead += by;
        self.align();
    }

    /// After the world's clock, or any host's, was moved: moves the others along.
    pub fn align(&self) {
        let now = self.hosts.iter().map(|host| back(host.clock.now(), host.ahead)).fold(self.world.now(), Time::max);
        self.world.advance_to(now);
        self.hosts.iter().for_each(|host| host.clock.advance_to(now + host.ahead));
    }

    /// When the world's clock shows what a host's clock calls `time`.
    pub fn in_the_world(&self, host: usize, time: Time) -> Time {
        if time == Time::NEVER { time } else { back(time, self.hosts[host].ahead) }
    }
}

fn back(time: Time, by: Duration) -> Time {
    Time::from_nanos(time.as_nanos().saturating_sub(by.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn clocks_apart_run_at_one_speed_whichever_is_moved() {
        let world = Clock::virtual_at(Time::ZERO);
        let mut clocks = Clocks::new(&world);
        let (same, apart) = (clocks.add(None), clocks.add(Some(5 * SECOND)));
        assert_eq!((same.now(), apart.now()), (Time::ZERO, Time::ZERO + 5 * SECOND));
        world.advance_to(Time::ZERO + SECOND);
        clocks.align();
        assert_eq!(apart.now(), Time::ZERO + 6 * SECOND);
        apart.advance_to(Time::ZERO + 8 * SECOND);
        clocks.align();
        assert_eq!((world.now(), same.now()), (Time::ZERO + 3 * SECOND, Time::ZERO + 3 * SECOND));
        clocks.jump(1, 100 * SECOND);
        assert_eq!((world.now(), apart.now()), (Time::ZERO + 3 * SECOND, Time::ZERO + 108 * SECOND));
        assert_eq!(clocks.in_the_world(1, Time::ZERO + 110 * SECOND), Time::ZERO + 5 * SECOND);
    }
}
