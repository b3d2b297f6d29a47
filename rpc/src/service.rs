//! How a method is served: on the poller at once, on worker threads, or as a future.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::codec::{Codec, CodecError, Rpc};
use crate::request::{Reply, Request};
use crate::status::{Code, Status};

/// What a handler returns.
pub type HandlerResult = Result<Reply, Status>;

pub(crate) type InlineHandler = Box<dyn FnMut(&mut Request) -> HandlerResult>;
pub(crate) type WorkerHandler = Arc<dyn Fn(Request) -> HandlerResult + Send + Sync>;
pub(crate) type FutureHandler = Rc<dyn Fn(Request) -> Pin<Box<dyn Future<Output = HandlerResult>>>>;

/// A handler and how it is run. A handler that panics answers [`Code::Internal`] and serves on.
pub struct Service {
    pub(crate) handler: Handler,
    pub(crate) limit: usize,
    pub(crate) finish_when_cancelled: bool,
}

pub(crate) enum Handler {
    Inline(InlineHandler),
    Workers(WorkerHandler),
    Future(FutureHandler),
}

impl Service {
    /// A handler for work of a few microseconds, run by the poller itself: the fastest way, and while it runs nothing else does. It
    /// runs where its request is received, unless others wait or a hook wants to see it: then it goes through the run queue.
    pub fn inline(handler: impl FnMut(&mut Request) -> HandlerResult + 'static) -> Service {
        Service::new(Handler::Inline(Box::new(handler)))
    }

    /// A handler for longer or blocking work, run by one of the node's worker threads (by the poller if it has none).
    pub fn workers(handler: impl Fn(Request) -> HandlerResult + Send + Sync + 'static) -> Service {
        Service::new(Handler::Workers(Arc::new(handler)))
    }

    /// A handler that waits for other calls or for time: a future on the poller's own executor. When its request is cancelled the
    /// future is dropped, and with it its own calls, unless [`Service::finish_when_cancelled`].
    pub fn future<F>(handler: impl Fn(Request) -> F + 'static) -> Service
    where
        F: Future<Output = HandlerResult> + 'static,
    {
        Service::new(Handler::Future(Rc::new(move |request| Box::pin(handler(request)))))
    }

    /// [`Service::inline`] with the types of `M`.
    pub fn inline_typed<M: Rpc>(
        mut handler: impl FnMut(M::Request, &mut Request) -> Result<M::Reply, Status> + 'static,
    ) -> Service {
        Service::inline(move |request| encode::<M>(handler(decode::<M>(request)?, request)?))
    }

    /// [`Service::workers`] with the types of `M`.
    pub fn workers_typed<M: Rpc>(
        handler: impl Fn(M::Request, Request) -> Result<M::Reply, Status> + Send + Sync + 'static,
    ) -> Service {
        Service::workers(move |mut request| encode::<M>(handler(decode::<M>(&mut request)?, request)?))
    }

    /// [`Service::future`] with the types of `M`.
    pub fn future_typed<M: Rpc, F>(handler: impl Fn(M::Request, Request) -> F + 'static) -> Service
    where
        F: Future<Output = Result<M::Reply, Status>> + 'static,
    {
        let handler = Rc::new(handler);
        Service::future(move |mut request| {
            let handler = handler.clone();
            async move { encode::<M>(handler(decode::<M>(&mut request)?, request).await?) }
        })
    }

    /// Most requests of this method that wait or run at once (those that run where they are received don't count); more are pushed
    /// back as overload. Without it only the node's limits hold.
    pub fn queue_limit(mut self, limit: usize) -> Service {
        self.limit = limit.max(1);
        self
    }

    /// Lets a future run to its end when its request is cancelled. Its token fires all the same.
    pub fn finish_when_cancelled(mut self) -> Service {
        self.finish_when_cancelled = true;
        self
    }

    fn new(handler: Handler) -> Service {
        Service { handler, limit: usize::MAX, finish_when_cancelled: false }
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match &self.handler {
            Handler::Inline(_) => "inline",
            Handler::Workers(_) => "workers",
            Handler::Future(_) => "future",
        };
        f.debug_struct("Service").field("handler", &how).field("limit", &self.limit).finish_non_exhaustive()
    }
}

fn decode<M: Rpc>(request: &mut Request) -> Result<M::Request, Status> {
    <M::Codec as Codec<M::Request>>::decode(request.take_payload())
        .map_err(|CodecError(reason)| Status::new(Code::InvalidArgument, format!("the request can't be decoded: {reason}")))
}

fn encode<M: Rpc>(reply: M::Reply) -> HandlerResult {
    <M::Codec as Codec<M::Reply>>::encode(reply)
        .map(Reply::from)
        .map_err(|CodecError(reason)| Status::new(Code::Internal, format!("the reply can't be encoded: {reason}")))
}
