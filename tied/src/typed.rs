//! Calls whose requests and answers are values and not bytes.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tautline_rpc::{CallError, Codec, CodecError, Rpc};

use crate::answer::{Answer, TiedError};
use crate::call::ReplicaCall;

/// A [`ReplicaCall`] whose answer is decoded.
#[derive(Debug)]
#[must_use = "a call does nothing unless it is awaited"]
pub struct TypedReplicaCall<M> {
    call: Result<ReplicaCall, Option<CallError>>,
    types: PhantomData<fn() -> M>,
}

/// The answer to a [`TypedReplicaCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedAnswer<T> {
    /// The reply.
    pub reply: T,
    /// The place of the replica that answered.
    pub replica: usize,
    /// How many copies were sent.
    pub copies: usize,
}

impl<M: Rpc> TypedReplicaCall<M> {
    pub(crate) fn new(call: Result<ReplicaCall, CallError>) -> TypedReplicaCall<M> {
        TypedReplicaCall { call: call.map_err(Some), types: PhantomData }
    }
}

impl<M: Rpc> Future for TypedReplicaCall<M> {
    type Output = Result<TypedAnswer<M::Reply>, TiedError>;

    /// # Panics
    ///
    /// If polled again after it completed.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = match &mut self.get_mut().call {
            Ok(call) => call,
            Err(error) => {
                return Poll::Ready(Err(TiedError::Codec(error.take().expect("a call was polled after it had completed"))));
            }
        };
        Pin::new(call).poll(cx).map(|result| {
            let Answer { payload, replica, copies } = result?;
            match <M::Codec as Codec<M::Reply>>::decode(payload) {
                Ok(reply) => Ok(TypedAnswer { reply, replica, copies }),
                Err(CodecError(reason)) => Err(TiedError::Codec(CallError::Decode(reason))),
            }
        })
    }
}
