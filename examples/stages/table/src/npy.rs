//! Files of NumPy: a header, which is a dictionary in Python's syntax, and the elements.
//!
//! The format is described in the documentation of NumPy, `numpy.lib.format`.

use penstock_guest::prelude::*;
use penstock_guest::{Dtype, RawTensor};

/// Maximum size of a header, in bytes: NumPy itself refuses longer ones unless it is told otherwise.
const MAX_HEADER: usize = 10_000;

/// Maximum number of dimensions, which is that of a tensor.
const MAX_DIMENSIONS: usize = 16;

/// Maximum number of elements that the shape of an empty array may state, with lengths of 0 as 1: of 8 bytes each, they are the 4 TiB that a
/// tensor may state.
const MAX_ELEMENTS: u64 = 1 << 39;

/// Header of a file.
#[derive(Debug, Default)]
struct Header<'a> {
    descr: Option<&'a str>,
    is_fortran: Option<bool>,
    shape: Option<Vec<u32>>,
}

/// Decodes a file of version 1, 2 or 3. Its elements are little-endian and in C order in the result; `uint32` and `uint64` become
/// `int64`.
pub(crate) fn decode(file: &[u8]) -> Result<RawTensor> {
    let Some(rest) = file.strip_prefix(b"\x93NUMPY") else {
        bail!("the file is not a .npy file: it does not start with \\x93NUMPY")
    };
    let (length, rest) = match *rest {
        [1, _, a, b, ref rest @ ..] => (usize::from(u16::from_le_bytes([a, b])), rest),
        [2 | 3, _, a, b, c, d, ref rest @ ..] => (u32::from_le_bytes([a, b, c, d]) as usize, rest),
        [version, ..] if version > 3 => {
            bail!("the .npy file has version {version}; versions 1 to 3 are known")
        }
        _ => bail!("the .npy file ends in its header"),
    };
    ensure!(length <= MAX_HEADER, "the header of the .npy file has {length} bytes, more than {MAX_HEADER}");
    let Some((header, data)) = rest.split_at_checked(length) else {
        bail!("the .npy file ends in its header")
    };
    let header = std::str::from_utf8(header).context("the header of the .npy file is not a text")?;
    let header = Header::read(header).context("the header of the .npy file")?;
    let (Some(descr), Some(is_fortran), Some(shape)) = (header.descr, header.is_fortran, header.shape) else {
        bail!("the header of the .npy file lacks one of `descr`, `fortran_order` and `shape`")
    };
    let kind = Kind::of(descr)?;
    let bytes = shape.iter().try_fold(kind.size, |bytes, &length| bytes.checked_mul(length as usize));
    let Some(data) = bytes.and_then(|bytes| data.get(..bytes)) else {
        bail!(
            "the .npy file ends early: its shape {shape:?} of `{descr}` needs more than its {} bytes",
            data.len()
        )
    };
    let elements =
        shape.iter().fold(1, |elements: u64, &length| elements.saturating_mul(length.max(1).into()));
    ensure!(
        elements <= MAX_ELEMENTS,
        "the .npy file is empty, and without the lengths of 0 its shape {shape:?} has more than {MAX_ELEMENTS} elements"
    );
    let mut data = data.to_vec();
    if kind.is_big {
        data.chunks_exact_mut(kind.size).for_each(<[u8]>::reverse);
    }
    if is_fortran {
        data = in_c_order(&data, &shape, kind.size);
    }
    let data = match kind.widened {
        None => data,
        Some(name) => widened(&data, kind.size).context(name)?,
    };
    Ok(RawTensor { dtype: kind.dtype, shape, data })
}

/// Type of the elements in a file.
struct Kind {
    dtype: Dtype,
    size: usize,
    is_big: bool,
    /// Name of an unsigned type that becomes `int64`.
    widened: Option<&'static str>,
}

impl Kind {
    fn of(descr: &str) -> Result<Self> {
        let (is_big, kind) = match descr.split_at_checked(1) {
            Some((">", kind)) => (true, kind),
            Some(("<" | "|" | "=", kind)) => (false, kind),
            _ => (false, descr),
        };
        let (dtype, widened) = match kind {
            "b1" => (Dtype::Boolean, None),
            "u1" => (Dtype::Uint8, None),
            "i1" => (Dtype::Int8, None),
            "i2" => (Dtype::Int16, None),
            "u2" => (Dtype::Uint16, None),
            "i4" => (Dtype::Int32, None),
            "i8" => (Dtype::Int64, None),
            "f2" => (Dtype::Float16, None),
            "f4" => (Dtype::Float32, None),
            "f8" => (Dtype::Float64, None),
            "u4" => (Dtype::Int64, Some("uint32")),
            "u8" => (Dtype::Int64, Some("uint64")),
            "O" => bail!("the .npy file contains Python objects, which are not read; save numbers"),
            _ => bail!(
                "the .npy file has elements of `{descr}`; bool, integers and floating-point numbers are read"
            ),
        };
        let size = match widened {
            Some("uint32") => 4,
            _ => dtype.size(),
        };
        Ok(Self { dtype, size, is_big, widened })
    }
}

impl<'a> Header<'a> {
    fn read(text: &'a str) -> Result<Self> {
        let mut header = Self::default();
        let mut rest = Rest(text);
        rest.expect("{")?;
        while !rest.skip("}") {
            let name = rest.quoted()?;
            rest.expect(":")?;
            match name {
                "descr" if rest.starts("[") => {
                    bail!("describes a structured type; save one array per field")
                }
                "descr" => header.descr = Some(rest.quoted()?),
                "fortran_order" => header.is_fortran = Some(rest.boolean()?),
                "shape" => header.shape = Some(rest.shape()?),
                other => bail!("has an unknown member `{other}`"),
            }
            if !rest.skip(",") {
                rest.expect("}")?;
                break;
            }
        }
        Ok(header)
    }
}

/// Rest of a header.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn starts(&mut self, with: &str) -> bool {
        self.0 = self.0.trim_start();
        self.0.starts_with(with)
    }

    fn skip(&mut self, text: &str) -> bool {
        let is_next = self.starts(text);
        self.0 = self.0.strip_prefix(text).unwrap_or(self.0);
        is_next
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        let is_next = self.skip(text);
        let found: String = self.0.chars().take(20).collect();
        ensure!(is_next, "has `{found}` where `{text}` is expected");
        Ok(())
    }

    fn quoted(&mut self) -> Result<&'a str> {
        let quote = if self.starts("\"") { "\"" } else { "'" };
        self.expect(quote)?;
        let Some((text, rest)) = self.0.split_once(quote) else { bail!("has a text without an end") };
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool> {
        if self.skip("True") {
            return Ok(true);
        }
        self.expect("False")?;
        Ok(false)
    }

    /// Reads a tuple of lengths.
    fn shape(&mut self) -> Result<Vec<u32>> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.skip(")") {
            let end = self.0.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(self.0.len());
            let (length, rest) = self.0.split_at(end);
            shape
                .push(length.parse().context("has a shape that is not a tuple of whole numbers below 2^32")?);
            ensure!(shape.len() <= MAX_DIMENSIONS, "has more than {MAX_DIMENSIONS} dimensions");
            self.0 = rest;
            if !self.skip(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }
}

/// Elements in C order, of elements in the order of Fortran, in which the first dimension varies fastest.
fn in_c_order(data: &[u8], shape: &[u32], size: usize) -> Vec<u8> {
    let mut ordered = Vec::with_capacity(data.len());
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size;
    for &length in shape {
        strides.push(stride);
        stride *= length as usize;
    }
    let mut place = vec![0_u32; shape.len()];
    while ordered.len() < data.len() {
        let at: usize = place.iter().zip(&strides).map(|(&index, stride)| index as usize * stride).sum();
        ordered.extend_from_slice(&data[at..at + size]);
        // Counts up, the last dimension first.
        for (index, &length) in place.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < length {
                break;
            }
            *index = 0;
        }
    }
    ordered
}

/// Unsigned elements of 4 or 8 bytes as `int64`.
fn widened(data: &[u8], size: usize) -> Result<Vec<u8>> {
    let mut wide = Vec::with_capacity(data.len() / size * 8);
    for bytes in data.chunks_exact(size) {
        let mut number = [0; 8];
        number[..size].copy_from_slice(bytes);
        let number = u64::from_le_bytes(number);
        ensure!(i64::try_from(number).is_ok(), "{number} does not fit into int64");
        wide.extend_from_slice(&number.to_le_bytes());
    }
    Ok(wide)
}
