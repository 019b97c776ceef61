use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use penstock_engine::item::{Sample, Value};
use penstock_types::run::FailureRecord;
use serde::Serialize;

/// A sample that was kept aside: what failed, and everything to try it again. A line of `dead_letters.ndjson`.
#[derive(Serialize)]
pub(crate) struct DeadLetter<'a> {
    #[serde(flatten)]
    failure: &'a FailureRecord,
    /// Digest of the module it failed in; `null` for stages without one.
    module: Option<&'a str>,
    /// Hash of the fan-outs it had passed, so that a replay draws the same seed.
    path: u64,
    fields: Vec<KeptField<'a>>,
}

#[derive(Serialize)]
struct KeptField<'a> {
    name: &'a str,
    value: KeptValue<'a>,
}

/// A value as JSON; bytes are base64.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum KeptValue<'a> {
    Blob(String),
    Text(&'a str),
    Int(i64),
    Real(f64),
    Tensor { dtype: &'static str, shape: &'a [u32], data: String },
}

impl<'a> DeadLetter<'a> {
    pub(crate) fn new(failure: &'a FailureRecord, module: Option<&'a str>, sample: &'a Sample) -> Self {
        let fields =
            sample.fields.iter().map(|field| KeptField { name: &field.name, value: kept(&field.value) });
        Self { failure, module, path: sample.origin.path, fields: fields.collect() }
    }
}

fn kept(value: &Value) -> KeptValue<'_> {
    match value {
        Value::Blob(bytes) => KeptValue::Blob(STANDARD.encode(bytes)),
        Value::Text(text) => KeptValue::Text(text),
        Value::Int(int) => KeptValue::Int(*int),
        Value::Real(real) => KeptValue::Real(*real),
        Value::Tensor(tensor) => KeptValue::Tensor {
            dtype: tensor.dtype.name(),
            shape: &tensor.shape,
            data: STANDARD.encode(&tensor.data),
        },
    }
}
