//! Dead letters: writes and reads the lines of `dead_letters.ndjson`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use penstock_engine::item::{Dtype, Field, Origin, Sample, Tensor, Value};
use penstock_types::plan::{StageKind, StagePlan};
use penstock_types::run::FailureRecord;
use penstock_types::text::{MAX_SHOWN_KEY, printable};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A failed sample with its failure and everything needed to replay it: a line of `dead_letters.ndjson`.
#[derive(Serialize)]
pub(crate) struct DeadLetter<'a> {
    #[serde(flatten)]
    failure: &'a FailureRecord,
    #[serde(flatten)]
    stage: &'a LetterStage,
    /// Hash of the sample's fan-outs so far, so that a replay draws the same seed.
    path: u64,
    fields: Vec<KeptField>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LetterStage {
    /// Digest of the stage's module; `None` for stages without one.
    module: Option<String>,
    /// Name of the stage from which its random numbers are seeded.
    seeded_as: String,
}

/// A dead letter as read from a file. Members that are meant only for human readers are not parsed.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a dead letter")]
pub(crate) struct ReadLetter {
    pub(crate) stage: String,
    pub(crate) module: Option<String>,
    pub(crate) seeded_as: String,
    key: String,
    epoch: u32,
    index: u64,
    path: u64,
    fields: Vec<KeptField>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptField {
    name: Arc<str>,
    value: KeptValue,
}

/// A value as JSON; bytes are base64.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeptValue {
    Blob(String),
    Text(String),
    Int(i64),
    Real(KeptReal),
    Tensor { dtype: String, shape: Vec<u32>, data: String },
}

/// A real number; values without a JSON number (infinities, NaN with its payload) are written as their bits:
/// `0x7ff0000000000000`.
#[derive(Debug)]
struct KeptReal(f64);

impl LetterStage {
    pub(crate) fn of(stage: &StagePlan) -> Self {
        let module = match &stage.kind {
            StageKind::Wasm(wasm) => Some(wasm.digest.clone()),
            _ => None,
        };
        Self { module, seeded_as: stage.seeded_as.clone() }
    }
}

impl<'a> DeadLetter<'a> {
    pub(crate) fn new(failure: &'a FailureRecord, stage: &'a LetterStage, sample: &Sample) -> Self {
        let fields = sample
            .fields
            .iter()
            .map(|field| KeptField { name: field.name.clone(), value: kept(&field.value) });
        Self { failure, stage, path: sample.origin.path, fields: fields.collect() }
    }
}

impl ReadLetter {
    /// Restores the sample as it came into the stage. The error is the predicate of a sentence about the dead letter.
    pub(crate) fn into_sample(self) -> Result<Sample, String> {
        let origin = Origin { epoch: self.epoch, index: self.index, path: self.path, ..Origin::default() };
        let mut sample = Sample::new(self.key, origin);
        for KeptField { name, value } in self.fields {
            let shown = printable(&name, MAX_SHOWN_KEY);
            if sample.field(&name).is_some() {
                return Err(format!("has the field `{shown}` twice"));
            }
            let value = value.restored().map_err(|fault| format!("has a field `{shown}` that {fault}"))?;
            sample.fields.push(Field { name, value });
        }
        Ok(sample)
    }
}

fn kept(value: &Value) -> KeptValue {
    match value {
        Value::Blob(bytes) => KeptValue::Blob(STANDARD.encode(bytes)),
        Value::Text(text) => KeptValue::Text(text.clone()),
        Value::Int(int) => KeptValue::Int(*int),
        Value::Real(real) => KeptValue::Real(KeptReal(*real)),
        Value::Tensor(tensor) => KeptValue::Tensor {
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.clone(),
            data: STANDARD.encode(&tensor.data),
        },
    }
}

impl KeptValue {
    fn restored(self) -> Result<Value, String> {
        let bytes = |text: String| STANDARD.decode(text).map_err(|error| format!("is not base64: {error}"));
        Ok(match self {
            Self::Blob(text) => Value::Blob(bytes(text)?.into()),
            Self::Text(text) => Value::Text(text),
            Self::Int(int) => Value::Int(int),
            Self::Real(KeptReal(real)) => Value::Real(real),
            Self::Tensor { dtype, shape, data } => {
                let unknown = || format!("has the unknown tensor type `{}`", printable(&dtype, 40));
                let dtype = Dtype::named(&dtype).ok_or_else(unknown)?;
                let data = bytes(data)?;
                let sizes = shape.iter().map(|size| *size as usize);
                let wanted = sizes.chain([dtype.size()]).try_fold(1, usize::checked_mul);
                if wanted != Some(data.len()) {
                    return Err(format!(
                        "has {} bytes, which do not match the shape {shape:?} of {}",
                        data.len(),
                        dtype.name()
                    ));
                }
                Value::Tensor(Tensor { dtype, shape, data: data.into() })
            }
        })
    }
}

impl Serialize for KeptReal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.collect_str(&format_args!("{:#018x}", self.0.to_bits()))
        }
    }
}

impl<'de> Deserialize<'de> for KeptReal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Bits(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(real) => Ok(Self(real)),
            Written::Bits(bits) => {
                let digits = bits.strip_prefix("0x").filter(|digits| digits.len() == 16);
                let bits = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                bits.map(|bits| Self(f64::from_bits(bits))).ok_or_else(|| {
                    serde::de::Error::custom("a real is a number, or 16 hex digits after `0x`")
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_types::run::{Disposition, FailureClass};

    use super::*;

    fn written(sample: &Sample) -> String {
        let failure = FailureRecord {
            stage: "2:decode".to_owned(),
            key: sample.key.to_string(),
            epoch: sample.origin.epoch,
            index: sample.origin.index,
            class: FailureClass::Data,
            message: "no".to_owned(),
            disposition: Disposition::DeadLettered,
        };
        let stage = LetterStage { module: None, seeded_as: "decode#1".to_owned() };
        serde_json::to_string(&DeadLetter::new(&failure, &stage, sample)).unwrap()
    }

    fn read(text: &str) -> Result<Sample, String> {
        let letter: ReadLetter = serde_json::from_str(text).map_err(|error| error.to_string())?;
        letter.into_sample()
    }

    #[test]
    fn a_dead_letter_restores_a_sample_bit_by_bit() {
        let origin = Origin { epoch: 3, index: u64::MAX, path: u64::MAX - 1, ..Origin::default() };
        let mut sample = Sample::new("a\n\"b", origin);
        sample.set("blob", Value::Blob(vec![0, 255, 7].into()));
        sample.set("text", Value::Text("ä\u{0}".into()));
        sample.set("int", Value::Int(i64::MIN));
        let tensor = Tensor { dtype: Dtype::Bfloat16, shape: vec![2, 1], data: vec![1, 2, 3, 4].into() };
        sample.set("tensor", Value::Tensor(tensor));
        let empty = Tensor { dtype: Dtype::Float64, shape: vec![0, u32::MAX], data: Vec::new().into() };
        sample.set("empty", Value::Tensor(empty));
        assert_eq!(read(&written(&sample)).unwrap(), sample);
        for bits in
            [0x7ff8_0000_dead_beef, f64::INFINITY.to_bits(), (-0.0_f64).to_bits(), 1, 0x3fb9_9999_9999_999a]
        {
            sample.set("real", Value::Real(f64::from_bits(bits)));
            let again = read(&written(&sample)).unwrap();
            let Some(Value::Real(real)) = again.field("real") else { panic!("{again:?}") };
            assert_eq!(real.to_bits(), bits);
        }
    }

    #[test]
    fn manual_changes_of_dead_letters_are_reported() {
        let letter = |fields: &str| {
            read(&format!(
                r#"{{"stage": "1:a", "module": null, "seeded_as": "a", "key": "k", "epoch": 0, "index": 0, "path": 0, "fields": {fields}}}"#
            ))
            .unwrap_err()
        };
        let told = [
            r#"[{"name": "b", "value": {"blob": "AAA"}}]"#,
            r#"[{"name": "t", "value": {"tensor": {"dtype": "uint8", "shape": [2, 2], "data": "AAAA"}}}]"#,
            r#"[{"name": "t", "value": {"tensor": {"dtype": "uint8", "shape": [4294967295, 4294967295, 4294967295], "data": "AAAA"}}}]"#,
            r#"[{"name": "t", "value": {"tensor": {"dtype": "int9", "shape": [], "data": ""}}}]"#,
            r#"[{"name": "x", "value": {"int": 1}}, {"name": "x", "value": {"int": 2}}]"#,
            r#"[{"name": "x", "value": {"real": "0x1"}}]"#,
            r#"[{"name": "x", "value": {"list": []}}]"#,
        ]
        .map(letter);
        insta::assert_snapshot!(told.join("\n"));
    }
}
