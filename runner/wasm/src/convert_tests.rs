use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;
use crate::limits::Allowed;

/// Maximum size of the results of one sample, in bytes.
const OUTPUT_BYTES: u64 = 128 << 20;

/// Clock of a call with this CPU time limit. If `is_stopped`, the run is already stopped, so the call ends at its first check.
fn clock(allowed: Duration, is_stopped: bool) -> CallClock {
    let stop = Arc::new(AtomicBool::new(is_stopped));
    CallClock::new(stop, Allowed { per_sample: allowed, samples: 1 })
}

/// Checks items without a time limit.
fn check_items(items: &[ItemResult], key: Option<&str>) -> Result<(), CallEnd> {
    converter(None).check_items(items, key, &mut clock(Duration::MAX, false))
}

fn tensor(dtype: wit::Dtype, shape: Vec<u32>, bytes: usize) -> wit::TensorResult {
    wit::TensorResult { dtype, shape, data: vec![0; bytes] }
}

fn int(name: &str) -> wit::FieldResult {
    wit::FieldResult { name: name.into(), value: wit::ValueResult::Int(1) }
}

#[test]
fn a_tensor_has_exactly_the_bytes_of_its_shape() {
    assert_eq!(check_tensor(&tensor(wit::Dtype::Float64, vec![2, 3], 48)), Ok(()));
    assert!(check_tensor(&tensor(wit::Dtype::Float64, vec![2, 3], 47)).is_err());
    assert!(check_tensor(&tensor(wit::Dtype::Uint8, vec![2, 3], 7)).is_err());
    assert_eq!(check_tensor(&tensor(wit::Dtype::Boolean, Vec::new(), 1)), Ok(()), "a scalar has one element");
    assert!(check_tensor(&tensor(wit::Dtype::Boolean, Vec::new(), 0)).is_err());
    assert_eq!(check_tensor(&tensor(wit::Dtype::Int32, vec![0, u32::MAX], 0)), Ok(()));
}

#[test]
fn a_shape_whose_product_wraps_to_the_right_size_is_refused() {
    // Products that wrap to 0 in 64 bits: the number of elements, 2^64, or the number of bytes, 8 x 2^61.
    for shape in [vec![1 << 31, 1 << 31, 4], vec![1 << 31, 1 << 30]] {
        assert!(check_tensor(&tensor(wit::Dtype::Float64, shape, 0)).unwrap_err().message.contains("larger"));
    }
}

#[test]
fn a_shape_without_elements_whose_sizes_overflow_in_a_batch_is_refused() {
    for shape in [vec![u32::MAX, u32::MAX, 0], vec![0, u32::MAX, 1 << 11]] {
        assert!(check_tensor(&tensor(wit::Dtype::Uint8, shape, 0)).unwrap_err().message.contains("larger"));
    }
    assert_eq!(check_tensor(&tensor(wit::Dtype::Uint8, vec![0, u32::MAX, 1 << 10], 0)), Ok(()));
}

#[test]
fn a_duplicate_name_is_found_among_few_and_among_many_fields() {
    for count in [2, FEW_FIELDS, FEW_FIELDS + 1, MAX_FIELDS] {
        let mut fields: Vec<_> = (0..count).map(|number| int(&format!("f{number}"))).collect();
        assert_eq!(check_fields(&fields), Ok(()));
        fields[count - 1].name = "f0".into();
        assert_eq!(check_fields(&fields), Err(broken("returned field `f0` twice")));
    }
}

#[test]
fn all_children_of_a_sample_share_its_output_limit() {
    let half = || {
        let value = wit::ValueResult::Blob(vec![0; OUTPUT_BYTES as usize / 2 + 1]);
        ItemResult { key: "k".into(), seed: 0, fields: vec![wit::FieldResult { name: "b".into(), value }] }
    };
    assert_eq!(check_items(&[half()], None), Ok(()));
    assert_eq!(
        check_items(&[half(), half()], None),
        Err(broken("made 129 MiB from one sample, but the limit is 128 MiB (`output_mib`)").into())
    );
}

#[test]
fn an_input_key_may_be_returned_even_if_it_is_invalid() {
    let item = ItemResult { key: String::new(), seed: 0, fields: Vec::new() };
    assert_eq!(check_items(std::slice::from_ref(&item), Some("")), Ok(()));
    assert_eq!(
        check_items(std::slice::from_ref(&item), Some("k")),
        Err(broken("returned an empty key").into())
    );
}

#[test]
fn every_element_type_is_converted_to_itself() {
    for dtype in [
        Dtype::Boolean,
        Dtype::Uint8,
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Uint16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Float16,
        Dtype::Bfloat16,
        Dtype::Float32,
        Dtype::Float64,
    ] {
        assert_eq!(super::dtype(wit_dtype(dtype)), dtype);
    }
}

fn converter(wants: Option<&[&str]>) -> Converter {
    let wants = wants.map(|wants| wants.iter().map(|want| (*want).to_owned()).collect());
    Converter::new(wants, StageSeed::new(7, "split"), OUTPUT_BYTES, None)
}

fn items(count: u32) -> Vec<ItemResult> {
    let item = |n| ItemResult { key: format!("{n}"), seed: 0, fields: vec![int("a"), int("b")] };
    (0..count).map(item).collect()
}

fn parent(label: &str) -> Sample {
    let mut parent = Sample::new("k", Origin::default());
    parent.set("text", Value::Text("a long text".into()));
    parent.set("label", Value::Text(label.into()));
    parent.set("image", Value::Blob(Bytes::from_static(&[1; 1000])));
    parent
}

#[test]
fn children_do_not_copy_fields_that_were_passed_to_the_guest() {
    assert!(converter(None).template(parent("cat")).carried.is_empty());
    let template = converter(Some(&["text", "image"])).template(parent("cat"));
    assert_eq!(template.carried, [1]);
}

#[test]
fn children_of_a_wide_sample_allocate_only_their_own_fields() {
    let mut wide = Sample::new("k", Origin::default());
    wide.fields =
        (0..100_000).map(|n| Field { name: format!("f{n}").into(), value: Value::Int(n) }).collect();
    let items: Vec<_> = (0..100)
        .map(|n| ItemResult { key: "k".into(), seed: 0, fields: vec![int("new"), int(&format!("f{n}"))] })
        .collect();
    let children = converter(None).children(items, wide.clone(), &mut clock(Duration::MAX, false)).unwrap();
    assert_eq!(children.len(), 100);
    for (child, n) in children.iter().zip(0..) {
        assert!(child.fields.capacity() <= 4, "{}", child.fields.capacity());
        let names: Vec<String> = child.fields.iter().map(|field| field.name.to_string()).collect();
        assert_eq!(names, [format!("f{n}"), "new".to_owned()]);
    }
    let item = ItemResult { key: "k".into(), seed: 0, fields: vec![int("new")] };
    let kept = converter(None).sample(item, wide);
    assert!(kept.fields.capacity() <= 4, "{}", kept.fields.capacity());
}

#[test]
fn many_fields_keep_their_order_like_few_fields() {
    let name = |n: usize| format!("f{n:03}");
    let wants: Vec<String> = (0..200).filter(|n| n % 3 > 0).map(name).collect();
    let mut input = Sample::new("k", Origin::default());
    input.fields = (0..200).map(|n| Field { name: name(n).into(), value: Value::Int(-1) }).collect();
    // Result with every fifth field, in reverse order, and one new field.
    let given = || (0..200).rev().filter(|n| n % 5 == 0).map(|n| int(&name(n))).chain([int("new")]).collect();
    let item = || ItemResult { key: "k".into(), seed: 0, fields: given() };
    let expected: Vec<(String, Value)> = (0..200)
        .filter(|n| n % 5 == 0 || n % 3 == 0)
        .map(|n| (name(n), Value::Int(if n % 5 == 0 { 1 } else { -1 })))
        .chain([("new".to_owned(), Value::Int(1))])
        .collect();
    let found = |sample: &Sample| {
        let pairs = sample.fields.iter().map(|field| (field.name.to_string(), field.value.clone()));
        pairs.collect::<Vec<_>>()
    };
    let mut converter = Converter::new(Some(wants), StageSeed::new(7, "split"), OUTPUT_BYTES, None);
    assert_eq!(found(&converter.sample(item(), input.clone())), expected);
    let children = converter.children(vec![item()], input, &mut clock(Duration::MAX, false)).unwrap();
    assert_eq!(found(&children[0]), expected);
}

#[test]
fn a_conversion_that_ends_at_the_deadline_or_a_stop_returns_the_sample() {
    for (mut clock, is_stop) in [(clock(Duration::ZERO, false), false), (clock(Duration::MAX, true), true)] {
        let end = |end: &CallEnd| match end {
            CallEnd::Stopped => is_stop,
            CallEnd::Fault(fault) => !is_stop && fault.message.contains("deadline"),
        };
        let (ended, sample) = converter(None).children(items(60_000), parent("cat"), &mut clock).unwrap_err();
        assert!(end(&ended), "{ended:?}");
        assert_eq!(sample, parent("cat"));
        let ended = converter(None).check(&Outcome::Many(items(60_000)), &parent("cat"), &mut clock);
        assert!(end(&ended.unwrap_err()));
        assert_eq!(converter(None).children(items(3), parent("cat"), &mut clock).unwrap().len(), 3);
    }
}

#[test]
fn fields_of_a_child_keep_the_order_of_its_parent() {
    let text = wit::FieldResult { name: "text".into(), value: wit::ValueResult::Text("part".into()) };
    let item = ItemResult { key: "k/0".into(), seed: 0, fields: vec![int("new"), text] };
    let clock = &mut clock(Duration::MAX, false);
    let children = converter(Some(&["text", "image"])).children(vec![item], parent("cat"), clock).unwrap();
    let mut expected = Sample::new("k/0", child_of(Origin::default(), 0));
    expected.set("text", Value::Text("part".into()));
    expected.set("label", Value::Text("cat".into()));
    expected.set("new", Value::Int(1));
    assert_eq!(children, [expected]);
}

#[test]
fn copies_of_texts_count_for_every_child_but_one_and_shared_bytes_do_not() {
    let converter = converter(Some(&["text"]));
    let mebibyte = "x".repeat(1 << 20);
    let overhead = 2 * size_of::<Field>() as u64;
    assert_eq!(converter.check_copies(&parent(&mebibyte), 1), Ok(0));
    assert_eq!(converter.check_copies(&parent(&mebibyte), 3), Ok(2 * ((1 << 20) + overhead)));
    assert!(
        converter
            .check_copies(&parent(&mebibyte), 130)
            .unwrap_err()
            .message
            .contains("130 MiB, but the limit is 128 MiB (`output_mib`)")
    );
    assert_eq!(converter.check_copies(&parent(""), MAX_CHILDREN), Ok((MAX_CHILDREN as u64 - 1) * overhead));
}

#[test]
fn a_module_without_fan_out_may_not_make_several_samples_of_one() {
    let of = |fan_out| Converter::new(None, StageSeed::new(7, "split"), OUTPUT_BYTES, fan_out);
    let mut clock = clock(Duration::from_secs(1), false);
    let mut check = |fan_out, children| {
        of(fan_out)
            .check(&Outcome::Many(items(children)), &parent("cat"), &mut clock)
            .map_err(|end| format!("{end:?}"))
    };
    let said = check(Some(false), 2).unwrap_err();
    assert!(
        said.contains("made 2 samples from one sample, but the module's manifest says `fan_out: false`"),
        "{said}"
    );
    check(Some(false), 1).unwrap();
    check(Some(true), 2).unwrap();
    check(None, 2).unwrap();
}
