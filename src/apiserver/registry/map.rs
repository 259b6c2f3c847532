//! An ordered copy-on-write map: cheap snapshots, readers never block the writer.
//!
//! A sorted sequence of chunks behind `Arc`s. A snapshot is one `Arc` clone; a change copies the
//! list of chunks and one chunk, and only if a snapshot is held.

use std::sync::Arc;

use super::object::Object;

/// A chunk is split when it grows beyond this.
const CHUNK: usize = 64;

type Chunk = Vec<Arc<Object>>;

#[derive(Clone, Default)]
pub struct Map {
    chunks: Arc<Vec<Arc<Chunk>>>,
    len: usize,
}

impl Map {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunk in which `key` is or would be.
    fn chunk_of(&self, key: &str) -> usize {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(|first| &*first.key <= key));
        after.saturating_sub(1)
    }

    pub fn get(&self, key: &str) -> Option<&Arc<Object>> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let index = position(chunk, key).ok()?;
        chunk.get(index)
    }

    /// Inserts or replaces; returns what was replaced.
    pub fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        let at = self.chunk_of(&object.key);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(at) else {
            chunks.push(Arc::new(vec![object]));
            self.len = 1;
            return None;
        };
        let chunk = Arc::make_mut(chunk);
        match position(chunk, &object.key) {
            Ok(index) => Some(std::mem::replace(&mut chunk[index], object)),
            Err(index) => {
                let appended = index == chunk.len();
                chunk.insert(index, object);
                if chunk.len() > CHUNK {
                    // Keys that arrive in order leave full chunks behind.
                    let keep = if appended { CHUNK } else { CHUNK / 2 };
                    let rest = chunk.split_off(keep);
                    chunks.insert(at + 1, Arc::new(rest));
                }
                self.len += 1;
                None
            }
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Arc<Object>> {
        let at = self.chunk_of(key);
        let index = position(self.chunks.get(at)?, key).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[at]);
        let removed = chunk.remove(index);
        if chunk.is_empty() {
            chunks.remove(at);
        }
        self.len -= 1;
        Some(removed)
    }

    /// Objects from the first key that is `from` or greater.
    pub fn iter_from<'a>(&'a self, from: &str) -> impl Iterator<Item = &'a Arc<Object>> {
        let at = self.chunk_of(from);
        let skip = self.chunks.get(at).map_or(0, |chunk| {
            position(chunk, from).unwrap_or_else(|index| index)
        });
        self.chunks
            .iter()
            .skip(at)
            .flat_map(|chunk| chunk.iter())
            .skip(skip)
    }

    /// Objects whose keys begin with `prefix`, in order.
    pub fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Object>> {
        self.iter_from(prefix)
            .take_while(move |object| object.key.starts_with(prefix))
    }
}

fn position(chunk: &[Arc<Object>], key: &str) -> Result<usize, usize> {
    chunk.binary_search_by(|object| (*object.key).cmp(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn object(key: &str, revision: u64) -> Arc<Object> {
        Arc::new(Object::for_test(key, revision))
    }

    #[test]
    fn behaves_as_an_ordered_map_and_snapshots_do_not_change() {
        let mut map = Map::default();
        let mut model = BTreeMap::new();
        let mut snapshots = Vec::new();
        let mut seed = 7_u64;
        for round in 0..5_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = format!("/k/{:04}", (seed >> 33) % 700);
            if (seed >> 20).is_multiple_of(3) {
                assert_eq!(map.remove(&key).map(|o| o.revision), model.remove(&key));
            } else {
                let old = map.insert(object(&key, round)).map(|o| o.revision);
                assert_eq!(old, model.insert(key, round));
            }
            if round % 500 == 0 {
                snapshots.push((map.clone(), model.clone()));
            }
        }
        snapshots.push((map, model));
        for (map, model) in snapshots {
            assert_eq!(map.len(), model.len());
            let all: Vec<_> = map
                .under("/k/")
                .map(|o| (o.key.to_string(), o.revision))
                .collect();
            assert_eq!(all, model.clone().into_iter().collect::<Vec<_>>());
            let some: Vec<_> = map.iter_from("/k/0350").map(|o| o.revision).collect();
            let expected: Vec<_> = model
                .range("/k/0350".to_owned()..)
                .map(|(_, r)| *r)
                .collect();
            assert_eq!(some, expected);
            for (key, revision) in &model {
                assert_eq!(map.get(key).map(|o| o.revision), Some(*revision));
            }
        }
    }
}
