use std::collections::BTreeMap;

use penstock_guest::RawTensor;
use penstock_guest::prelude::*;
use serde_json::Value as Json;

use super::*;

fn run(item: Item, ops: &str) -> Result<Item, String> {
    let settings = Settings::from_json(&format!("{{\"ops\": {ops}}}"))?;
    Table::new(&settings).map_err(|error| error.to_string())?;
    transform(item, &settings).map_err(|error| error.message().to_owned())
}

fn tensor<'a>(item: &'a Item, name: &str) -> &'a RawTensor {
    match item.get(name) {
        Some(Value::Tensor(tensor)) => tensor,
        other => panic!("{other:?}"),
    }
}

fn file(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn arrays_of_numpy_are_read_as_numpy_reads_them() {
    let expected: BTreeMap<String, Json> = serde_json::from_slice(&file("expected.json")).unwrap();
    assert!(expected.len() >= 15);
    for (name, expected) in expected {
        let item = Item::new(&*name).with("bytes", file(&format!("{name}.npy")));
        let item = run(item, r#"[{"Npy": {"to": "array"}}]"#).unwrap();
        assert!(item.get("bytes").is_none());
        let array = tensor(&item, "array");
        assert_eq!(
            (array.dtype.name(), &serde_json::json!(array.shape)),
            (expected["dtype"].as_str().unwrap(), &expected["shape"])
        );
        let elements = numbers::Numeric::of(&item, "array").unwrap().numbers.reals();
        assert_eq!(serde_json::json!(elements), expected["elements"], "{name}");
    }
}

#[test]
fn files_that_are_no_arrays_of_numbers_fail_with_a_reason() {
    let reason = |bytes: Vec<u8>| run(Item::new("a").with("bytes", bytes), r#"[{"Npy": {}}]"#).unwrap_err();
    assert_eq!(
        reason(file("objects.npy")),
        "`ops[0]`: `Npy`: `bytes`: the .npy file contains Python objects, which are not read; save numbers"
    );
    assert!(
        reason(file("structured.npy")).ends_with("describes a structured type; save one array per field")
    );
    assert!(reason(file("complex.npy")).contains("has elements of `<c8`; bool, integers and floating-point"));
    assert!(
        reason(b"PK".to_vec()).ends_with("the file is not a .npy file: it does not start with \\x93NUMPY")
    );
    let whole = file("float64.npy");
    for length in 6..whole.len() {
        let found = reason(whole[..length].to_vec());
        assert!(found.contains("ends early") || found.contains("ends in its header"), "{length}: {found}");
    }
    let shaped = |shape: &str| {
        let header = format!("{{'descr': '<f8', 'fortran_order': True, 'shape': {shape}}}\n");
        let length = (header.len() as u16).to_le_bytes();
        reason([b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat())
    };
    assert!(shaped("(4294967295, 4294967295, 4294967295)").contains("ends early"));
    assert!(shaped("(0, 65536, 65536, 65536)").contains("is empty, and without the lengths of 0"));
    assert!(shaped("(4294967296,)").contains("whole numbers below 2^32"));
    assert!(shaped("(-1,)").contains("whole numbers below 2^32"));
    assert!(shaped(&format!("({})", "1,".repeat(17))).contains("more than 16 dimensions"));
}

#[test]
fn damaged_files_never_panic() {
    let whole = file("int32_fortran.npy");
    let mut rng = Rng::from_seed(7);
    for _ in 0..20_000 {
        let mut damaged = whole.clone();
        for _ in 0..1 + rng.u64() % 4 {
            let at = rng.u64() as usize % damaged.len();
            damaged[at] = rng.u64() as u8;
        }
        drop(run(Item::new("a").with("bytes", damaged), r#"[{"Npy": {}}]"#));
    }
}

#[test]
fn fields_are_picked_removed_and_renamed() {
    let row = || Item::new("row").with("a", 1).with("b", 2.5).with("c", "x");
    let names = |ops: &str| {
        run(row(), ops).map(|item| item.fields().iter().map(|field| field.name.clone()).collect::<Vec<_>>())
    };
    assert_eq!(names(r#"[{"Pick": {"fields": ["c", "a"]}}]"#).unwrap(), ["a", "c"]);
    assert_eq!(
        names(r#"[{"Remove": {"fields": ["b"]}}, {"Rename": {"from": "a", "to": "b"}}]"#).unwrap(),
        ["c", "b"]
    );
    assert_eq!(
        names(r#"[{"Pick": {"fields": ["d"]}}]"#).unwrap_err(),
        "`ops[0]`: `Pick`: no field `d`: the item has `a`, `b`, `c`"
    );
    assert!(
        names(r#"[{"Rename": {"from": "a", "to": "b"}}]"#)
            .unwrap_err()
            .contains("there is a field `b` already")
    );
}

#[test]
fn numbers_are_cast_exactly_or_fail() {
    let cast = |value: Value, dtype: &str| {
        run(
            Item::new("row").with("x", value),
            &format!(r#"[{{"Cast": {{"field": "x", "dtype": "{dtype}"}}}}]"#),
        )
        .map(|item| item.get("x").cloned().unwrap())
    };
    assert_eq!(cast(" 7 ".into(), "int").unwrap(), Value::Int(7));
    assert_eq!(cast("7.5".into(), "real").unwrap(), Value::Real(7.5));
    assert_eq!(cast(Value::Int(i64::MAX), "int64").unwrap(), Tensor::new([], vec![i64::MAX]).unwrap().into());
    assert_eq!(cast(Value::Real(255.0), "uint8").unwrap(), Tensor::new([], vec![255_u8]).unwrap().into());
    let vector = Tensor::new([2], vec![0.1_f64, -2.0]).unwrap();
    assert_eq!(
        cast(vector.into(), "float32").unwrap(),
        Tensor::new([2], vec![0.1_f32, -2.0]).unwrap().into()
    );
    let halves = cast(Tensor::new([2], vec![1.0_f32, 65_504.0]).unwrap().into(), "float16").unwrap();
    let Value::Tensor(halves) = halves else { panic!("{halves:?}") };
    assert_eq!((halves.dtype.name(), &*halves.data), ("float16", &[0x00, 0x3c, 0xff, 0x7b][..]));
    for (value, dtype, told) in [
        (Value::Real(2.5), "int32", "2.5 does not fit into int32"),
        (Value::Real(f64::NAN), "int", "NaN does not fit into an int"),
        (Value::Real(9.3e18), "int64", "9300000000000000000 does not fit into int64"),
        (Value::Int(256), "uint8", "256 does not fit into uint8"),
        (Value::Int(2), "bool", "2 does not fit into bool, which has 0 and 1"),
        ("seven".into(), "int", "`x` is the text `seven`, which is not a number"),
        (Value::Blob(vec![]), "int", "field `x` is a blob, not a real"),
    ] {
        let error = cast(value, dtype).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn numbers_are_scaled_encoded_and_stacked() {
    let row = Item::new("row").with("age", 30).with("size", 3.0).with("kind", "cat").with("id", 2);
    let ops = r#"[
        {"Scale": {"field": "age", "mean": 20, "std": 5}},
        {"Scale": {"field": "size", "min": 1, "max": 5}},
        {"OneHot": {"field": "kind", "classes": ["dog", "cat"]}},
        {"OneHot": {"field": "id", "num_classes": 3}},
        {"Stack": {"fields": ["age", "size", "kind", "id"]}}
    ]"#;
    let item = run(row, ops).unwrap();
    assert_eq!(item.fields().len(), 1);
    assert_eq!(
        tensor(&item, "features"),
        &Tensor::new([7], vec![2.0_f32, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0]).unwrap().into_raw()
    );
    let other = || Item::new("row").with("kind", "cow");
    let fail = run(other(), r#"[{"OneHot": {"field": "kind", "classes": ["dog", "cat"]}}]"#).unwrap_err();
    assert!(fail.contains("`kind` is `cow`, but the classes are `dog`, `cat`"), "{fail}");
    let zeros =
        run(other(), r#"[{"OneHot": {"field": "kind", "classes": ["dog"], "unknown": "zeros"}}]"#).unwrap();
    assert_eq!(tensor(&zeros, "kind"), &Tensor::new([1], vec![0_f32]).unwrap().into_raw());
}

#[test]
fn ops_that_can_never_work_are_refused_before_the_run() {
    for (op, told) in [
        (r#"{"Scale": {"field": "x", "std": 0}}"#, "divides by 0"),
        (r#"{"Scale": {"field": "x", "min": 1}}"#, "`min` and `max` belong together"),
        (r#"{"Scale": {"field": "x", "min": 1, "max": 2, "mean": 3}}"#, "exclude `mean` and `std`"),
        (r#"{"OneHot": {"field": "x"}}"#, "needs `classes`, for texts, or `num_classes`"),
        (r#"{"OneHot": {"field": "x", "classes": ["a", "a"]}}"#, "`classes` has `a` twice"),
        (r#"{"Sort": {}}"#, "`Sort` is not an op: the ops are `Npy`, `Pick`"),
    ] {
        let error = run(Item::new("row").with("x", 1), &format!("[{op}]")).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}
