//! Hedged and tied requests over `tautline-rpc`: a call goes to a *set of replicas*, and a slow server no longer makes a slow call.
//!
//! The techniques are those of Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013). A **hedged** call sends a second copy when
//! the first takes longer than usual; the first answer wins. A **tied** call sends it at once, and each copy knows the other's server:
//! the one that starts has the other dropped, *server to server*, while it still waits in its queue. So a tie costs next to no
//! work, and needs no guess of how long is long.
//!
//! ```
//! use std::time::Duration;
//! use tautline_rpc::{Class, Method, Node, Service, ToAddress};
//! use tautline_tied::{Policy, Replicas, TieServer, TieServerConfig, TiedOptions};
//!
//! const READ: Method = Method::named("example.Store/Read").idempotent();
//! const REPLICAS: [&str; 3] = ["mem://store-1", "mem://store-2", "mem://store-3"];
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Three servers, each a node on a thread of its own. They are told of each other: ties go to no one else.
//! let (tell, told) = std::sync::mpsc::channel();
//! let servers: Vec<_> = REPLICAS.into_iter().map(|url| {
//!     let tell = tell.clone();
//!     std::thread::spawn(move || {
//!         let mut node = Node::builder(url).workers(1).build().expect("the name is free");
//!         node.serve(READ, Service::workers(|request| Ok(format!("chunk {}", request.payload().len()).into())))
//!             .expect("the first method can't collide");
//!         let allowed = REPLICAS.iter().map(|replica| replica.to_address().expect("a URL")).collect();
//!         TieServer::install(&mut node, TieServerConfig { allowed, ..TieServerConfig::default() }).expect("the only hook");
//!         tell.send(node.handle()).expect("the client waits for it");
//!         node.run();
//!     })
//! }).collect();
//! let handles: Vec<_> = (0..REPLICAS.len()).map(|_| told.recv()).collect::<Result<_, _>>()?;
//!
//! // A client.
//! let mut node = Node::builder("mem://client").build()?;
//! let replicas = Replicas::over(&node.local(), REPLICAS, Policy::tied())?;
//! let options = TiedOptions::new().class(Class::Interactive).deadline(Duration::from_secs(5));
//! let answer = node.block_on(replicas.call(READ, "five!", &options))?;
//! assert_eq!(&*answer.payload, b"chunk 5");
//!
//! let metrics = replicas.metrics();
//! assert_eq!(metrics.class(Class::Interactive).answered, 1); // however many copies there were
//! # drop(node);
//! # handles.iter().for_each(|handle| handle.stop());
//! # servers.into_iter().for_each(|server| server.join().expect("the server ends when it is told to"));
//! # Ok(())
//! # }
//! ```
//!
//! # Which policy
//!
//! | policy | saves a call from | costs |
//! |---|---|---|
//! | [`Policy::Hedged`] at p95 | anything that makes a server slow | one call in twenty executed twice, and a wait of p95 first |
//! | [`Policy::Tied`], [`Mode::Cancel`] | a queue | a message or two a call; executed twice only if both start within one message delay |
//! | [`Policy::Tied`], [`Mode::Demote`] | a queue, and a stall if the other server has idle time | the same, and what idle time executes |
//! | tied with `then_hedge` | a queue, and a stall after the start | both |
//!
//! All of them may execute a call twice, so they are for reads and for what is idempotent. [`Policy::None`] sends a call again only where it
//! was lost.
//!
//! A tie needs a queue that a copy can be dropped from. Handlers on [worker threads](tautline_rpc::Service::workers) have one; for
//! handlers that are futures, limit how many run at once ([`NodeConfig::concurrency`](tautline_rpc::NodeConfig::concurrency)), or each
//! starts when it arrives and there is nothing to cancel.
//!
//! # When a replica dies
//!
//! A call is answered as long as one replica answers, and its deadline allows: what was never sent, or refused unexecuted, goes to another
//! replica, and so does what was lost with a server if its method is declared [idempotent](tautline_rpc::Method::idempotent). If it is
//! not, a call that the dead server may have started ends in an error that says so ([`TiedError::fate`]): the other copies were dropped
//! on its word. A handler that panics has executed its call, which is treated likewise: it runs elsewhere only if it is declared idempotent.
//!
//! None of that waits until a server counts as dead, which takes seconds ([`EndpointConfig::peer_timeout`](tautline_rpc::EndpointConfig)), nor does
//! it draw from the budget. Servers acknowledge packets whatever their handlers do; one that owes an acknowledgement and has said
//! nothing for [`Config::silence`], 50 ms, is *silent*. Calls whose copies are all at silent replicas are sent to another one at once,
//! and new ones go to the others until it is heard again. So a dead replica costs the calls of those 50 ms that went there first a wait: the
//! stagger where the budget has a second copy for them, and the rest of the 50 ms where it has not.
//!
//! # From other threads, and from async runtimes
//!
//! A node and its sets of replicas belong to one thread. Give that thread a node to run, and the others a [`ReplicasHandle`]:
//!
//! ```
//! use tautline_rpc::*;
//! use tautline_tied::*;
//!
//! const READ: Method = Method::named("example.Store/Read").idempotent();
//!
//! fn store() -> Result<ReplicasHandle, Box<dyn std::error::Error + Send + Sync>> {
//!     let (tell, told) = std::sync::mpsc::channel();
//!     std::thread::spawn(move || {
//!         let built = || -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
//!             let node = Node::builder("udp://127.0.0.1:0").build()?;
//!             let servers = ["udp://10.0.0.1:7000", "udp://10.0.0.2:7000"];
//!             let replicas = Replicas::over(&node.local(), servers, Policy::tied())?;
//!             Ok((node, replicas.handle()))
//!         };
//!         match built() {
//!             Ok((mut node, handle)) => {
//!                 let _ = tell.send(Ok(handle));
//!                 node.run(); // until `handle.node().stop()`
//!             }
//!             Err(error) => drop(tell.send(Err(error))),
//!         }
//!     });
//!     told.recv()?
//! }
//!
//! // In a task of tokio, say. A thread that may block calls `wait()` instead.
//! async fn read(store: ReplicasHandle, chunk: u32) -> Result<Payload, TiedError> {
//!     let options = TiedOptions::new().deadline(std::time::Duration::from_secs(2));
//!     let answer: Answer = store.call(READ, chunk.to_le_bytes().to_vec(), &options).await?;
//!     Ok(answer.payload)
//! }
//! # let store = store().unwrap();
//! # fn is_send<T: Send>(_: &T) {}
//! # is_send(&read(store.clone(), 7));
//! # store.node().stop();
//! ```
//!
//! # What never happens
//!
//! - Extra copies of all kinds draw from one [`Budget`], a share of the originals. When it is empty the copy is not sent; the original
//!   is never touched. A tied copy that was dropped unexecuted gives its token back, so what the budget bounds is *work*: a copy in the
//!   place of one that was never sent, or whose server is gone, is no extra one.
//! - An error of one copy never beats a copy that is still under way, and the first *successful* answer wins. An error that every
//!   replica would repeat ends the call at once and is not asked of the others.
//! - A lost cancel costs work, never correctness: the client's own cancel follows when it has its answer.
//! - A client can cancel only its own copies, and only a replica that a server was told of can tell it anything
//!   (see [`table`]).
//!
//! # The rooms
//!
//! [`race`] decides for a call and [`table`] for a server, both without network or clock; [`Replicas`] and [`TieServer`] run them over
//! a node, and [`ReplicasHandle`] is the way there from other threads. [`estimator`], [`bucket`] and [`choice`] say when, how often and where; [`header`] is the format on the wire.
#![forbid(unsafe_code)]

mod answer;
pub mod bucket;
mod call;
pub mod choice;
pub mod estimator;
pub mod header;
pub mod ids;
pub mod metrics;
pub mod policy;
pub mod race;
mod remote;
mod replicas;
mod server;
pub mod stagger;
pub mod table;
pub mod tombstones;
mod typed;

pub use answer::{Answer, TiedError};
pub use bucket::Budget;
pub use call::ReplicaCall;
pub use estimator::EstimatorConfig;
pub use header::{Mode, Outcome};
pub use metrics::{ClassMetrics, ReplicasMetrics, TieMetrics};
pub use policy::{Choice, Config, Delay, Percentile, Policy, Settings, Stagger};
pub use race::Purpose;
pub use remote::{RemoteReplicaCall, ReplicasHandle};
pub use replicas::{Replicas, ReplicasBuilder, ReplicasError, TiedOptions};
pub use server::{TieAnswer, TieHook, TieServer, TieServerConfig, TieServerError};
pub use typed::{TypedAnswer, TypedReplicaCall};
