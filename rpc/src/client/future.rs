//! A call as its caller sees it: a future that cancels the call when it is dropped.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::call::{CallId, CallResult, Sink, Start, State};
use crate::codec::{Codec, CodecError, Rpc};
use crate::error::CallError;
use crate::local::Shared;

/// A call in flight. It was sent when it was made; awaiting it gives the reply, or the one reason why there is none. Dropping it
/// cancels the call at the server too.
#[derive(Debug)]
#[must_use = "a dropped call is cancelled"]
pub struct Call {
    shared: Rc<Shared>,
    stage: Stage,
    start: Option<Start>,
}

#[derive(Debug)]
enum Stage {
    /// It never began.
    Failed(CallError),
    Flying(CallId),
    Over,
}

impl Call {
    pub(crate) fn new(shared: Rc<Shared>, made: Result<CallId, CallError>) -> Call {
        let stage = match made {
            Ok(id) => Stage::Flying(id),
            Err(error) => Stage::Failed(error),
        };
        Call { shared, stage, start: None }
    }

    /// Whether the server has said that the handler started. It says so only if the call's options ask for it, and not where the handler
    /// answers at once. The notice wakes whoever polled the call last.
    pub fn is_started(&self) -> bool {
        self.start().is_some()
    }

    /// What the server's start notice said, and when it came; as [`Call::is_started`] otherwise.
    pub fn start(&self) -> Option<Start> {
        match self.stage {
            Stage::Flying(id) => self.shared.core.borrow().client.table.start_of(id),
            _ => self.start,
        }
    }

    /// Completes when the start notice comes or the call ends, whichever is first; `true` if the handler is known to have started.
    /// The result stays where it is: await the call for it.
    pub fn started(&mut self) -> Started<'_> {
        Started { call: self }
    }

    /// Like awaiting [`Call::started`], for hand-written futures.
    pub fn poll_started(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Stage::Flying(id) = self.stage else { return Poll::Ready(self.start.is_some()) };
        let mut stale = None;
        let poll = {
            let mut core = self.shared.core.borrow_mut();
            self.start = core.client.table.start_of(id);
            match core.client.table.find(id) {
                None => Poll::Ready(self.start.is_some()),
                Some(slot) => {
                    let call = core.client.table.call_mut(slot);
                    match (call.state, &mut call.sink) {
                        (State::Sent { started: false, .. } | State::Waiting, Sink::Future(waker)) => {
                            stale = waker.replace(cx.waker().clone());
                            Poll::Pending
                        }
                        _ => Poll::Ready(self.start.is_some()),
                    }
                }
            }
        };
        drop(stale);
        poll
    }

    /// Whether the result is there: the next poll gives it.
    pub fn is_finished(&self) -> bool {
        match self.stage {
            Stage::Flying(id) => {
                let core = self.shared.core.borrow();
                let state = core.client.table.find(id).map(|slot| core.client.table.call(slot).state);
                !matches!(state, Some(State::Sent { .. } | State::Waiting))
            }
            Stage::Failed(_) | Stage::Over => true,
        }
    }

    /// The reply decoded by `M`'s codec.
    pub fn typed<M: Rpc>(self) -> TypedCall<M> {
        TypedCall { call: self, types: PhantomData }
    }
}

impl Future for Call {
    type Output = CallResult;

    /// # Panics
    ///
    /// If polled again after it completed.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let this = &mut *self;
        let id = match std::mem::replace(&mut this.stage, Stage::Over) {
            Stage::Flying(id) => id,
            Stage::Failed(error) => return Poll::Ready(Err(error)),
            Stage::Over => panic!("a call was polled after it had completed"),
        };
        let mut stale = None;
        let poll = {
            let mut core = this.shared.core.borrow_mut();
            let slot = core.client.table.find(id).expect("a call keeps its slot until its future has the result");
            let cold = core.client.table.cold_mut(slot);
            if let Some(result) = cold.result.take() {
                this.start = cold.start.filter(|(of, _)| *of == id).map(|(_, start)| start);
                core.release_call(slot);
                Poll::Ready(result)
            } else {
                let call = core.client.table.call_mut(slot);
                if let Sink::Future(waker) = &mut call.sink {
                    match waker {
                        Some(waker) if waker.will_wake(cx.waker()) => {}
                        _ => stale = waker.replace(cx.waker().clone()),
                    }
                }
                this.stage = Stage::Flying(id);
                Poll::Pending
            }
        };
        drop(stale);
        poll
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Stage::Flying(id) = self.stage {
            self.shared.with(|core| core.forget_call(id));
        }
    }
}

/// The future of [`Call::started`].
#[derive(Debug)]
pub struct Started<'a> {
    call: &'a mut Call,
}

impl Future for Started<'_> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        self.call.poll_started(cx)
    }
}

/// A [`Call`] whose reply is decoded.
#[derive(Debug)]
#[must_use = "a dropped call is cancelled"]
pub struct TypedCall<M> {
    call: Call,
    types: PhantomData<fn() -> M>,
}

impl<M: Rpc> TypedCall<M> {
    /// The call underneath.
    pub fn call(&mut self) -> &mut Call {
        &mut self.call
    }
}

impl<M: Rpc> Future for TypedCall<M> {
    type Output = Result<M::Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.call).poll(cx).map(|result| decode::<M>(result?))
    }
}

pub(crate) fn decode<M: Rpc>(payload: tautline_net::payload::Payload) -> Result<M::Reply, CallError> {
    <M::Codec as Codec<M::Reply>>::decode(payload).map_err(|CodecError(reason)| CallError::Decode(reason))
}
