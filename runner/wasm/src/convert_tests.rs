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
        assert!(check_tensor(&tensor(wit::Dtype::Float64, shape, 0)).unwrap_err().contains("larger"));
    }
}

#[test]
fn a_name_given_twice_is_found_among_few_and_among_many_fields() {
    for count in [2, FEW_FIELDS, FEW_FIELDS + 1, MAX_FIELDS] {
        let mut fields: Vec<_> = (0..count).map(|number| int(&format!("f{number}"))).collect();
        assert_eq!(check_fields(&fields), Ok(()));
        fields[count - 1].name = "f0".into();
        assert_eq!(check_fields(&fields), Err("gave field `f0` twice".into()));
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
        Err("made 129 MiB of one sample, limit is 128 MiB".into())
    );
}

#[test]
fn a_key_that_came_in_may_go_out_whatever_it_is() {
    let item = ItemResult { key: String::new(), seed: 0, fields: Vec::new() };
    assert_eq!(check_items(std::slice::from_ref(&item), Some("")), Ok(()));
    assert_eq!(check_items(std::slice::from_ref(&item), Some("k")), Err("gave an empty key".into()));
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
