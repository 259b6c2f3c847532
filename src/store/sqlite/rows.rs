//! The statements on the `log` table.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension};

use super::sum;
use crate::{Key, Range, RangeQuery, Record, Revision};

/// One row of the log; `value` is `None` for a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) revision: Revision,
    pub(super) key: Key,
    pub(super) created: Revision,
    pub(super) value: Option<Bytes>,
}

impl Row {
    pub(super) fn sum(&self) -> u64 {
        sum::of_row(
            self.revision,
            &self.key,
            self.created,
            self.value.as_deref(),
        )
    }
}

/// Writes the row and tells its checksum.
pub(super) fn insert(connection: &Connection, row: &Row) -> Result<u64, rusqlite::Error> {
    let sum = row.sum();
    connection
        .prepare_cached(
            "INSERT INTO log(revision, key, created, value, sum) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((
            row.revision.cast_signed(),
            &*row.key,
            row.created.cast_signed(),
            row.value.as_deref(),
            sum.cast_signed(),
        ))?;
    Ok(sum)
}

/// Removes the row and tells its checksum.
pub(super) fn delete(connection: &Connection, revision: Revision) -> Result<u64, rusqlite::Error> {
    let sum: Option<Option<i64>> = connection
        .prepare_cached("DELETE FROM log WHERE revision=?1 RETURNING sum")?
        .query_row([revision.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(sum.flatten().unwrap_or(0).cast_unsigned())
}

/// The exclusive or of the checksums of all rows, after each was compared with its row's content
/// and the index with the table. `Err` says what does not fit.
pub(super) fn verify(connection: &Connection) -> Result<Result<u64, String>, rusqlite::Error> {
    let (mut total, mut pairs) = (0, 0_u64);
    let mut statement = connection
        .prepare("SELECT revision, key, created, value, sum FROM log ORDER BY revision")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let revision = row.get::<_, i64>(0)?.cast_unsigned();
        let key = row.get_ref(1)?.as_str()?;
        let created = row.get::<_, i64>(2)?.cast_unsigned();
        pairs ^= sum::of_row(revision, key, 0, None);
        // Rows of format 1 have none.
        let Some(sum) = row.get::<_, Option<i64>>(4)? else {
            continue;
        };
        let value = row.get_ref(3)?.as_blob_or_null()?;
        if sum::of_row(revision, key, created, value) != sum.cast_unsigned() {
            return Ok(Err(format!("the checksum of row {revision} is wrong")));
        }
        total ^= sum.cast_unsigned();
    }
    scan_index(connection, |key, revision| {
        pairs ^= sum::of_row(revision, key, 0, None);
    })?;
    if pairs != 0 {
        return Ok(Err("the index does not fit the table".to_owned()));
    }
    Ok(Ok(total))
}

/// Every (key, revision) pair, keys in order and their revisions ascending, from the index alone.
pub(super) fn scan_index(
    connection: &Connection,
    mut visit: impl FnMut(&str, Revision),
) -> Result<(), rusqlite::Error> {
    let mut statement = connection
        .prepare("SELECT key, revision FROM log INDEXED BY log_key ORDER BY key, revision")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let revision: i64 = row.get(1)?;
        visit(row.get_ref(0)?.as_str()?, revision.cast_unsigned());
    }
    Ok(())
}

/// Every row in revision order.
pub(super) fn scan_log(
    connection: &Connection,
    mut visit: impl FnMut(Revision, &str, Revision, Option<&[u8]>),
) -> Result<(), rusqlite::Error> {
    let mut statement =
        connection.prepare("SELECT revision, key, created, value FROM log ORDER BY revision")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let revision: i64 = row.get(0)?;
        let created: i64 = row.get(2)?;
        visit(
            revision.cast_unsigned(),
            row.get_ref(1)?.as_str()?,
            created.cast_unsigned(),
            row.get_ref(3)?.as_blob_or_null()?,
        );
    }
    Ok(())
}

/// The state under a prefix as it was at `revision`.
pub(super) fn range(
    connection: &Connection,
    query: &RangeQuery,
    revision: Revision,
) -> Result<Range, rusqlite::Error> {
    let from = query.after.as_deref().unwrap_or(&query.prefix);
    let limit = query.limit.unwrap_or(usize::MAX - 1);
    let mut statement = connection.prepare_cached(
        "SELECT l.key, l.created, l.revision, l.value FROM log l JOIN
           (SELECT key, max(revision) AS newest FROM log
             WHERE key >= ?1 AND key < ?2 AND revision <= ?3 GROUP BY key) n
           ON l.revision = n.newest
         WHERE l.value IS NOT NULL AND l.key > ?4 ORDER BY l.key LIMIT ?5",
    )?;
    let after = query.after.as_deref().unwrap_or("");
    let wanted = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let mut records = statement
        .query_map(
            (
                from,
                end_of_prefix(&query.prefix),
                revision.cast_signed(),
                after,
                wanted,
            ),
            |row| {
                Ok(Record {
                    key: row.get_ref(0)?.as_str()?.into(),
                    created: row.get::<_, i64>(1)?.cast_unsigned(),
                    revision: row.get::<_, i64>(2)?.cast_unsigned(),
                    value: Bytes::copy_from_slice(row.get_ref(3)?.as_blob()?),
                })
            },
        )?
        .collect::<Result<Vec<_>, _>>()?;
    let more = records.len() > limit;
    records.truncate(limit);
    Ok(Range {
        records,
        revision,
        more,
    })
}

/// The first string after every string that starts with `prefix`.
fn end_of_prefix(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        if let Some(next) = char::from_u32(u32::from(last) + 1) {
            end.push(next);
            return end;
        }
    }
    char::MAX.to_string()
}
