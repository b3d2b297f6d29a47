//! Calls with service classes, deadlines, cancellation and credits, over the reliable messages of `tautline-net`.
//!
//! A [`Node`] is client and server at once and belongs to one thread. It serves methods, and calls those of others:
//!
//! ```
//! use std::time::Duration;
//! use tautline_rpc::{CallOptions, Class, Method, Node, Service};
//!
//! const GREET: Method = Method::named("example.Greeter/Greet");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A server, on a thread of its own. Port 0 picks a free one.
//! let (tell, told) = std::sync::mpsc::channel();
//! let server = std::thread::spawn(move || {
//!     let mut node = Node::builder("udp://127.0.0.1:0").build().expect("a loopback port");
//!     node.serve(GREET, Service::inline(|request| {
//!         let name = String::from_utf8_lossy(request.payload());
//!         Ok(format!("hello, {name}").into())
//!     })).expect("the first method can't collide");
//!     tell.send(node.handle()).expect("the client waits for it");
//!     node.run();
//! });
//! let server_handle = told.recv()?;
//!
//! // A client. It is a node too.
//! let mut node = Node::builder("udp://127.0.0.1:0").build()?;
//! let local = node.local();
//! let peer = local.peer(server_handle.address())?;
//! let options = CallOptions::new().class(Class::Interactive).deadline(Duration::from_secs(5));
//! let reply = node.block_on(local.call(peer, GREET, "ada", options))?;
//! assert_eq!(&*reply, b"hello, ada");
//!
//! server_handle.stop();
//! server.join().expect("the server ends when it is told to");
//! # Ok(())
//! # }
//! ```
//!
//! # The ways to serve, and to call
//!
//! A [`Service`] says where its handler runs: [`inline`](Service::inline) on the poller (a few microseconds of work),
//! on [worker threads](Service::workers) (long or blocking work), or as a [`future`](Service::future) on the poller's executor (work
//! that waits for other calls). A [`Local`] makes calls on the node's thread, as futures ([`Local::call`]) or without allocation
//! by tags ([`Local::submit`]); a [`Handle`] makes them from any other thread.
//!
//! # Typed calls
//!
//! An [`Rpc`] says a method's types and how they become bytes, once for both sides: [`Plain`] for structs of fixed layout
//! (derive zerocopy 0.8's traits), [`Proto`] for protocol buffers (prost 0.14's `Message`), [`Raw`] for bytes, or your own [`Codec`].
//!
//! ```
//! use tautline_rpc::{CallOptions, Method, Node, Plain, Rpc, Service};
//! use zerocopy::{FromBytes, Immutable, IntoBytes, byteorder::little_endian::U64};
//!
//! #[derive(FromBytes, IntoBytes, Immutable)]
//! #[repr(C)]
//! struct Pair {
//!     a: U64,
//!     b: U64,
//! }
//!
//! struct Add;
//!
//! impl Rpc for Add {
//!     type Request = Pair;
//!     type Reply = U64;
//!     type Codec = Plain;
//!     const METHOD: Method = Method::named("example.Math/Add");
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut node = Node::builder("mem://adder").build()?;
//! node.serve(Add::METHOD, Service::inline_typed::<Add>(|pair, _| Ok(U64::new(pair.a.get() + pair.b.get()))))?;
//!
//! // A node may call itself; between two nodes this is the same.
//! let local = node.local();
//! let peer = local.peer("mem://adder")?;
//! let pair = Pair { a: U64::new(2), b: U64::new(3) };
//! let sum = node.block_on(local.call_typed::<Add>(peer, pair, CallOptions::new()))?;
//! assert_eq!(sum.get(), 5);
//! # Ok(())
//! # }
//! ```
//!
//! # What is certain about a call
//!
//! A call ends exactly once: with its reply or with a [`CallError`], whose [`Fate`] says what is known of it at the server. A
//! handler never runs twice for one call. Deadlines travel as the budget that is left; what has expired is dropped before it starts, and
//! the caller does not wait longer whatever the server does. A cancelled call that is queued never starts; in a running handler its
//! [`CancelToken`] fires. Its credit comes back exactly once.
//!
//! # Overload
//!
//! Every queue is bounded. A server says with each reply how many calls of a class its caller may have outstanding, computed from
//! how long requests wait ([`CreditConfig`]); calls beyond that wait at the caller. What is too much all the same is pushed back as
//! [`CallError::Overloaded`], before it costs anything.
#![forbid(unsafe_code)]

mod cancel;
mod client;
mod codec;
mod core;
mod credit;
mod error;
mod executor;
mod guarded;
mod handle;
mod header;
mod hook;
mod local;
mod mail;
mod method;
pub mod metrics;
mod node;
mod options;
mod request;
mod server;
mod service;
mod sleep;
mod status;
mod usage;

pub use cancel::{CancelReason, CancelToken, Cancelled};
pub use client::call::{CallId, Start};
pub use client::future::{Call, Started, TypedCall};
pub use client::peers::{Peer, ToAddress};
pub use client::submit::Completion;
pub use codec::{Codec, CodecError, Plain, Proto, Raw, Rpc};
pub use credit::CreditConfig;
pub use error::{BuildError, CallError, ErrorKind, Fate, Limit, ServeError, SpawnError};
pub use executor::Task;
pub use handle::{Handle, RemoteCall};
pub use hook::{Admit, CancelOutcome, ControlError, Entry, Hook, HookContext, QueuedCancel, Word};
pub use local::{Local, Presence};
pub use method::Method;
pub use metrics::Metrics;
pub use node::Node;
pub use node::builder::Builder;
pub use node::config::{NodeConfig, Wait};
pub use options::{CallOptions, Extension};
pub use request::{Origin, Reply, Request};
pub use service::{HandlerResult, Service};
pub use sleep::{Sleep, YieldNow};
pub use status::{Code, Status};
pub use usage::Usage;

pub use tautline_net::class::Class;
pub use tautline_net::clock::{Clock, Time};
pub use tautline_net::endpoint::{CloseReason, EndpointConfig, EndpointUsage, SessionId};
pub use tautline_net::payload::Payload;
pub use tautline_net::port::{Address, AddressError, FramesOut, PortUrl};
