//! Changes a document before it is read, for `--set`.

use serde_json::{Map, Value};

use crate::fault::{Pointer, SpecFault, listed, suggestion};

/// Objects of a document that are created where they are missing.
const MAY_BE_MISSING: [&str; 5] = ["params", "sink", "shard", "assets", "max_failures"];

/// Sets the value at `pointer` (RFC 6901). The last step may name a new member; everything before it must exist, except objects
/// that documents may omit. Elements of a list must exist in any case.
pub fn set(document: &mut Value, pointer: &str, value: Value) -> Result<(), SpecFault> {
    let Some(whole) = Pointer::parse(pointer) else {
        let message =
            format!("`{pointer}` is not a JSON pointer; start it with `/`, as in `/stages/0/sleep/mean_ms`");
        return Err(SpecFault::new(Pointer::ROOT, message));
    };
    let mut steps: Vec<String> = whole.steps().collect();
    let Some(last) = steps.pop() else {
        *document = value;
        return Ok(());
    };
    let mut place = Pointer::ROOT;
    let mut node = document;
    for step in steps {
        node = match node {
            Value::Object(members) => {
                if !members.contains_key(&step) && !MAY_BE_MISSING.contains(&&*step) {
                    return Err(missing_member(members, &step, &place));
                }
                members.entry(step.clone()).or_insert_with(|| Value::Object(Map::new()))
            }
            Value::Array(elements) => element(elements, &step, &place)?,
            _ => return Err(has_no_members(&place)),
        };
        place = place.key(&step);
    }
    match node {
        Value::Object(members) => {
            members.insert(last, value);
        }
        Value::Array(elements) => *element(elements, &last, &place)? = value,
        _ => return Err(has_no_members(&place)),
    }
    Ok(())
}

/// Splits `POINTER=VALUE`. The value is JSON, or otherwise text: `/seed=7`, `/name=night`, `/threads=null`.
pub fn parse_setting(setting: &str) -> Result<(String, Value), SpecFault> {
    // A pointer may contain `=` in theory, but no member of a pipeline document needs it.
    let Some((pointer, text)) = setting.split_once('=') else {
        let message = format!("`{setting}` is not a setting; write `POINTER=VALUE`, as in `/seed=7`");
        return Err(SpecFault::new(Pointer::ROOT, message));
    };
    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    Ok((pointer.to_owned(), value))
}

fn element<'a>(elements: &'a mut [Value], step: &str, place: &Pointer) -> Result<&'a mut Value, SpecFault> {
    let len = elements.len();
    // RFC 6901: digits only, without a leading zero.
    let is_index = step == "0" || (!step.starts_with('0') && step.bytes().all(|byte| byte.is_ascii_digit()));
    step.parse::<usize>().ok().filter(|_| is_index).and_then(|index| elements.get_mut(index)).ok_or_else(
        || {
            let message = match len {
                0 => format!("no element `{step}`: the list is empty"),
                1 => format!("no element `{step}`: the list has element 0 only"),
                _ => format!("no element `{step}`: the list has elements 0 to {}", len - 1),
            };
            SpecFault::new(place.key(step), message)
        },
    )
}

fn missing_member(members: &Map<String, Value>, step: &str, place: &Pointer) -> SpecFault {
    let names = || members.keys().map(String::as_str);
    let message =
        format!("no member `{step}`: {}this object has {}", suggestion(step, names()), listed(names()));
    SpecFault::new(place.key(step), message)
}

fn has_no_members(place: &Pointer) -> SpecFault {
    SpecFault::new(place.clone(), "neither an object nor a list, so it has no members to set")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({ "seed": 1, "stages": [{ "sleep": { "mean_ms": 1 } }], "a/b": {} })
    }

    fn fault(pointer: &str) -> String {
        set(&mut document(), pointer, json!(0)).unwrap_err().to_string()
    }

    #[test]
    fn a_value_is_replaced_or_added_at_the_pointer() {
        let mut document = document();
        set(&mut document, "/stages/0/sleep/mean_ms", json!(2.5)).unwrap();
        set(&mut document, "/stages/0/sleep/name", json!("delay")).unwrap();
        set(&mut document, "/a~1b/c", json!(null)).unwrap();
        assert_eq!(
            document,
            json!({ "seed": 1, "stages": [{ "sleep": { "mean_ms": 2.5, "name": "delay" } }], "a/b": { "c": null } })
        );
    }

    #[test]
    fn objects_that_may_be_missing_are_created() {
        let mut document = json!({ "stages": [{ "wasm": { "module": "m" } }] });
        set(&mut document, "/stages/0/wasm/params/size", json!(64)).unwrap();
        set(&mut document, "/sink/queue", json!(2)).unwrap();
        let made = json!({ "stages": [{ "wasm": { "module": "m", "params": { "size": 64 } } }], "sink": { "queue": 2 } });
        assert_eq!(document, made);
    }

    #[test]
    fn a_pointer_without_a_target_is_reported_with_the_existing_members() {
        insta::assert_snapshot!(
            ["/stages/1", "/stages/00", "/stages/-", "/stage/0", "/seed/x", "seed", "/stages/0/slep/mean_ms"]
                .map(fault)
                .join("\n")
        );
    }

    #[test]
    fn a_setting_is_json_or_else_text() {
        let value = |setting| parse_setting(setting).unwrap().1;
        assert_eq!(value("/seed=7"), json!(7));
        assert_eq!(value("/name=night"), json!("night"));
        assert_eq!(value("/name=\"7\""), json!("7"));
        assert_eq!(value("/name=a=b"), json!("a=b"));
        assert!(parse_setting("/seed").is_err());
    }
}
