//! Failed samples in the form in which they are stored for display: shortened, with unprintable characters escaped.

use penstock_engine::item::{Field, Value};
use penstock_engine::ports::SampleFailure;
use penstock_types::run::{PayloadField, RunError};
use penstock_types::text::printable;

/// Limits of the number of fields, and of the bytes of each part.
const SHOWN_FIELDS: usize = 16;
const SHOWN_BYTES: usize = 64;
const SHOWN_TEXT: usize = 500;
const SHOWN_NAME: usize = 256;
const SHOWN_MESSAGE: usize = 2_000;

pub(super) fn shown(number: u64, failure: &SampleFailure, at_s: f64) -> RunError {
    let mut record = failure.record.clone();
    record.key = printable(&record.key, SHOWN_NAME);
    record.message = printable(&record.message, SHOWN_MESSAGE);
    let fields = &failure.sample.fields;
    let payload = (!fields.is_empty()).then(|| fields.iter().take(SHOWN_FIELDS).map(shown_field).collect());
    RunError { number, failure: record, at_s, payload }
}

fn shown_field(field: &Field) -> PayloadField {
    let hex = |bytes: &[u8]| bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let (kind, head) = match &field.value {
        Value::Blob(bytes) => ("bytes".to_owned(), hex(bytes)),
        Value::Text(text) => ("text".to_owned(), printable(text, SHOWN_TEXT)),
        Value::Int(int) => ("int".to_owned(), int.to_string()),
        Value::Real(real) => ("real".to_owned(), real.to_string()),
        Value::Tensor(tensor) => {
            (format!("tensor {} {:?}", tensor.dtype.name(), tensor.shape), hex(&tensor.data))
        }
    };
    PayloadField { name: printable(&field.name, SHOWN_NAME), kind, size_bytes: field.value.bytes(), head }
}
