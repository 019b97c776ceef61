//! Samples of an archive, in order: neighbouring files with one key.

use penstock_engine::ports::SourceFault;
use penstock_storage::{RangedObject, shown};

use super::members::{Member, Members};
use super::names::split;
use crate::build::Pack;
use crate::damage::Damage;
use crate::entry::{Entry, FilePlace};
use crate::index::{FieldNames, IndexKind, MAX_FIELDS, ShardPacker};

pub(super) struct Samples {
    pub(super) members: Members,
    /// Key of the current sample, and the fields that were found.
    current: (String, Vec<String>),
    /// Key, field and place of the first file that was not returned.
    next: Option<(String, String, Member)>,
}

impl Samples {
    pub(super) fn new(object: RangedObject, ahead_bytes: u64, damage: Damage) -> Self {
        Self { members: Members::new(object, ahead_bytes, damage), current: Default::default(), next: None }
    }

    /// Key of the next sample; `None` at the end of the archive. All files of the sample before it must have been returned.
    pub(super) async fn next_sample(&mut self) -> Result<Option<String>, SourceFault> {
        if self.next.is_none() {
            self.next = self.file().await?;
        }
        if let Some((.., member)) = &self.next {
            self.members.check(member)?;
        }
        let key = self.next.as_ref().map(|(key, ..)| key.clone());
        self.current = (key.clone().unwrap_or_default(), Vec::new());
        Ok(key)
    }

    /// Field and place of the current sample's next file, which is then read or skipped; `None` after the last.
    pub(super) async fn next_file(&mut self) -> Result<Option<(String, Member)>, SourceFault> {
        let next = match self.next.take() {
            Some(next) => Some(next),
            None => self.file().await?,
        };
        let (key, fields) = &mut self.current;
        let (field, member) = match next {
            Some((next, field, member)) if next == *key => (field, member),
            other => {
                self.next = other;
                return Ok(None);
            }
        };
        self.members.check(&member)?;
        if fields.contains(&field) || fields.len() == MAX_FIELDS {
            let sample = shown(key);
            let reason = match fields.contains(&field) {
                true => format!("has the field {} of the sample {sample} twice", shown(&field)),
                false => format!("has more than {MAX_FIELDS} files for the sample {sample}"),
            };
            return Err(self.members.fault(member.content.start, &reason));
        }
        fields.push(field.clone());
        Ok(Some((field, member)))
    }

    pub(super) fn fields(&self) -> &[String] {
        &self.current.1
    }

    pub(super) fn fault(&self, member: &Member, reason: &str) -> SourceFault {
        self.members.fault(member.content.start, reason)
    }

    /// Key, field and place of the next file that belongs to a sample. If it is cut, the sample before it is whole unless it is its own.
    async fn file(&mut self) -> Result<Option<(String, String, Member)>, SourceFault> {
        while let Some(member) = self.members.next().await? {
            let found = split(&member.name).map(|(key, field)| (key.to_owned(), field));
            match found {
                Ok((key, field)) => return Ok(Some((key, field, member))),
                Err(reason) => {
                    self.members.check(&member)?;
                    self.members.leave_out(reason, &member.name);
                    self.members.skip(&member);
                }
            }
        }
        Ok(None)
    }
}

/// Reads the headers of an archive, up to a damaged one if damage is left out. The archive had `known` samples.
pub(crate) async fn scan(
    object: RangedObject,
    damage: Damage,
    known: Option<u64>,
) -> Result<Pack, SourceFault> {
    /// Headers are read with what lies between them, so one block ahead is enough for small files and little is lost for large ones.
    const AHEAD: u64 = 4 << 20;
    let mut samples = Samples::new(object.clone(), AHEAD, damage.clone());
    samples.members.has_digests = true;
    let (mut fields, mut entries) = (FieldNames::default(), Vec::new());
    loop {
        match next_entry(&mut samples, &mut fields).await {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => break,
            Err(fault) => {
                let lost = known.map(|known| known.saturating_sub(entries.len() as u64));
                damage.part(&object.key, lost, fault)?;
                break;
            }
        }
    }
    let (fields, lacks_end) = (fields.0, samples.members.lacks_end);
    Ok(Box::new(move |all| {
        let numbers: Vec<u32> = fields.iter().map(|name| all.number(name)).collect::<Option<_>>()?;
        let mut packer = ShardPacker::new(IndexKind::Tar);
        for entry in &mut entries {
            entry.files.iter_mut().for_each(|file| file.field = numbers[file.field as usize]);
            packer.push(entry);
        }
        let mut shard = packer.finish(object.key.clone(), object.version().clone());
        shard.lacks_end = lacks_end;
        Some(shard)
    }))
}

async fn next_entry(samples: &mut Samples, fields: &mut FieldNames) -> Result<Option<Entry>, SourceFault> {
    let key = samples.next_sample().await?;
    if let Some(fault) = samples.members.bytes.fault_without_places() {
        return Err(fault);
    }
    let Some(key) = key else { return Ok(None) };
    let mut files = Vec::new();
    while let Some((field, member)) = samples.next_file().await? {
        samples.members.skip(&member);
        let Some(number) = fields.number(&field) else {
            let fault = samples.fault(&member, &format!("has more than {MAX_FIELDS} different fields"));
            return Err(SourceFault { is_damage: false, ..fault });
        };
        files.push(FilePlace { field: number, content: member.content, digest: member.digest });
    }
    Ok(Some(Entry { key, files }))
}
