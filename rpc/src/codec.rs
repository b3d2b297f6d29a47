//! From types to payloads and back, by one trait: raw bytes, zerocopy structs, protocol buffers.

use std::fmt;

use bytes::Bytes;
use tautline_net::payload::Payload;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::method::Method;

/// How values of type `T` become payloads.
pub trait Codec<T> {
    /// The payload of a value.
    fn encode(value: T) -> Result<Payload, CodecError>;

    /// The value in a payload. What a peer sent is not to be trusted: anything wrong is an error, never a panic.
    fn decode(payload: Payload) -> Result<T, CodecError>;
}

/// A call's types in one place: implement it once for a method and share it between client and server.
pub trait Rpc {
    /// What the caller sends.
    type Request: 'static;
    /// What the handler answers.
    type Reply: 'static;
    /// How both become bytes.
    type Codec: Codec<Self::Request> + Codec<Self::Reply>;
    /// The method.
    const METHOD: Method;
}

/// Why a value could not be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(pub String);

impl CodecError {
    /// An error with this description.
    pub fn new(description: impl fmt::Display) -> CodecError {
        CodecError(description.to_string())
    }
}

/// Bytes as they are.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Codec<Payload> for Raw {
    fn encode(value: Payload) -> Result<Payload, CodecError> {
        Ok(value)
    }

    fn decode(payload: Payload) -> Result<Payload, CodecError> {
        Ok(payload)
    }
}

impl Codec<Bytes> for Raw {
    fn encode(value: Bytes) -> Result<Payload, CodecError> {
        Ok(value.into())
    }

    fn decode(payload: Payload) -> Result<Bytes, CodecError> {
        Ok(payload.into_bytes())
    }
}

impl Codec<Vec<u8>> for Raw {
    fn encode(value: Vec<u8>) -> Result<Payload, CodecError> {
        Ok(value.into())
    }

    fn decode(payload: Payload) -> Result<Vec<u8>, CodecError> {
        Ok(payload.to_vec())
    }
}

impl Codec<()> for Raw {
    fn encode((): ()) -> Result<Payload, CodecError> {
        Ok(Payload::empty())
    }

    fn decode(payload: Payload) -> Result<(), CodecError> {
        if payload.is_empty() { Ok(()) } else { Err(CodecError::new(format_args!("{} bytes where none belong", payload.len()))) }
    }
}

/// Plain structs of fixed layout, by zerocopy: the bytes of the struct are the payload. Use its little-endian integers, so that the
/// layout means the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl<T: FromBytes + IntoBytes + Immutable> Codec<T> for Plain {
    fn encode(value: T) -> Result<Payload, CodecError> {
        Ok(Payload::copy_from(value.as_bytes()))
    }

    fn decode(payload: Payload) -> Result<T, CodecError> {
        T::read_from_bytes(&payload)
            .map_err(|_| CodecError::new(format_args!("{} bytes where {} belong", payload.len(), size_of::<T>())))
    }
}

/// Protocol buffers, by prost.
#[derive(Clone, Copy, Debug)]
pub struct Proto;

impl<T: prost::Message + Default> Codec<T> for Proto {
    fn encode(value: T) -> Result<Payload, CodecError> {
        Ok(value.encode_to_vec().into())
    }

    fn decode(payload: Payload) -> Result<T, CodecError> {
        T::decode(&*payload).map_err(CodecError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::byteorder::little_endian::{U16, U64};

    #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Chunk {
        offset: U64,
        length: U16,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Greeting {
        #[prost(string, tag = "1")]
        name: String,
    }

    fn round_trip<C: Codec<T>, T>(value: T) -> T {
        C::decode(C::encode(value).unwrap()).unwrap()
    }

    #[test]
    fn every_codec_gives_back_what_it_took() {
        let chunk = Chunk { offset: U64::new(1 << 40), length: U16::new(9) };
        assert_eq!(round_trip::<Plain, _>(chunk), chunk);
        let greeting = Greeting { name: "ada".into() };
        assert_eq!(round_trip::<Proto, _>(greeting.clone()), greeting);
        assert_eq!(round_trip::<Raw, _>(vec![1u8, 2]), [1, 2]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(<Plain as Codec<Chunk>>::decode(Payload::from(vec![0; 9])).unwrap_err().0.contains("9 bytes where 10 belong"));
        assert!(<Proto as Codec<Greeting>>::decode(Payload::from(vec![0x0a, 200])).is_err());
        assert!(<Raw as Codec<()>>::decode(Payload::from(vec![0])).is_err());
    }
}
