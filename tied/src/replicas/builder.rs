//! Making a set of replicas: who is in it, and how it is to treat calls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tautline_net::class::Class;
use tautline_net::clock::Time;
use tautline_net::port::{Address, AddressError};
use tautline_rpc::{Local, Peer, ToAddress};

use super::{LEAST_SILENCE, Learnt, Replicas, Shared};
use crate::bucket::{Bucket, Budget};
use crate::choice::Standings;
use crate::header::same_place;
use crate::ids::TieIds;
use crate::metrics::ReplicasMetrics;
use crate::policy::{Choice, Config, Policy, Settings};

/// Why a set of replicas could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicasError {
    /// No replica was named.
    #[error("a set of replicas needs at least one: name it by its URL")]
    Empty,
    /// A replica was named twice: its copies would wait in one queue.
    #[error("{0} is named twice: each replica can be in the set once")]
    Twice(Address),
    /// The node's port reaches no such address: it is of another kind, or of IPv6 where the port is of IPv4.
    #[error("{replica} can't be reached from the node at {node}: {}", other_port(*replica, *node))]
    Unreachable {
        /// The replica's address.
        replica: Address,
        /// The node's.
        node: Address,
    },
    /// A replica's name does not parse, or is one that nobody can be called by: the wildcard that a server binds to, or port 0.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// What to do about an address that a node's port can't reach.
fn other_port(replica: Address, node: Address) -> &'static str {
    match (replica, node) {
        (Address::Local(_), Address::Inet(_)) => "it is of a port within one process; name the replica like udp://10.0.0.1:7000",
        (Address::Inet(_), Address::Local(_)) => "this port is of one process; build the node with a URL like udp://0.0.0.0:0",
        _ => "an IPv4 port reaches no IPv6 address; build the node with a URL like udp://[::]:0",
    }
}

thread_local! {
    /// Sets made on this thread without a name. A node belongs to one thread, so these are different at a node.
    static SETS: Cell<u64> = const { Cell::new(0) };
}

/// Makes [`Replicas`].
#[derive(Clone, Debug, Default)]
pub struct ReplicasBuilder {
    addresses: Vec<Result<Address, AddressError>>,
    config: Config,
    name: Option<String>,
}

impl ReplicasBuilder {
    /// Adds a replica, by URL or address.
    pub fn replica(mut self, replica: impl ToAddress) -> ReplicasBuilder {
        self.addresses.push(replica.to_address());
        self
    }

    /// Adds replicas.
    pub fn replicas<R: ToAddress>(mut self, replicas: impl IntoIterator<Item = R>) -> ReplicasBuilder {
        self.addresses.extend(replicas.into_iter().map(|replica| replica.to_address()));
        self
    }

    /// Names the set in its node's metrics, as the label `set`: another name for each set of a node. The default is a number, in
    /// the order in which the thread made its sets.
    pub fn name(mut self, name: impl Into<String>) -> ReplicasBuilder {
        self.name = Some(name.into());
        self
    }

    /// Sets the policy of every class.
    pub fn policy(mut self, policy: Policy) -> ReplicasBuilder {
        for settings in &mut self.config.classes {
            settings.policy = policy;
        }
        self
    }

    /// Sets how the calls of one class are treated.
    pub fn class(mut self, class: Class, settings: Settings) -> ReplicasBuilder {
        self.config.classes[class.index()] = settings;
        self
    }

    /// Sets what extra copies may cost.
    pub fn budget(mut self, budget: Budget) -> ReplicasBuilder {
        self.config.budget = budget;
        self
    }

    /// Sets which replica gets a call's first copy.
    pub fn choice(mut self, choice: Choice) -> ReplicasBuilder {
        self.config.choice = choice;
        self
    }

    /// Sets everything at once.
    pub fn config(mut self, config: Config) -> ReplicasBuilder {
        self.config = config;
        self
    }

    /// The set, over the node that `local` is of. What it counts joins the node's [metrics](Local::metrics).
    pub fn build(self, local: &Local) -> Result<Replicas, ReplicasError> {
        let addresses = self.addresses.into_iter().collect::<Result<Vec<Address>, AddressError>>()?;
        if addresses.is_empty() {
            return Err(ReplicasError::Empty);
        }
        for (place, address) in addresses.iter().enumerate() {
            if addresses[..place].iter().any(|before| same_place(before, address)) {
                return Err(ReplicasError::Twice(*address));
            }
        }
        let node = local.address();
        if let Some(replica) = addresses.iter().copied().find(|replica| !node.reaches(*replica)) {
            return Err(ReplicasError::Unreachable { replica, node });
        }
        let peers = addresses.iter().map(|address| local.peer(address)).collect::<Result<Vec<Peer>, AddressError>>()?;
        let (ids, rng) = match self.config.seed {
            Some(seed) => (TieIds::seeded(seed), fastrand::Rng::with_seed(seed)),
            None => (TieIds::random(), fastrand::Rng::new()),
        };
        let learnt = self.config.classes.map(|settings| Learnt::for_policy(settings.policy, self.config.estimator));
        let shared = Rc::new(Shared {
            local: local.clone(),
            name: self.name.unwrap_or_else(|| SETS.replace(SETS.get() + 1).to_string()),
            bucket: Bucket::new(self.config.budget),
            standings: RefCell::new(Standings::new(peers.len(), self.config.choice, self.config.rest, rng)),
            metrics: RefCell::new(ReplicasMetrics::new()),
            learnt: RefCell::new(learnt),
            notices: RefCell::default(),
            listened: Cell::new(Time::ZERO),
            ids: RefCell::new(ids),
            calls: Cell::new(0),
            peers,
            config: Config { silence: self.config.silence.max(LEAST_SILENCE), ..self.config },
        });
        local.metrics_source(&shared, |shared| shared.metrics.borrow().text(Some(&shared.name)));
        Ok(Replicas { shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tautline_rpc::Node;

    fn set(node: &str, replicas: &[&str]) -> Result<Replicas, ReplicasError> {
        Replicas::over(&Node::builder(node).build().unwrap().local(), replicas, Policy::tied())
    }

    #[test]
    fn a_replica_that_its_node_can_not_call_is_refused_and_it_is_said_what_to_write() {
        let refused = |node, replica| set(node, &["udp://127.0.0.1:7000", replica]).unwrap_err();
        let error = refused("udp://127.0.0.1:0", "mem://a");
        assert!(matches!(error, ReplicasError::Unreachable { replica: Address::Local(_), node: Address::Inet(_) }), "{error:?}");
        assert!(error.to_string().contains("name the replica like udp://10.0.0.1:7000"), "{error}");
        let error = refused("udp://127.0.0.1:0", "udp://[::1]:7000");
        assert!(error.to_string().contains("udp://[::]:0"), "{error}");
        let error = refused("mem://another-kind", "mem://a");
        assert!(error.to_string().contains("build the node with a URL like udp://"), "{error}");
        for wildcard in ["udp://0.0.0.0:7000", "udp://[::ffff:0.0.0.0]:7000", "udp://[::]:7000"] {
            let error = refused("udp://[::1]:0", wildcard);
            assert!(matches!(error, ReplicasError::Address(AddressError::Wildcard(_))), "{error:?}");
            assert!(error.to_string().contains("every address of a machine"), "{error}");
        }
        let error = refused("udp://127.0.0.1:0", "udp://10.0.0.1:0");
        assert!(matches!(error, ReplicasError::Address(AddressError::PortZero(_))), "{error:?}");
        let error = refused("udp://127.0.0.1:0", "udp://localhost:7000");
        assert!(matches!(error, ReplicasError::Address(AddressError::Socket(_))), "{error:?}");
        assert!(error.to_string().contains("host names are not looked up"), "{error}");
    }
}
