//! Stages as authors write them, run through the generated code without WebAssembly.

use penstock_guest::Level;
use penstock_guest::prelude::*;
use penstock_guest::testing::{self, Instance};
use serde_json::{Value as Json, json};

mod upper {
    use super::*;

    #[stage]
    pub(crate) fn upper(mut item: Item) -> Result<Item> {
        let text = item.text("text")?.to_uppercase();
        item.set("text", text);
        Ok(item)
    }
}

mod sample {
    use super::*;

    #[derive(Debug, PartialEq, Params)]
    pub(crate) struct Settings {
        /// Number of
        /// samples.
        #[param(default = 2, min = 0, max = 9)]
        pub(crate) copies: u8,
        #[param(default = [0.5, -1.5])]
        pub(crate) weights: Vec<f32>,
        pub(crate) suffix: Option<String>,
        #[param(default = "by-key")]
        pub(crate) order: Order,
        #[param(default = true)]
        pub(crate) loud: bool,
        /// A required "word".
        pub(crate) r#type: String,
    }

    #[derive(Debug, PartialEq, Params)]
    pub(crate) enum Order {
        AsGiven,
        ByKey,
    }

    /// Copies an item.
    ///
    /// Logs each copy.
    #[stage(wants("text", "label"), makes(), reads(".txt", ".md"), counters("copied"))]
    pub(crate) fn copy(item: Item, settings: &Settings) -> Result<Vec<Item>> {
        ensure!(item.key() != "bad", "the key is `{}`", item.key());
        count("copied", f64::from(settings.copies));
        penstock_guest::info!("{} copies of {}", settings.copies, item.key());
        Ok((0..settings.copies).map(|at| item.child(at.into())).collect())
    }
}

mod between {
    use super::*;

    #[derive(Params)]
    pub(crate) struct Bounds {
        #[param(default = 0)]
        pub(crate) least: i64,
        #[param(default = 9)]
        pub(crate) most: i64,
    }

    pub(crate) struct Between {
        range: std::ops::RangeInclusive<i64>,
        /// Number of items that this instance was called with.
        seen: i64,
    }

    /// Drops items whose count is out of range.
    #[stage(wants("count"))]
    impl SampleStage for Between {
        type Params = Bounds;

        fn new(bounds: &Bounds) -> Result<Self> {
            ensure!(bounds.least <= bounds.most, "`least` is {}, more than `most`", bounds.least);
            Ok(Self { range: bounds.least..=bounds.most, seen: 0 })
        }

        fn process(&mut self, item: Item) -> Result<Outcome> {
            self.seen += 1;
            let count = item.int("count")?;
            Ok(if self.range.contains(&count) {
                Outcome::Keep(item.with("seen", self.seen))
            } else {
                Outcome::Drop
            })
        }
    }
}

/// Joins the texts of two items.
struct Pair {
    first: Option<Item>,
    glue: Vec<u8>,
}

#[stage(wants("text"))]
impl StatefulStage for Pair {
    type Params = ();

    fn new(_: &()) -> Result<Self> {
        Ok(Self { first: None, glue: asset("glue")? })
    }

    fn process(&mut self, item: Item) -> Result<Outcome> {
        let second = item.text("text")?.to_owned();
        Ok(match self.first.take() {
            None => {
                self.first = Some(item);
                Outcome::Held
            }
            Some(first) => {
                let text = format!("{}{}{second}", first.text("text")?, String::from_utf8_lossy(&self.glue));
                Outcome::Keep(first.with("text", text))
            }
        })
    }

    fn finish(&mut self) -> Vec<Item> {
        self.first.take().into_iter().collect()
    }
}

mod reverse {
    use super::*;

    pub(crate) struct Reverse;

    /// Reverses the order of the texts in a batch.
    #[stage]
    impl BatchStage for Reverse {
        type Params = ();

        fn new((): &()) -> Result<Self> {
            Ok(Self)
        }

        fn process(&mut self, items: Vec<Item>) -> Vec<Outcome> {
            let texts: Vec<String> = items.iter().rev().map(|item| item.key().to_owned()).collect();
            items.into_iter().zip(texts).map(|(item, text)| Outcome::Keep(item.with("text", text))).collect()
        }
    }
}

fn manifest<S: penstock_guest::__private::Stage>() -> Json {
    serde_json::from_str(&testing::manifest::<S>()).expect("a manifest is JSON")
}

fn text(key: &str, text: &str) -> Item {
    Item::new(key).with("text", text)
}

#[test]
fn a_function_with_an_attribute_is_a_stage() {
    let mut stage = Instance::<upper::upper>::new("{}").unwrap();
    let outcomes = stage.process(vec![text("a", "straße"), Item::new("b")]);
    assert_eq!(outcomes[0], Outcome::Keep(text("a", "STRASSE")));
    assert_eq!(
        outcomes[1],
        Outcome::Failed("no field `text`: the item has no fields that this stage reads".to_owned())
    );
    assert_eq!(upper::upper(text("a", "b")).unwrap(), text("a", "B"), "it stays an ordinary function");
}

#[test]
fn a_stage_without_arguments_wants_all_fields_and_takes_no_params() {
    let manifest = manifest::<upper::upper>();
    assert_eq!(manifest["name"], "penstock-guest");
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["doc"], env!("CARGO_PKG_DESCRIPTION"), "it has no doc comment");
    assert_eq!(manifest.get("reads"), None);
    assert_eq!(
        (&manifest["mode"], &manifest["wants"], &manifest["params"]),
        (&json!("sample"), &Json::Null, &Json::Null)
    );
    let error = Instance::<upper::upper>::new(r#"{"size": 1}"#).unwrap_err();
    assert_eq!(error, "`size` is unknown: this stage takes no params");
}

#[test]
fn the_manifest_contains_the_arguments_of_the_attribute() {
    let manifest = manifest::<sample::copy>();
    assert_eq!(manifest["doc"], "Copies an item.\n\nLogs each copy.");
    assert_eq!(manifest["wants"], json!(["text", "label"]));
    assert_eq!(manifest["makes"], json!([]));
    assert_eq!(manifest["counters"], json!(["copied"]));
    assert_eq!(manifest["reads"], json!([".txt", ".md"]));
    assert_eq!(
        manifest["params"],
        json!({
            "type": "object",
            "properties": {
                "copies": {"type": "integer", "minimum": 0, "maximum": 9, "default": 2, "description": "Number of samples."},
                "weights": {"type": "array", "items": {"type": "number"}, "default": [0.5, -1.5]},
                "suffix": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "order": {"type": "string", "enum": ["as-given", "by-key"], "default": "by-key"},
                "loud": {"type": "boolean", "default": true},
                "type": {"type": "string", "description": "A required \"word\"."}
            },
            "required": ["type"],
            "additionalProperties": false
        })
    );
    assert_eq!(self::manifest::<Pair>()["mode"], "stateful");
    assert_eq!(self::manifest::<reverse::Reverse>()["mode"], "batch");
}

#[test]
fn missing_params_have_their_defaults() {
    let settings = sample::Settings::from_json(r#"{"type": "x", "order": "as-given"}"#).unwrap();
    let expected = sample::Settings {
        copies: 2,
        weights: vec![0.5, -1.5],
        suffix: None,
        order: sample::Order::AsGiven,
        loud: true,
        r#type: "x".to_owned(),
    };
    assert_eq!(settings, expected);
}

#[test]
fn every_invalid_param_is_named() {
    let refused = |params| sample::Settings::from_json(params).unwrap_err();
    assert_eq!(
        refused(r#"{"copies": 10, "loud": "yes", "order": "random", "extra": 1}"#),
        "`copies`: 10 is more than 9; `order`: `random` is not one of `as-given`, `by-key`; \
         `loud`: invalid type: string \"yes\", expected a boolean; `type` is missing; \
         `extra` is unknown: the params are `copies`, `weights`, `suffix`, `order`, `loud`, `type`"
    );
    assert_eq!(refused("[1]"), "params are [1], not an object");
    assert!(refused("{").starts_with("params are not JSON: "));
}

#[test]
fn log_lines_and_counters_reach_the_runner() {
    let mut stage = Instance::<sample::copy>::new(r#"{"type": "x", "copies": 3}"#).unwrap();
    let outcomes = stage.process(vec![Item::new("a"), Item::new("bad")]);
    assert!(matches!(&outcomes[0], Outcome::Many(items) if items.len() == 3));
    assert_eq!(outcomes[1], Outcome::Failed("the key is `bad`".to_owned()));
    assert_eq!(testing::counter("copied"), 3.0);
    assert_eq!(testing::lines(), [(Level::Info, "3 copies of a".to_owned())]);
    testing::reset();
    assert!(testing::lines().is_empty());
}

#[test]
fn a_stateful_stage_holds_samples_and_returns_them_at_the_end() {
    let error = Instance::<Pair>::new("").unwrap_err();
    assert_eq!(error, "no asset `glue`: set it with testing::set_asset");
    testing::set_asset("glue", b"+");
    let mut stage = Instance::<Pair>::new("").unwrap();
    let outcomes = stage.process(vec![text("a", "1"), text("b", "2"), text("c", "3")]);
    assert_eq!(outcomes, [Outcome::Held, Outcome::Keep(text("a", "1+2")), Outcome::Held]);
    assert_eq!(stage.finish(), [text("c", "3")]);
    assert!(stage.finish().is_empty());
}

#[test]
fn a_sample_stage_is_created_once_and_called_with_one_sample_after_the_other() {
    let manifest = manifest::<between::Between>();
    assert_eq!(
        (&manifest["mode"], &manifest["wants"], &manifest["doc"]),
        (&json!("sample"), &json!(["count"]), &json!("Drops items whose count is out of range."))
    );
    let number = |key: &str, number: i64| Item::new(key).with("count", number);
    let mut stage = Instance::<between::Between>::new(r#"{"least": 1, "most": 1}"#).unwrap();
    let outcomes = stage.process(vec![number("a", 2), Item::new("b"), number("c", 1)]);
    let refused = "no field `count`: the item has no fields that this stage reads".to_owned();
    let kept = number("c", 1).with("seen", 3_i64);
    assert_eq!(outcomes, [Outcome::Drop, Outcome::Failed(refused), Outcome::Keep(kept)]);
    assert!(stage.finish().is_empty());
}

#[test]
fn contradictory_params_are_refused_before_any_sample() {
    let error = Instance::<between::Between>::new(r#"{"least": 10}"#).unwrap_err();
    assert_eq!(error, "`least` is 10, more than `most`");
}

#[test]
fn a_batch_stage_receives_all_samples_of_a_batch() {
    let mut stage = Instance::<reverse::Reverse>::new("").unwrap();
    let outcomes = stage.process(vec![Item::new("a"), Item::new("b")]);
    assert_eq!(outcomes, [Outcome::Keep(text("a", "b")), Outcome::Keep(text("b", "a"))]);
}

#[test]
fn the_prelude_exports_the_random_generator_of_an_item() {
    fn two(rng: &mut Rng) -> [u64; 2] {
        [rng.u64(), rng.u64()]
    }
    let numbers = |seed| two(&mut Item::new("a").with_seed(seed).rng());
    assert_eq!(numbers(7), numbers(7));
    assert_ne!(numbers(7), numbers(8));
}
