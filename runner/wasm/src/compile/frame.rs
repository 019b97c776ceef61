//! Request and answer of the compiling process: a JSON document and bytes, each preceded by its length.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::component::ModuleKind;

const MAX_DOCUMENT_BYTES: u64 = 16 << 10;
/// Maximum number of bytes that are allocated before they have arrived.
const FIRST_BYTES: u64 = 1 << 20;

/// Request to compile; the module's bytes follow.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) kind: ModuleKind,
    /// Set to check only that the module can be compiled, without returning machine code.
    pub(super) is_look: bool,
    /// Digest of the engine in hexadecimal digits; a program from another build has another digest and would produce other code.
    pub(super) engine: String,
    /// Process id of the parent; the compiling process exits if this parent no longer exists.
    pub(super) parent: u32,
    pub(super) module_bytes: u64,
    /// Limit of the compiling process's address space, in bytes.
    pub(super) memory_bytes: u64,
    pub(super) cpu_s: u64,
    /// Maximum size of the machine code, in bytes.
    pub(super) code_bytes: u64,
}

/// Answer to a request; after `Compiled`, the machine code follows.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CompileAnswer {
    Compiled,
    Invalid(String),
    Refused(String),
    OutOfMemory,
    TooLong,
    /// The compiling program is from another build and produces code for another engine.
    OtherEngine,
}

pub(super) fn write_document(out: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    write_bytes(out, &serde_json::to_vec(document)?)
}

pub(super) fn write_bytes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)?;
    out.flush()
}

/// Reads a document. Fails with `InvalidData` for malformed JSON, and with `UnexpectedEof` if the input ends early.
pub(super) fn read_document<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    let bytes = read_bytes(input, MAX_DOCUMENT_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a length and that many bytes. Fails with `InvalidData` if the length exceeds the limit, without reading the bytes.
pub(super) fn read_bytes(input: &mut impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    input.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length} bytes are announced, at most {limit} are expected"),
        ));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length.min(FIRST_BYTES)).unwrap_or_default());
    input.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_frames_can_be_read_again() {
        let mut pipe = Vec::new();
        write_document(&mut pipe, &CompileAnswer::Refused("why".into())).unwrap();
        write_bytes(&mut pipe, b"code").unwrap();
        let mut input = pipe.as_slice();
        assert_eq!(read_document::<CompileAnswer>(&mut input).unwrap(), CompileAnswer::Refused("why".into()));
        assert_eq!(read_bytes(&mut input, 4).unwrap(), b"code");
        assert!(input.is_empty());
    }

    #[test]
    fn incomplete_and_oversized_frames_have_different_errors() {
        let mut pipe = Vec::new();
        write_bytes(&mut pipe, &[7; 100]).unwrap();
        for end in [0, 7, 8, 107] {
            let error = read_bytes(&mut &pipe[..end], 100).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end} bytes");
        }
        let error = read_bytes(&mut pipe.as_slice(), 99).unwrap_err();
        assert_eq!(error.to_string(), "100 bytes are announced, at most 99 are expected");
        assert_eq!(
            read_document::<CompileAnswer>(&mut pipe.as_slice()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
