use super::*;

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
    // 2^32 x 2^32 wraps to 0 in 64 bits; so does 2^61 elements of 8 bytes.
    for shape in [vec![1 << 31, 1 << 31, 4], vec![1 << 31, 1 << 30]] {
        assert!(check_tensor(&tensor(wit::Dtype::Float64, shape, 0)).unwrap_err().message.contains("larger"));
    }
}

#[test]
fn a_name_given_twice_is_found_among_few_and_among_many_fields() {
    for count in [2, FEW_FIELDS, FEW_FIELDS + 1, MAX_FIELDS] {
        let mut fields: Vec<_> = (0..count).map(|number| int(&format!("f{number}"))).collect();
        assert_eq!(check_fields(&fields), Ok(()));
        fields[count - 1].name = "f0".into();
        assert_eq!(check_fields(&fields), Err(broken("gave field `f0` twice")));
    }
}

#[test]
fn the_children_of_one_sample_share_its_limit() {
    let half = || {
        let value = wit::ValueResult::Blob(vec![0; (MAX_OUTPUT_BYTES / 2 + 1) as usize]);
        ItemResult { key: "k".into(), seed: 0, fields: vec![wit::FieldResult { name: "b".into(), value }] }
    };
    assert_eq!(check_items(&[half()], None), Ok(()));
    assert_eq!(
        check_items(&[half(), half()], None),
        Err(broken("made 129 MiB of one sample, limit is 128 MiB"))
    );
}

#[test]
fn a_key_that_came_in_may_go_out_whatever_it_is() {
    let item = ItemResult { key: String::new(), seed: 0, fields: Vec::new() };
    assert_eq!(check_items(std::slice::from_ref(&item), Some("")), Ok(()));
    assert_eq!(check_items(std::slice::from_ref(&item), Some("k")), Err(broken("gave an empty key")));
}

#[test]
fn every_element_type_goes_in_and_comes_out_the_same() {
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
    Converter::new(wants, StageSeed::new(7, "split"))
}

fn parent(label: &str) -> Sample {
    let mut parent = Sample::new("k", Origin::default());
    parent.set("text", Value::Text("a long text".into()));
    parent.set("label", Value::Text(label.into()));
    parent.set("image", Value::Blob(Bytes::from_static(&[1; 1000])));
    parent
}

#[test]
fn children_start_without_the_values_that_the_guest_was_given() {
    assert_eq!(converter(None).template(parent("cat")).sample.bytes(), 3 * 8);
    let template = converter(Some(&["text", "image"])).template(parent("cat"));
    assert_eq!(template.sample.field("label"), Some(&Value::Text("cat".into())));
    assert_eq!(template.sample.bytes(), 3 + 2 * 8);
}

#[test]
fn a_childs_fields_keep_the_places_of_its_parents() {
    let text = wit::FieldResult { name: "text".into(), value: wit::ValueResult::Text("part".into()) };
    let item = ItemResult { key: "k/0".into(), seed: 0, fields: vec![int("new"), text] };
    let children = converter(Some(&["text", "image"])).children(vec![item], parent("cat"));
    let mut wanted = Sample::new("k/0", child_of(Origin::default(), 0));
    wanted.set("text", Value::Text("part".into()));
    wanted.set("label", Value::Text("cat".into()));
    wanted.set("new", Value::Int(1));
    assert_eq!(children, [wanted]);
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
            .contains("130 MiB, limit is 128 MiB")
    );
    assert_eq!(converter.check_copies(&parent(""), MAX_CHILDREN), Ok((MAX_CHILDREN as u64 - 1) * overhead));
}
