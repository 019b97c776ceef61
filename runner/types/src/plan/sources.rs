//! Checks the settings of sources.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::faults::Faults;
use crate::fault::{FaultKind, Pointer, SpecFault, listed};
use crate::spec::{
    LabelOrigin, LabelTable, ListSource, MixPart, MixSource, Name, RecordDecoding, RecordForm, RecordsSource,
    Source, Suffix, SuffixOf, TableForm, TableSource, TextEncoding, WhenMissing, is_double_quote,
};
use crate::text::{MAX_SHOWN_KEY, printable};
use crate::traversal::check_weights;

impl Faults<'_> {
    /// Replaces the suffix `{"of": MODULE}` by the endings in the manifest of the module.
    pub(super) fn endings(&mut self, source: &mut Source, place: &Pointer) {
        match source {
            Source::Mix(mix) => {
                for (name, part) in &mut mix.sources {
                    let place = place.key("sources").key(name.as_str()).key("source").key(part.source.kind());
                    self.endings(&mut part.source, &place);
                }
            }
            Source::List(list) => {
                let Suffix::Of(SuffixOf { of }) = &list.suffix else { return };
                let place = place.key("suffix").key("of");
                let Some(facts) = self.module(of, place.clone()) else { return };
                match facts.manifest.reads.clone().filter(|reads| !reads.is_empty()) {
                    Some(reads) => list.suffix = Suffix::Several(reads),
                    None => {
                        let found = format!("the module `{of}` does not say which files it reads");
                        self.fault(place, found, "list the endings, such as `[\".jpg\", \".png\"]`");
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks the names of classes.
    fn classes(&mut self, list: &ListSource, place: &Pointer) {
        let Some(classes) = &list.classes else { return };
        if list.label != Some(LabelOrigin::Folder) {
            let hint = "set `label` to `folder`, or remove `classes`";
            self.fault(place.clone(), "only samples that are labelled by folder have classes", hint);
        }
        if classes.is_empty() {
            self.fault(place.clone(), "found no class", "name the class folders, or remove `classes`");
        }
        let mut seen = BTreeSet::new();
        for (index, class) in classes.iter().enumerate() {
            let place = place.index(index);
            let shown = printable(class, MAX_SHOWN_KEY);
            if class.is_empty() || class.contains('/') {
                let found = format!("`{shown}` is not the name of a folder");
                self.fault(place, found, "a class is one folder directly below that of `prefix`");
            } else if !seen.insert(class) {
                self.fault(place, format!("found the class `{shown}` twice"), "remove one of them");
            }
        }
    }

    /// Checks the settings of a source that concern its data.
    pub(super) fn reads(&mut self, source: &Source, place: &Pointer) {
        self.values_of_missing(source, place);
        match source {
            Source::List(list) => {
                self.store(&list.store, place.key("store"));
                if let Some(labels) = &list.labels {
                    self.labels(labels, &place.key("labels"));
                }
                self.classes(list, &place.key("classes"));
                if matches!(&list.suffix, Suffix::Several(several) if several.is_empty()) {
                    self.fault(
                        place.key("suffix"),
                        "found no ending",
                        "name at least one, or remove `suffix`",
                    );
                }
            }
            Source::Records(RecordsSource { store, .. })
            | Source::Csv(TableSource { store, .. })
            | Source::Tsv(TableSource { store, .. }) => {
                self.store(store, place.key("store"));
                self.objects(source, place);
            }
            Source::Range(_) => {}
            Source::Index(index) => {
                self.store(&index.store, place.key("store"));
                if index.index.is_none() && self.facts(&index.store).is_some_and(|store| !store.has_index) {
                    let found = format!(
                        "there is no index to read: the configuration of store `{}` names none",
                        index.store
                    );
                    let hint = "set `index` to the key of a JSON array of keys";
                    self.push(SpecFault::new(place.clone(), found).of_kind(FaultKind::NoIndex).hint(hint));
                }
            }
            Source::Tar(tar) => {
                self.store(&tar.store, place.key("store"));
                let ways = [tar.shards.is_some(), tar.prefix.is_some(), tar.index.is_some()];
                self.one_way(ways, ["shards", "prefix", "index"], "shards", place);
                if tar.shuffle && tar.index.is_none() {
                    let hint =
                        "make one with `penstock index create --tar`, and set `index` instead of the shards";
                    self.fault(
                        place.key("shuffle"),
                        "tar shards without an index are read in their order",
                        hint,
                    );
                }
                self.window(tar.window, tar.shuffle, place);
            }
            Source::Tfrecord(source) => {
                self.store(&source.store, place.key("store"));
                let ways = [source.shards.is_some(), source.prefix.is_some(), source.index.is_some()];
                self.one_way(ways, ["shards", "prefix", "index"], "files", place);
                if source.shuffle && source.index.is_none() {
                    let hint = "make one with `penstock index create --tfrecord`, and set `index` instead of the files";
                    self.fault(
                        place.key("shuffle"),
                        "TFRecord files without an index are read in their order",
                        hint,
                    );
                }
                self.window(source.window, source.shuffle, place);
                let of_examples = [
                    ("fields", !source.fields.is_empty()),
                    ("texts", !source.texts.is_empty()),
                    ("scalars", !source.scalars.is_empty()),
                    ("lists", !source.lists.is_empty()),
                    ("sample_key", source.sample_key.is_some()),
                ];
                for (name, _) in
                    of_examples.iter().filter(|(_, is_set)| *is_set && source.decode == RecordDecoding::Bytes)
                {
                    let hint = format!("remove `{name}`, or set `decode` to `example`");
                    self.fault(place.key(name), "records that are read as bytes have no features", hint);
                }
                let ways = [("texts", &source.texts), ("scalars", &source.scalars), ("lists", &source.lists)];
                for (number, (way, names)) in ways.iter().enumerate() {
                    for (at, name) in names.iter().enumerate() {
                        // A feature may be in both of these: its values are then lists of texts.
                        let is_other = |other: &str| (other, *way) != ("texts", "lists");
                        let mut others = ways[..number].iter().filter(|(other, _)| is_other(other));
                        if let Some((other, _)) = others.find(|(_, names)| names.contains(name)) {
                            let name = printable(name, MAX_SHOWN_KEY);
                            let found = format!("`{other}` names the feature `{name}`, too");
                            self.fault(place.key(way).index(at), found, "remove one of them");
                        }
                    }
                }
            }
            Source::Parquet(parquet) => {
                self.store(&parquet.store, place.key("store"));
                let ways = [parquet.shards.is_some(), parquet.prefix.is_some()];
                self.one_way(ways, ["shards", "prefix"], "files", place);
                self.window(parquet.window, parquet.shuffle, place);
                for (at, name) in parquet.columns.iter().enumerate() {
                    let is_field = parquet.fields.keys().any(|field| field.as_str() == name);
                    if is_field || parquet.columns[..at].contains(name) {
                        let found = format!("there is another field `{}`", printable(name, MAX_SHOWN_KEY));
                        self.fault(place.key("columns").index(at), found, "remove one of them");
                    }
                }
            }
            Source::Mds(source) => {
                self.store(&source.store, place.key("store"));
                self.window(source.window, source.shuffle, place);
            }
            Source::Mix(mix) => self.mix(mix, place),
        }
    }

    /// Checks that the types in the document permit the values of `missing`.
    fn values_of_missing(&mut self, source: &Source, place: &Pointer) {
        let types = match source {
            Source::List(list) => list.labels.as_ref().map(|labels| &labels.types),
            Source::Records(records) => Some(&records.types),
            Source::Csv(table) | Source::Tsv(table) => Some(&table.types),
            _ => None,
        };
        for (name, when) in source.missing().into_iter().flatten() {
            if let Some(kind) = types.and_then(|types| types.get(name))
                && !when.fits(*kind)
            {
                let found = match when {
                    WhenMissing::Value(value) => format!("`value` is {value}"),
                    _ => "only float numbers can be NaN".to_owned(),
                };
                let found = format!("{found}, and `types` makes the field `{}`", kind.name());
                let hint = "give it a value of that type, or change `types`";
                self.fault(place.key("missing").key(name), found, hint);
            }
        }
    }

    /// Reports that not exactly one of the fields with these `names` is set, which name the `objects`.
    fn one_way<const N: usize>(
        &mut self,
        set: [bool; N],
        names: [&str; N],
        objects: &str,
        place: &Pointer,
    ) -> bool {
        let is_one = set.iter().filter(|set| **set).count() == 1;
        if !is_one {
            let found = format!("one of {} names the {objects}", listed(names));
            self.fault(place.clone(), found, "set exactly one of them");
        }
        is_one
    }

    fn window(&mut self, window: Option<NonZeroU32>, is_shuffled: bool, place: &Pointer) {
        if window.is_some() && !is_shuffled {
            self.fault(
                place.key("window"),
                "only a shuffle has a window",
                "set `shuffle`, or remove `window`",
            );
        }
    }

    fn objects(&mut self, source: &Source, place: &Pointer) {
        let Some(objects) = source.records() else { return };
        if matches!(objects.suffix, Some(Suffix::Of(_))) {
            let found = "the files that a module reads are no tables or records";
            self.fault(place.key("suffix"), found, "name the endings");
        }
        let ways = [objects.key.is_some(), objects.shards.is_some(), objects.prefix.is_some()];
        let is_one = self.one_way(ways, ["key", "shards", "prefix"], "objects", place);
        if is_one && objects.suffix.is_some() && objects.prefix.is_none() {
            self.fault(
                place.key("suffix"),
                "only keys with a `prefix` are listed",
                "set `prefix`, or remove `suffix`",
            );
        }
        self.table_form(objects.form, place);
    }

    /// Checks that the delimiter of a table is not its quote.
    fn table_form(&mut self, form: RecordForm, place: &Pointer) {
        let RecordForm::Rows(TableForm { delimiter, is_named, quote, .. }) = form else { return };
        if quote == Some(delimiter) {
            let name = if is_named { "delimiter" } else { "quote" };
            let character = char::from(delimiter).escape_debug();
            let found = format!("`{character}` is both the delimiter and the quote");
            self.fault(
                place.key(name),
                found,
                "name another character; `\"quote\": null` reads quotes as text",
            );
        }
    }

    fn labels(&mut self, labels: &LabelTable, place: &Pointer) {
        if let Some(store) = &labels.store {
            self.store(store, place.key("store"));
        }
        match labels.form() {
            None => {
                let found = format!("the key `{}` names no form of the table", labels.key);
                let hint = match labels.key.as_str() {
                    key if key.ends_with(".gz") || key.ends_with(".zst") => {
                        "decompress it: tables of labels are read by the places of their rows"
                    }
                    _ => "its end is `.csv`, `.tsv`, `.ndjson` or `.jsonl`",
                };
                self.fault(place.key("key"), found, hint);
            }
            Some(RecordForm::Lines) => {
                if !labels.types.is_empty() {
                    self.fault(place.key("types"), "values of NDJSON have their types", "remove `types`");
                }
                let of_tables = [
                    ("delimiter", labels.delimiter.is_some()),
                    ("quote", !is_double_quote(&labels.quote)),
                    ("encoding", labels.encoding != TextEncoding::default()),
                ];
                for (name, _) in of_tables.iter().filter(|(_, is_stated)| *is_stated) {
                    self.fault(place.key(name), "NDJSON is no table", format!("remove `{name}`"));
                }
            }
            Some(form) => self.table_form(form, place),
        }
    }

    fn mix(&mut self, mix: &MixSource, place: &Pointer) {
        let weights: Vec<u32> = mix.sources.values().map(|part| part.weight).collect();
        if let Err(fault) = check_weights(&weights) {
            self.fault(place.key("sources"), fault.to_string(), "weights are whole numbers such as 3 and 1");
        }
        self.mixed_classes(mix, place);
        for (name, MixPart { source, .. }) in &mix.sources {
            let place = place.key("sources").key(name.as_str()).key("source").key(source.kind());
            let traversal = source.traversal(0);
            if matches!(source, Source::Mix(_)) {
                self.fault(
                    place.clone(),
                    "a mixture is no source of a mixture",
                    "multiply its weights, and move its sources here",
                );
                continue;
            }
            if matches!(source, Source::Tar(tar) if tar.index.is_none()) {
                let hint = "make an index with `penstock index create --tar`, and set `index`";
                self.fault(
                    place.clone(),
                    "samples of a mixture are read by their numbers, which tar shards have only in an index",
                    hint,
                );
            }
            if matches!(source, Source::Tfrecord(source) if source.index.is_none()) {
                let hint = "make an index with `penstock index create --tfrecord`, and set `index`";
                let found = "samples of a mixture are read by their numbers, which TFRecord files have only in an index";
                self.fault(place.clone(), found, hint);
            }
            if traversal.shard.is_some() {
                self.fault(
                    place.key("shard"),
                    "ranks share the mixture, not its sources",
                    "move `shard` to the `mix`",
                );
            }
            if traversal.epochs != Some(NonZeroU32::MIN) {
                self.fault(place.key("epochs"), "the mixture has the epochs", "move `epochs` to the `mix`");
            }
            self.reads(source, &place);
        }
    }

    /// Checks that the parts of a mixture name the same classes, since they share one table of them.
    fn mixed_classes(&mut self, mix: &MixSource, place: &Pointer) {
        let mut first: Option<(&Name, &Vec<String>)> = None;
        for (name, part) in &mix.sources {
            let Source::List(ListSource { classes: Some(classes), .. }) = &part.source else { continue };
            match first {
                Some((other, of_other)) if of_other != classes => {
                    let place =
                        place.key("sources").key(name.as_str()).key("source").key("list").key("classes");
                    let found = format!("the sources `{other}` and `{name}` name different classes");
                    self.fault(
                        place,
                        found,
                        "all sources of a mixture share one table of classes: name all of them in each",
                    );
                }
                Some(_) => {}
                None => first = Some((name, classes)),
            }
        }
    }
}
